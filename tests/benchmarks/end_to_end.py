"""`make bench-consumers`: compare the speed of share consumers with Kafka's coordinator and with this one.

One broker uses its built-in coordinator. For four other brokers, HAProxy routes the persister's requests to
this coordinator, twice with journal.sync=os and twice with journal.sync=always. In routing mode A, a broker
sends FindCoordinator before each request. In routing mode B, the broker finds `__share_group_state` on its
cluster and uses the partition leaders (see docs/routing.md). The sixth broker uses Kafka's
`NoOpStatePersister`, which stores no state, as the upper bound. The same consumers read the same records from
all brokers in turn. Kafka's own `ShareConsumerPerformance` commits the records of each poll. Other consumers
acknowledge each record individually, and commit after each poll or after each record.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import Progress

from tests.benchmarks.java_clients import RECORD_BYTES, consumer_arguments, produce_records
from tests.benchmarks.machine import Machine
from tests.benchmarks.report import ResultTable, wide_console
from tests.benchmarks.system_under_test import RoundSpread, compute_spread, ratio_spread
from tests.kafka.built_in import STATE_PARTITIONS, STATE_TOPIC
from tests.kafka.jars import RELEASES, SHIPPED_BROKER_JVM, SHIPPED_CLIENT_JVM, fetch_jars
from tests.kafka.rig import BuiltInRig, built_in_rig, standalone_rig
from tests.kafka.toolchain import install_hint, missing_programs

NEWEST = RELEASES[-1]
KAFKA = "Kafka's own"
# The name of the broker that stores no state, which is the upper bound for consumers.
BOUND = "no state kept"
_NO_STATE = {"group.share.persister.class.name": "org.apache.kafka.server.share.persister.NoOpStatePersister"}
_CONSUMER = "org.apache.kafka.tools.ShareConsumerPerformance"


class TargetRatios(NamedTuple):
    """The minimum ratio to Kafka's own coordinator, by journal.sync and routing mode."""

    os_lookups: float
    os: float
    always_lookups: float
    always: float


class ConsumeMode(NamedTuple):
    """How records are consumed: topic, number of records and consumers, commit mode, and target ratios."""

    name: str
    topic: str
    records: int
    aims: TargetRatios
    commit: str = ""
    consumers: int = 1

    def target_ratio(self, pair: str) -> float:
        """Return the target ratio for a broker that uses this coordinator."""
        lookups = "" if pair.endswith(NO_LOOKUPS) else "_lookups"
        return float(getattr(self.aims, f"{'always' if 'always' in pair else 'os'}{lookups}"))


NO_LOOKUPS = ", no look-ups"
MANY_PARTITIONS, ONE_PARTITION = "measured-6", "measured-1"
_EACH_RECORD = TargetRatios(0.95, 1.0, 0.9, 1.0)
_SECONDS_MAX = 120


def consume_modes(records: int, only: str = "") -> list[ConsumeMode]:
    """Return the consume modes whose name contains a text; slow modes use fewer records."""
    modes = [
        ConsumeMode("ShareConsumerPerformance", MANY_PARTITIONS, records, TargetRatios(1, 1, 1, 1)),
        ConsumeMode(
            "a commit for each poll", MANY_PARTITIONS, records, TargetRatios(1.2, 1.2, 1.2, 1.2), "poll"
        ),
        *(
            ConsumeMode(
                f"a commit for each record, {consumers} on one partition",
                ONE_PARTITION,
                records // 100,
                _EACH_RECORD,
                "record",
                consumers,
            )
            for consumers in (1, 8, 32)
        ),
    ]
    return [mode for mode in modes if only in mode.name]


class BrokerWithCoordinator(NamedTuple):
    """A running broker and its coordinator."""

    name: str
    rig: BuiltInRig

    def produce(self, records: int) -> None:
        """Create the topics and produce the records."""
        for topic, partitions, count in ((MANY_PARTITIONS, 6, records), (ONE_PARTITION, 1, records // 10)):
            self.rig.client.create_topic(topic, partitions=partitions)
            broker = self.rig.broker
            produce_records(broker.jars, broker.bootstrap, topic, count, small_batches=topic == ONE_PARTITION)

    def consume(self, mode: ConsumeMode, group: str) -> float:
        """Consume with a new group; return records per second."""
        self.rig.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
        return self._run_consumers(mode, group) if mode.commit else self._run_performance_tool(mode, group)

    def _run_performance_tool(self, mode: ConsumeMode, group: str) -> float:
        options = ["--bootstrap-server", self.rig.broker.bootstrap, "--topic", mode.topic, "--group", group]
        printed = self._run_tool(
            _CONSUMER, *options, "--num-records", str(mode.records), "--timeout", "20000"
        )
        return parse_performance_rate(printed)

    def _run_consumers(self, mode: ConsumeMode, group: str) -> float:
        arguments = consumer_arguments(
            self.rig.broker.bootstrap,
            [mode.topic],
            [group],
            consumers=mode.consumers,
            records=mode.records,
            seconds=_SECONDS_MAX,
            commit=mode.commit,
        )
        consumed, seconds = self._run_tool(*arguments).split()
        assert int(consumed) >= mode.records, f"{consumed} of {mode.records} records came"
        return int(consumed) / float(seconds)

    def _run_tool(self, main_class: str, *arguments: str) -> str:
        done = self.rig.broker.jars.run(main_class, *arguments, seconds=300, jvm=SHIPPED_CLIENT_JVM)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def parse_performance_rate(printed: str) -> float:
    """Return the value nMsg.sec from the output of ShareConsumerPerformance, which has a header line."""
    lines = [line.split(", ") for line in printed.splitlines() if line.count(", ") >= 5]
    names, figures = lines[-2], lines[-1]
    return float(figures[names.index("nMsg.sec")])


@contextmanager
def start_brokers(folder: Path) -> Iterator[list[BrokerWithCoordinator]]:
    """Start the brokers and their coordinators."""
    jars = fetch_jars(NEWEST)
    with ExitStack() as stack:
        started = [
            BrokerWithCoordinator(
                KAFKA,
                stack.enter_context(
                    built_in_rig(jars, _create_folder(folder, KAFKA), jvm=SHIPPED_BROKER_JVM)
                ),
            )
        ]
        for asks, sync in product((True, False), ("os", "always")):
            name = f"ours, sync={sync}" + ("" if asks else NO_LOOKUPS)
            settings = {"journal.sync": sync}
            led = standalone_rig(
                jars, _create_folder(folder, name), jvm=SHIPPED_BROKER_JVM, settings=settings
            )
            rig = stack.enter_context(led)
            if not asks:
                # If Kafka's own topic exists, brokers send requests to its leaders without FindCoordinator.
                rig.client.create_topic(STATE_TOPIC, partitions=STATE_PARTITIONS)
            started.append(BrokerWithCoordinator(name, rig))
        bound = built_in_rig(jars, _create_folder(folder, BOUND), jvm=SHIPPED_BROKER_JVM, overrides=_NO_STATE)
        started.append(BrokerWithCoordinator(BOUND, stack.enter_context(bound)))
        yield started


def _create_folder(folder: Path, name: str) -> Path:
    """Create a directory for a broker and its coordinator; a broker accepts no comma in its path."""
    own = folder / "".join(filter(str.isalnum, name))
    own.mkdir()
    return own


def run_rounds(
    folder: Path, modes: list[ConsumeMode], records: int, rounds: int
) -> dict[str, dict[str, list[float]]]:
    """Consume in each mode from each broker, in turn; return records per second by mode and broker."""
    with start_brokers(folder) as started, Progress(console=Console(stderr=True), transient=True) as progress:
        work = progress.add_task("producing", total=(rounds + 1) * len(modes) * len(started))
        for pair in started:
            pair.produce(records)
        rates_by_mode = {mode.name: {pair.name: [] for pair in started} for mode in modes}
        # The first round warms up the brokers; its figures are discarded.
        for number in range(rounds + 1):
            for mode in modes:
                for place in range(len(started)):
                    pair = started[(place + number) % len(started)]
                    progress.update(work, description=f"{pair.name}, {mode.name}")
                    rate = pair.consume(mode, f"group-{number}-{modes.index(mode)}")
                    if number:
                        rates_by_mode[mode.name][pair.name].append(rate)
                    progress.advance(work)
    return rates_by_mode


def main() -> int:
    """Measure all brokers and print the tables."""
    parser = argparse.ArgumentParser(prog="make bench-consumers", description=__doc__)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help='rows whose name has this text: "each record"')
    parser.add_argument("-o", "--output", choices=("table", "markdown", "json"), default="table")
    options = parser.parse_args()
    console = wide_console()
    if missing := missing_programs():
        console.print(f"nothing to measure: {install_hint(missing)}")
        return 1
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        modes = consume_modes(options.records, options.only)
        rates_by_mode = run_rounds(Path(name), modes, options.records, options.rounds)
    if options.output == "json":
        print(json.dumps({"machine": machine.properties(), "records_per_second": rates_by_mode}))
        return 0
    for line in machine.lines():
        console.print(line, highlight=False)
    console.print(
        f"Kafka {NEWEST}, records of {RECORD_BYTES} bytes, {options.rounds} rounds after one to warm up"
    )
    sheet = consumer_results_table(rates_by_mode, modes)
    if options.output == "markdown":
        print(sheet.markdown())
    else:
        console.print(sheet.table())
    return 0


def consumer_results_table(
    rates_by_mode: dict[str, dict[str, list[float]]], modes: list[ConsumeMode]
) -> ResultTable:
    """Return a table of records per second, with the ratio to the broker's own coordinator."""
    names = list(next(iter(rates_by_mode.values())))
    header = ["records/s"]
    for name in names:
        header.append(name)
        if name != KAFKA:
            header.append("ratio")
    rows = []
    for mode in modes:
        rates = rates_by_mode[mode.name]
        cells = [mode.name]
        for name in names:
            cells.append(f"{compute_spread(rates[name]).median:,.0f}")
            if name != KAFKA:
                ratio: RoundSpread = ratio_spread(rates[name], rates[KAFKA])
                missed = name != BOUND and ratio.median < mode.target_ratio(name)
                cells.append(f"{ratio}, NO: ≥ {mode.target_ratio(name):g}" if missed else str(ratio))
        rows.append(cells)
    return ResultTable(header, rows)


if __name__ == "__main__":
    raise SystemExit(main())
