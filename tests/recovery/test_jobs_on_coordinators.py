"""Test the recovery jobs with real coordinator processes, on a journal and on a topic.

A log is rewritten to another partition count, or restored from a backup. A coordinator that serves the new
log must return the same states as before.
"""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from coordinator.client import RetryPolicy, ShareCoordinatorClient, StateSummary
from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.external_checks import LiveCheck
from coordinator.recovery.folders import open_folder
from coordinator.recovery.live_comparison import diff
from coordinator.recovery.manifest import MANIFEST, read_manifest
from coordinator.recovery.schema import STATES
from coordinator.recovery.sources.journal import JournalSource
from coordinator.recovery.sources.topic import TopicSource
from coordinator.recovery.tasks import NamedOutput
from protocol.routing import state_partition
from protocol.state_batches import StateBatch
from protocol.state_records import SharePartitionKey
from tests.kafka import BuiltInRig, CoordinatorProcess, free_ports
from tests.kafka.delivery_history import check_history
from tests.recovery.test_docs import LIVE, read_examples
from tests.topic.logs import new_topic
from tests.unit.cli.command_line import CommandLine

if TYPE_CHECKING:
    from coordinator.recovery.engines.spark import SparkEngine

pytestmark = [pytest.mark.e2e]

LOCAL = LocalEngine(1)
KEYS = [SharePartitionKey(f"group-{n % 4}", bytes([n]) * 16, n) for n in range(16)]
RETRY = RetryPolicy(attempts_max=10, first_s=0.1)
ONE_COPY = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}
SMALL = {"journal.segment.bytes": str(1 << 20)}
Answers = dict[SharePartitionKey, tuple[StateSummary, list[StateBatch]]]


@contextmanager
def run_coordinator(
    directory: Path, *, data: Path | None = None, partitions: int = 6, log: str = "journal", **settings: str
) -> Iterator[CoordinatorProcess]:
    directory.mkdir(parents=True, exist_ok=True)
    port, http_port = free_ports(2)
    names = dict(settings)
    names |= {"share.coordinator.state.topic.num.partitions": str(partitions), **SMALL}
    process = CoordinatorProcess(directory, port=port, http_port=http_port, log=log, settings=names)
    if data is not None:
        process.process.command[process.process.command.index("--data-dir") + 1] = str(data)
        process.data = data
    try:
        process.start()
        yield process
        process.stop()
    finally:
        process.kill()


def send_random_requests(port: int, seed: int = 1) -> None:
    """Initialize, read and write each share-partition like its leader; delete the last share-partition."""

    async def send_requests() -> None:
        random = Random(seed)
        async with ShareCoordinatorClient(f"127.0.0.1:{port}", retry=RETRY) as client:
            for key in KEYS:
                await client.initialize(key, seed, 10)
                await client.read(key, seed)
                done = 0
                for first in range(10, 40, 3):
                    outcome = random.choice([0, 2, 4])
                    done += 3 if outcome else 0
                    await client.write(
                        *(key,),
                        state_epoch=seed,
                        leader_epoch=seed,
                        start_offset=10,
                        delivery_complete_count=done,
                        batches=[StateBatch(first, first + 2, outcome, 1)],
                    )
            await client.delete(KEYS[-1])

    asyncio.run(send_requests())


def read_all_states(port: int) -> Answers:
    """Read all states."""

    async def read_states() -> Answers:
        found = {}
        async with ShareCoordinatorClient(f"127.0.0.1:{port}", retry=RETRY) as client:
            for key in KEYS[:-1]:
                summary = await client.summary(key)
                found[key] = (summary, (await client.read(key, summary.leader_epoch)).batches)
        return found

    return asyncio.run(read_states())


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[CoordinatorProcess]:
    with run_coordinator(tmp_path / "first") as process:
        send_random_requests(process.port)
        yield process


def test_journal_in_use_is_audited_and_equals_served_state(
    journal: CoordinatorProcess, share_coordinator: CommandLine
) -> None:
    source = JournalSource(str(journal.data))
    live = f"127.0.0.1:{journal.port}"
    found = diff(LOCAL, source, live)
    assert (found.compared, found.equal, found.different, found.unknown) == (15, 15, [], {})
    options = AuditOptions(external=[LiveCheck(source, live)])
    checked = audit(LOCAL, source, options)
    assert (checked.summary_line, checked.findings.to_pylist()) == ("clean", [])
    for key in KEYS[:2]:
        check_history(journal, source, key, offset=13)
    # The command of docs/recovery.md.
    ((command, lines),) = (each for each in read_examples() if LIVE in each[0])
    command = command.replace("journal:data", source.text).replace("127.0.0.1:9095", live)
    result = share_coordinator(*shlex.split(command)[1:])
    assert (result.exit_code, result.out.splitlines()) == (0, lines)
    # Requests with other leader and state epochs change the states in the log and in the coordinator.
    send_random_requests(journal.port, seed=2)
    assert diff(LOCAL, source, live).equal == 15


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_executors_compare_states_and_driver_reads_none(
    spark_engine: "SparkEngine",
    journal: CoordinatorProcess,
    tmp_path: Path,
    fetched_outputs: list[NamedOutput],
) -> None:
    """Test the audit checks X1 (live coordinator) and X3 (earlier audit), and the job `diff`."""
    source = JournalSource(str(journal.data))
    live = f"127.0.0.1:{journal.port}"
    earlier = audit(LOCAL, source, AuditOptions(to=tmp_path / "earlier"))
    lost = SharePartitionKey("lost", bytes(16), 1)
    state = earlier.states.slice(0, 1).to_pylist()[0] | {"group_id": lost.group_id, "state_partition": 5}
    open_folder(tmp_path / "earlier" / "states.parquet").write_parquet(
        "lost.parquet", pa.Table.from_pylist([state], STATES)
    )
    manifest = read_manifest(tmp_path / "earlier") | {"files": {"states.parquet": 16}}
    (tmp_path / "earlier" / MANIFEST).write_text(json.dumps(manifest))
    compared = diff(spark_engine, source, live, listed=[lost])
    assert (compared.compared, compared.equal, compared.different, compared.unlisted) == (16, 16, [], 0)
    options = AuditOptions(
        baseline=Baseline.read(tmp_path / "earlier"),
        external=[LiveCheck(source, live)],
        to=tmp_path / "audit",
    )
    checked = audit(spark_engine, source, options)
    assert {"X1", "X3"}.isdisjoint(checked.not_checked)
    assert [(row["check"], row["group_id"]) for row in checked.findings.to_pylist()] == [("X3", "lost")]
    small = {"concerned", "doubtful", "answers"}
    assert not [each for each in fetched_outputs if each.name in small and len(each.rows)]
    assert {each.name for each in fetched_outputs} >= {"compared", "totals"}
    assert "states" not in {each.name for each in fetched_outputs}
    journal.stop()
    missed = audit(spark_engine, source, AuditOptions(external=[LiveCheck(source, live)]))
    assert (list(missed.missed), missed.exit_code) == (["X1"], 1)
    assert "the coordinator cannot be reached" in missed.not_checked["X1"]


def test_journal_is_rewritten_to_other_partition_count_and_served(
    journal: CoordinatorProcess, tmp_path: Path, share_coordinator: CommandLine
) -> None:
    before = read_all_states(journal.port)
    journal.stop()
    target = tmp_path / "target"
    command = (
        *("recovery", "rewrite", "--from", f"journal:{journal.data}", "--to", f"journal:{target}"),
        # Another test may have started a Spark session, which would need --work.
        *("--engine", "local"),
        *(f"--set={name}={value}" for name, value in SMALL.items()),
    )
    planned = share_coordinator(*command, "--state-partitions", "11")
    assert planned.exit_code == 0
    assert planned.out.endswith(
        "11 state partitions: 15 copy\nDry run: nothing was written. Repeat with --execute.\n"
    )
    assert not target.exists()
    done = share_coordinator(*command, "--state-partitions", "11", "--execute", "-o", "json")
    report = json.loads(done.out)
    assert (report["verified"], report["counts"], report["differences"]) == (True, {"copy": 15}, [])
    moved = audit(LOCAL, JournalSource(str(target)), AuditOptions())
    assert (moved.summary_line, len(moved.states)) == ("clean", 15)
    assert {state_partition(key, 11) for key in KEYS[:-1]} == set(
        moved.states.column("state_partition").to_pylist()
    )
    with run_coordinator(tmp_path / "second", data=target, partitions=11) as second:
        assert read_all_states(second.port) == before
        assert diff(LOCAL, JournalSource(str(target)), f"127.0.0.1:{second.port}").equal == 15
        refused = share_coordinator(*command, "--state-partitions", "11", "--execute", "--replace")
        assert refused.exit_code == 0, "nothing to do"
        send_random_requests(second.port, seed=3)
        refused = share_coordinator(*command, "--state-partitions", "11", "--execute", "--replace")
        assert (refused.exit_code, "is held by process" in refused.err) == (1, True)


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.filterwarnings("ignore")
def test_topic_is_audited_restored_from_archive_and_served(
    spark_engine: "SparkEngine",
    built_in: BuiltInRig,
    tmp_path: Path,
    share_coordinator: CommandLine,
    fetched_outputs: list[NamedOutput],
) -> None:
    """Spark's executors write the restored topic."""
    bootstrap = built_in.broker.bootstrap
    topic = new_topic("recovery-ours")
    at_kafka = {"bootstrap.servers": bootstrap, **ONE_COPY}
    with run_coordinator(
        tmp_path / "first", log="kafka", **at_kafka, **{"share.coordinator.state.topic.name": topic}
    ) as first:
        send_random_requests(first.port)
        before = read_all_states(first.port)
        source = TopicSource(topic, bootstrap)
        assert diff(LOCAL, source, f"127.0.0.1:{first.port}").equal == 15
        check_history(first, source, KEYS[0], offset=13)
        assert audit(LOCAL, source, AuditOptions(state_partitions=6)).findings.to_pylist() == []
        archive(source, tmp_path / "archive")
    restored = new_topic("recovery-restored")
    place = f"archive:{tmp_path / 'archive'}"
    code, out, err = rewrite(
        *(share_coordinator, place, f"kafka:{restored}", bootstrap, "--state-partitions", "4"),
        *("--engine", "spark", "--work", str(tmp_path / "work")),
    )
    assert (code, err) == (0, ""), err
    # The driver gets a plan and a report for each of the four state partitions, but no state.
    assert [each.name for each in fetched_outputs].count("report") == 8
    assert "states" not in {each.name for each in fetched_outputs}
    assert not (tmp_path / "work").exists()
    assert "Source and target have the same state of 15 share-partitions." in out
    with run_coordinator(
        tmp_path / "second",
        log="kafka",
        partitions=4,
        **at_kafka,
        **{"share.coordinator.state.topic.name": restored},
    ) as second:
        assert read_all_states(second.port) == before
        code, _, err = rewrite(
            *(share_coordinator, f"kafka:{topic}", f"kafka:{restored}", bootstrap),
            *("--state-partitions", "4", "--engine", "local"),
        )
        assert code == 0, "source and target have the same states"
        send_random_requests(second.port, seed=4)
        code, _, err = rewrite(
            share_coordinator,
            f"kafka:{topic}",
            f"kafka:{restored}",
            bootstrap,
            *("--state-partitions", "4", "--replace", "--engine", "local"),
        )
        assert code == 1
        assert "state partitions of the target have an owner" in err
    assert audit(LOCAL, TopicSource(restored, bootstrap), AuditOptions()).exit_code == 0


def rewrite(
    share_coordinator: CommandLine, source: str, target: str, bootstrap: str, *more: str
) -> tuple[object, str, str]:
    result = share_coordinator(
        *("recovery", "rewrite", "--from", source, "--to", target, "--execute"),
        *("--bootstrap-servers", bootstrap),
        *(f"--set={name}={value}" for name, value in ONE_COPY.items()),
        *more,
    )
    return result.exit_code, result.out, result.err


OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"


def test_documented_backup_and_restore_commands_work(
    share_coordinator: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    section = OPERATIONS.read_text("utf-8").partition("## Back up and restore")[2].partition("\n## ")[0]
    commands = re.findall(r"^share-coordinator (.*)$", section, re.MULTILINE)
    (back_up, restore, look, serve) = map(shlex.split, commands)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARE_COORDINATOR_JOURNAL_SEGMENT_BYTES", str(1 << 20))
    with run_coordinator(tmp_path / "first", partitions=50) as first:
        (tmp_path / "data").symlink_to(first.data)
        send_random_requests(first.port)
        assert share_coordinator(*back_up).exit_code == 0
        send_random_requests(first.port, 2)
        assert share_coordinator(*back_up).exit_code == 0
        before = read_all_states(first.port)
        first.kill()
    # The disk is lost.
    shutil.rmtree(tmp_path / "first")
    # Use the local engine, because workers of a Spark session have another working directory.
    assert share_coordinator(*restore, "--engine", "local").exit_code == 0
    assert share_coordinator(*look, "--engine", "local").out.startswith(
        "Recovery audit of journal:restored: clean\n"
    )
    assert serve == ["serve", "--data-dir", "restored"]
    with run_coordinator(tmp_path / "second", data=tmp_path / "restored", partitions=50) as second:
        assert read_all_states(second.port) == before
