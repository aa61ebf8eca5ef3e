"""Run the coordinator with a defect: `python -m tests.topic.broken_coordinator DEFECT serve ...`.

The defects are those of the simulator. They prove that the check of histories notices a broken coordinator.
"""

import sys

import pytest

from coordinator.cli import main
from tests.kafka.jars import REPOSITORY
from tests.kafka.served_process import ProgramBuild
from tests.simulation.kafka.mutants import KAFKA_MUTANTS


def make_broken_build(defect: str) -> ProgramBuild:
    """Return the program with a defect."""
    assert defect in KAFKA_MUTANTS
    command = (sys.executable, "-m", "tests.topic.broken_coordinator", defect)
    # The defects change Python code, so the compiled modules are not used.
    return ProgramBuild(command, {"PYTHONPATH": str(REPOSITORY), "SHARE_COORDINATOR_PURE_PYTHON": "1"})


if __name__ == "__main__":
    KAFKA_MUTANTS[sys.argv.pop(1)](pytest.MonkeyPatch())
    main()
