"""Measure how hostile connections of each kind affect other clients: `python -m tests.limits`.

A coordinator with TLS and SASL is attacked at its Kafka port and its HTTP port. The figures are the latency
of a broker and of a probe, the memory growth of the process, and the growth that remains 30 s after the
attack.
"""

import argparse
import tempfile
from pathlib import Path

from tests.benchmarks.start_systems import our_process
from tests.limits.attacks import HTTP, KAFKA
from tests.limits.cost import measure
from tests.limits.victims import settings_of

_HEADINGS = (
    f"{'kind':18}{'requests':>9}{'broker p99.9':>14}{'probe p99.9':>14}{'growth MB':>12}{'left MB':>10}"
)


def main() -> int:
    """Measure all kinds, print a table, and return 1 if a bound was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.limits", description=__doc__)
    parser.add_argument("--connections", type=int, default=1_000)
    parser.add_argument("--seconds", type=float, default=15.0)
    parser.add_argument("kinds", nargs="*", default=[*KAFKA, *HTTP])
    options = parser.parse_args()
    print(f"{options.connections} connections of each kind, {options.seconds:g} s")
    print(_HEADINGS)
    faults = []
    with tempfile.TemporaryDirectory(prefix="share-coordinator-limits-") as name:
        folder = Path(name)
        with our_process(folder / "attacked", settings_of(folder)) as process:
            for kind in options.kinds:
                cost = measure(process, [kind], options.connections, options.seconds)
                print(cost.line(), flush=True)
                faults += [f"{kind}: {fault}" for fault in cost.faults()]
    for fault in faults:
        print(fault)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
