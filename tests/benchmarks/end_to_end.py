"""`make bench-consumers`: consumers of a broker with its own coordinator, and with ours.

The brokers are alike: one uses the coordinator that is built into it, the others are led to ours by HAProxy,
with journal.sync=os and always.  Two of these ask who the coordinator is before each request; the other two
find `__share_group_state` on their cluster and go by its leaders, without look-ups (docs/routing.md).  One
more keeps no state at all, with Kafka's `NoOpStatePersister`: no coordinator could be faster than that.  The
same consumers read the same records from all in turn: Kafka's own `ShareConsumerPerformance`, which lets the
client acknowledge what it was given, and one that acknowledges record by record, with a commit for what each
poll brought, or for each record.
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
from rich.table import Column, Table

from tests.benchmarks.machine import Machine
from tests.benchmarks.report import wide_console
from tests.benchmarks.spread import Spread, ratios, spread
from tests.kafka.built_in import STATE_PARTITIONS, STATE_TOPIC
from tests.kafka.jars import RELEASES, SHIPPED_BROKER_JVM, SHIPPED_CLIENT_JVM, fetch_jars
from tests.kafka.rig import BuiltInRig, built_in_rig, standalone_rig
from tests.kafka.toolchain import how_to_get, missing_programs

NEWEST = RELEASES[-1]
PARTITIONS = 6
RECORD_BYTES = 100
TOPIC = "measured"
KAFKA = "Kafka's own"
# How fast consumers are when state costs nothing, because none is kept.
BOUND = "no state kept"
_NO_STATE = {"group.share.persister.class.name": "org.apache.kafka.server.share.persister.NoOpStatePersister"}
_PRODUCER = "org.apache.kafka.tools.ProducerPerformance"
_CONSUMER = "org.apache.kafka.tools.ShareConsumerPerformance"


class Way(NamedTuple):
    """A way to consume: its name, how many of the records, and what is aimed at."""

    name: str
    records: int
    aim: float
    commit: str = ""


def ways(records: int) -> list[Way]:
    """Return the ways; the slow ones with fewer records."""
    return [
        Way("ShareConsumerPerformance", records, 1.0),
        Way("record by record, a commit for each poll", records, 1.2, "poll"),
        Way("record by record, a commit for each record", records // 75, 1.2, "record"),
    ]


class Pair(NamedTuple):
    """A running broker, and whose coordinator it uses."""

    name: str
    rig: BuiltInRig

    def produce(self, records: int) -> None:
        """Fill the topic."""
        self.rig.client.create_topic(TOPIC, partitions=PARTITIONS)
        options = ["--topic", TOPIC, "--num-records", str(records), "--record-size", str(RECORD_BYTES)]
        server = ["--bootstrap-server", self.rig.broker.bootstrap, "--throughput", "-1"]
        done = self.rig.broker.jars.run(_PRODUCER, *options, *server, seconds=300)
        assert done.returncode == 0, done.stdout + done.stderr

    def consume(self, way: Way, group: str) -> float:
        """Consume as a new group; return records a second."""
        self.rig.client.set_group_config(group, {"share.auto.offset.reset": "earliest"})
        return self._one_by_one(way, group) if way.commit else self._performance(way, group)

    def _performance(self, way: Way, group: str) -> float:
        options = ["--bootstrap-server", self.rig.broker.bootstrap, "--topic", TOPIC, "--group", group]
        printed = self._run(_CONSUMER, *options, "--num-records", str(way.records), "--timeout", "20000")
        return performance_rate(printed)

    def _one_by_one(self, way: Way, group: str) -> float:
        server = self.rig.broker.bootstrap
        came, seconds = self._run("OneByOne", server, group, TOPIC, str(way.records), way.commit).split()
        assert int(came) == way.records, f"{came} of {way.records} records came"
        return int(came) / float(seconds)

    def _run(self, main_class: str, *arguments: str) -> str:
        done = self.rig.broker.jars.run(main_class, *arguments, seconds=300, jvm=SHIPPED_CLIENT_JVM)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def performance_rate(printed: str) -> float:
    """Return nMsg.sec of what ShareConsumerPerformance printed: a line of names and one of figures."""
    lines = [line.split(", ") for line in printed.splitlines() if line.count(", ") >= 5]
    names, figures = lines[-2], lines[-1]
    return float(figures[names.index("nMsg.sec")])


@contextmanager
def pairs(folder: Path) -> Iterator[list[Pair]]:
    """Start the brokers."""
    jars = fetch_jars(NEWEST)
    with ExitStack() as stack:
        started = [
            Pair(
                KAFKA,
                stack.enter_context(built_in_rig(jars, _new_folder(folder, KAFKA), jvm=SHIPPED_BROKER_JVM)),
            )
        ]
        for asks, sync in product((True, False), ("os", "always")):
            name = f"ours, sync={sync}" + ("" if asks else ", no look-ups")
            settings = {"journal.sync": sync}
            led = standalone_rig(jars, _new_folder(folder, name), jvm=SHIPPED_BROKER_JVM, settings=settings)
            rig = stack.enter_context(led)
            if not asks:
                # Where Kafka's own topic is there, brokers know from its leaders whom to ask.
                rig.client.create_topic(STATE_TOPIC, partitions=STATE_PARTITIONS)
            started.append(Pair(name, rig))
        bound = built_in_rig(jars, _new_folder(folder, BOUND), jvm=SHIPPED_BROKER_JVM, overrides=_NO_STATE)
        started.append(Pair(BOUND, stack.enter_context(bound)))
        yield started


def _new_folder(folder: Path, name: str) -> Path:
    """Make a folder for one of the pairs; a broker takes no comma in its path."""
    own = folder / "".join(filter(str.isalnum, name))
    own.mkdir()
    return own


def run(folder: Path, records: int, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Consume in every way from every broker in turn; return records a second by way and broker."""
    with pairs(folder) as started, Progress(console=Console(stderr=True), transient=True) as progress:
        every = ways(records)
        work = progress.add_task("producing", total=(rounds + 1) * len(every) * len(started))
        for pair in started:
            pair.produce(records)
        found = {way.name: {pair.name: [] for pair in started} for way in every}
        # The first round is for the brokers to warm up.
        for number in range(rounds + 1):
            for way in every:
                for place in range(len(started)):
                    pair = started[(place + number) % len(started)]
                    progress.update(work, description=f"{pair.name}, {way.name}")
                    rate = pair.consume(way, f"group-{number}-{len(way.name)}")
                    if number:
                        found[way.name][pair.name].append(rate)
                    progress.advance(work)
    return found


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="make bench-consumers", description=__doc__)
    parser.add_argument("--records", type=int, default=600_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("-o", "--output", choices=("table", "json"), default="table")
    options = parser.parse_args()
    console = wide_console()
    if missing := missing_programs():
        console.print(f"nothing to measure: {how_to_get(missing)}")
        return 1
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-bench-") as name:
        found = run(Path(name), options.records, options.rounds)
    if options.output == "json":
        print(json.dumps({"machine": machine.facts(), "records_per_second": found}))
        return 0
    for line in machine.lines():
        console.print(line, highlight=False)
    console.print(
        f"Kafka {NEWEST}, {PARTITIONS} partitions, records of {RECORD_BYTES} bytes, one consumer, "
        f"{options.rounds} rounds after one to warm up"
    )
    console.print(table_of(found, options.records))
    return 0


def table_of(found: dict[str, dict[str, list[float]]], records: int) -> Table:
    """Lay records a second out, with the ratio to the broker's own coordinator."""
    table = Table(Column("records/s", no_wrap=True), box=None)
    names = next(iter(found.values()))
    for name in names:
        table.add_column(name, justify="right", no_wrap=True)
        if name != KAFKA:
            table.add_column("ratio", justify="right", no_wrap=True)
        if name not in (KAFKA, BOUND):
            table.add_column("met", no_wrap=True)
    table.add_column("aim")
    for way in ways(records):
        rates = found[way.name]
        cells: list[str] = []
        for name in names:
            cells.append(f"{spread(rates[name]).median:,.0f}")
            if name != KAFKA:
                ratio: Spread = ratios(rates[name], rates[KAFKA])
                cells.append(str(ratio))
                if name != BOUND:
                    cells.append("yes" if ratio.median >= way.aim else "NO")
        table.add_row(way.name, *cells, f"≥ {way.aim:g}")
    return table


if __name__ == "__main__":
    raise SystemExit(main())
