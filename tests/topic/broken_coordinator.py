"""Run the coordinator with a defect: `python -m tests.topic.broken_coordinator DEFECT serve ...`.

The defects are those of the simulator, and a wrong clock of leases. The defects prove that the check of
client histories notices a broken coordinator.
"""

import sys
import time
from typing import Any

import pytest

from coordinator.cli import main
from coordinator.log.kafka import KafkaLog
from tests.kafka.jars import REPOSITORY
from tests.kafka.served_process import ProgramBuild
from tests.simulation.kafka.mutants import KAFKA_MUTANTS


def _measure_leases_without_suspensions(patch: pytest.MonkeyPatch) -> None:
    init = KafkaLog.__init__

    def init_with_clock(self: KafkaLog, *args: Any, **options: Any) -> None:
        init(self, *args, **{**options, "monotonic": time.monotonic})

    patch.setattr(KafkaLog, "__init__", init_with_clock)


DEFECTS = {
    **KAFKA_MUTANTS,
    "measures_leases_on_a_clock_that_omits_suspensions": _measure_leases_without_suspensions,
}


def make_broken_build(defect: str) -> ProgramBuild:
    assert defect in DEFECTS
    command = (sys.executable, "-m", "tests.topic.broken_coordinator", defect)
    # The defects change Python code, so the compiled modules are not used.
    return ProgramBuild(command, {"PYTHONPATH": str(REPOSITORY), "SHARE_COORDINATOR_PURE_PYTHON": "1"})


if __name__ == "__main__":
    DEFECTS[sys.argv.pop(1)](pytest.MonkeyPatch())
    main()
