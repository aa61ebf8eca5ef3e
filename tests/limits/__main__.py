"""Measure how each kind of hostile connections affects other clients: `python -m tests.limits`.

The program attacks a coordinator with TLS and SASL on its Kafka port and its HTTP port, then a relay with
TLS.

It measures the CPU time of the event loop: as a share, for each connection, and between two ticks of a timer.
It also measures the latency of a broker and of a liveness probe, the memory growth of the process, and the
growth that remains 30 s after the attack.
"""

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.start_systems import coordinator_process
from tests.limits.attacks import HTTP, KAFKA
from tests.limits.cost import HEADINGS, measure_attack
from tests.limits.observed import LoopTimes
from tests.limits.relay import relay_process
from tests.limits.victims import coordinator_settings


def main() -> int:
    """Measure each kind of hostile client, print a table, and return 1 if a limit was exceeded."""
    parser = argparse.ArgumentParser(prog="python -m tests.limits", description=__doc__)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("--target", choices=("coordinator", "relay"), action="append")
    parser.add_argument("kinds", nargs="*", default=[*KAFKA, *HTTP])
    options = parser.parse_args()
    faults = []
    for target in options.target or ("coordinator", "relay"):
        print(f"{target}: {options.connections} connections of each kind, {options.seconds:g} s")
        print(HEADINGS)
        with tempfile.TemporaryDirectory(prefix="share-coordinator-limits-") as name:
            folder = Path(name)
            loop_times = LoopTimes(folder / "loop-times")
            with (
                relay_process(folder, loop_times.build)
                if target == "relay"
                else coordinator_process(folder / "attacked", coordinator_settings(folder), loop_times.build)
            ) as process:
                for kind in options.kinds:
                    cost = measure_attack(process, [kind], options.connections, options.seconds, loop_times)
                    print(cost.table_row(), flush=True)
                    faults += [f"{target}, {kind}: {fault}" for fault in cost.exceeded_bounds()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
