"""Test archives and results on a real S3 server, and that they behave as in local directories."""

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from coordinator.errors import ConfigError, LogError, LogUnavailable
from coordinator.recovery.archive import archive
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.compaction import DAY_MS, remove_old_records
from coordinator.recovery.continuous import next_baseline, remove_old_audits
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.folders import Folder, open_folder
from coordinator.recovery.manifest import MANIFEST
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.sources.archive import COMMITS, FILES, ArchiveSource
from coordinator.recovery.sources.base import LogCut
from coordinator.recovery.state_checkpoints import checkpoint_states
from tests.benchmarks.archives import SettableClock
from tests.recovery.logs_on_disk import read_log_offsets
from tests.recovery.s3_server import BUCKET, S3Server, needs_s3, s3_server
from tests.recovery.test_archive import GrowingPartition, OvertakenSource
from tests.unit.cli.command_line import CommandLine

pytestmark = [pytest.mark.e2e, pytest.mark.slow, needs_s3]

LOCAL = LocalEngine(1)


@pytest.fixture(scope="module", autouse=True)
def running_s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with s3_server(tmp_path_factory.mktemp("s3")) as server, pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment.items():
            environment.setenv(name, value)
        yield server


@pytest.fixture
def uri(request: pytest.FixtureRequest) -> str:
    """The URI of a folder that only this test uses, with the scheme `s3` or Spark's scheme `s3a`."""
    name = request.node.name.partition("[")[0]
    return f"s3a://{BUCKET}/{name}" if "archive" in name else f"s3://{BUCKET}/{name}"


@pytest.fixture
def growing_log(tmp_path: Path) -> GrowingPartition:
    return GrowingPartition(tmp_path / "disk")


@pytest.fixture(params=["directory", "object store"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, uri: str) -> Folder:
    return open_folder(tmp_path / "folder" if request.param == "directory" else uri)


def test_folder_has_same_behaviour_in_directory_and_object_store(folder: Folder) -> None:
    assert (folder.names(), folder.folder_names()) == ([], [])
    folder.create("first", b"1")
    with pytest.raises(FileExistsError):
        folder.create("first", b"2")
    assert folder.read("first") == b"1"
    folder.write("first", b"3")
    (folder / "inner").write("second", b"4")
    assert folder.read_all(["first", "first"]) == [b"3", b"3"]
    assert (folder.names(), folder.folder_names()) == (["first"], ["inner"])
    with pytest.raises(FileNotFoundError):
        folder.read("second")
    table = pa.table({"number": range(100_000)})
    folder.write_parquet("one.parquet", table)
    for part in ("a", "b"):
        (folder / "many.parquet").write_parquet(f"{part}.parquet", table)
    with folder.open_parquet("one.parquet") as opened:
        assert opened.read_row_group(0) == table
    assert folder.read_parquet("one.parquet", [("number", "=", 7)]).to_pylist() == [{"number": 7}]
    assert len(folder.read_parquet("many.parquet")) == 200_000
    for _ in range(2):
        folder.delete("first")
    folder.delete_all()
    assert (folder.names(), (folder / "inner").names()) == ([], [])


def test_file_whose_writer_fails_is_not_visible(uri: str) -> None:
    folder = open_folder(uri)
    with suppress(ZeroDivisionError), folder.writer("unfinished") as file:
        file.write(bytes(100))
        raise ZeroDivisionError
    assert folder.names() == []


def test_archive_in_object_store_has_contents_of_local_archive(
    growing_log: GrowingPartition, tmp_path: Path, uri: str
) -> None:
    """The archive of several days has compaction, checkpoints, a gap, and removal of records."""
    local, clock = str(tmp_path / "archive"), SettableClock()
    for hour in (0, 1, 25, 26, 50, 51, 75):
        clock.ms = hour * DAY_MS // 24
        growing_log.append_records(40)
        if hour == 25:
            growing_log.append_records(40)
            growing_log.prune()
        for place in (local, uri):
            archive(growing_log.source, place, clock=clock)  # type: ignore[arg-type]
            checkpoint_states(LOCAL, place, interval_ms=DAY_MS, now_ms=clock.ms)
    one, other = ArchiveSource(local), ArchiveSource(uri)
    assert one.plan(LogCut()).starts == {0: 120}
    for cut in (LogCut(), LogCut({0: 30}), LogCut({0: 200}), LogCut(time_ms=1_030)):
        assert read_log_offsets(one, cut) == read_log_offsets(other, cut)
        assert rebuild(LOCAL, one, cut=cut).states.equals(rebuild(LOCAL, other, cut=cut).states)
    removed = [remove_old_records(place, keep_ms=DAY_MS, now_ms=clock.ms) for place in (local, uri)]
    assert removed[0] == removed[1]
    assert read_log_offsets(one) == read_log_offsets(other)
    commits, files = (len((open_folder(uri) / name).names()) for name in (COMMITS, FILES))
    assert (commits, files) == tuple(len((open_folder(local) / name).names()) for name in (COMMITS, FILES))


def test_one_of_two_concurrent_archive_runs_fails(growing_log: GrowingPartition, uri: str) -> None:
    for end in (10, 20):
        growing_log.append_records(10)
        with pytest.raises(LogError, match="another run is writing to"):
            archive(OvertakenSource(growing_log.source, uri), uri)  # type: ignore[arg-type]
        assert read_log_offsets(ArchiveSource(uri)) == {0: list(range(end))}


def test_commands_read_and_write_object_store(
    share_coordinator: CommandLine, growing_log: GrowingPartition, uri: str
) -> None:
    growing_log.append_records(200)
    log, stored = growing_log.source.text, f"{uri}/archive"
    result = share_coordinator("recovery", "archive", "--from", log, "--to", stored, "--keep", "30d")
    assert result.exit_code == 0, result.err
    from_archive = ("--from", f"archive:{stored}", "--engine", "local")
    assert share_coordinator("recovery", "rebuild", *from_archive, "--to", f"{uri}/states").exit_code == 0
    manifest = json.loads(open_folder(f"{uri}/states").read(MANIFEST))
    assert manifest["files"]["states.parquet"] == manifest["states"] > 0
    states = open_folder(f"{uri}/states").read_parquet("states.parquet")
    assert states.equals(rebuild(LOCAL, growing_log.source).states)
    result = share_coordinator(
        *("recovery", "audit", "--from", log, "--engine", "local", "--to", f"{uri}/audit", "-o", "json"),
        *("--baseline", f"{uri}/states", "--archive", stored),
    )
    assert result.exit_code in (0, 1, 2), result.err
    assert "X3" not in json.loads(result.out)["manifest"]["not_checked"]
    result = share_coordinator("recovery", "rebuild", *from_archive, "--to", f"{uri}/states")
    assert (result.exit_code, "new or empty" in result.err) == (2, True)


def test_baseline_of_periodic_audits_is_kept_in_object_store(growing_log: GrowingPartition, uri: str) -> None:
    growing_log.append_records(100)
    source = growing_log.source
    assert next_baseline(uri, source.text) is None
    for run in ("1", "2", "3"):
        clock = SettableClock()
        clock.ms = int(run)
        audit(LOCAL, source, AuditOptions(to=f"{uri}/{run}"), clock=clock)  # type: ignore[arg-type]
        remove_old_audits(uri, keep=1)
    # Ignore empty folders, which the server also lists.
    assert [run for run in ("1", "2", "3") if (open_folder(uri) / run).names()] == ["3"]
    baseline = next_baseline(uri, source.text)
    assert isinstance(baseline, Baseline)
    assert audit(LOCAL, source, AuditOptions(baseline=baseline)).manifest["baseline"] == baseline.run_id


def test_missing_archive_and_refused_access_are_reported(
    running_s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="it has none"):
        ArchiveSource(f"s3://{BUCKET}/nothing").plan(LogCut())
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    with pytest.raises(LogUnavailable, match="403 Forbidden"):
        ArchiveSource(f"s3://{BUCKET}/refused").plan(LogCut())
