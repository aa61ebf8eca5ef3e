"""The command `migrate`: output, errors and exit codes."""

import json
from pathlib import Path

import pytest

from coordinator.operate.migration.migrate import migrate_states
from protocol.state_records import StateRecord, topic_id_text
from tests.builders import TOPIC_ID
from tests.unit.cli.command_line import CommandLine
from tests.unit.cli.conftest import share_coordinator as share_coordinator
from tests.unit.log.kafka_logs import run_in_real_time
from tests.unit.migration.locations import (
    EXECUTE,
    MigrationLogs,
    ignore_progress,
    make_journal_target,
    make_key,
    make_sample_records,
    make_snapshot,
)

EVIL, ESCAPED = "x\x1b[31mred\x07\nnew", r"x\x1b[31mred\x07\nnew"


@pytest.fixture
def journal_folder(tmp_path: Path) -> Path:
    """A journal with the state of several share-partitions."""
    run_in_real_time(
        migrate_states(
            MigrationLogs(make_sample_records(6)).reader(),
            make_journal_target(tmp_path / "from"),
            EXECUTE,
            ignore_progress,
        )
    )
    return tmp_path / "from"


@pytest.mark.slow
def test_migrate_reports_a_dry_run_an_execution_and_a_repetition(
    share_coordinator: CommandLine, journal_folder: Path
) -> None:
    to = journal_folder.with_name("to")
    places = ("--from", f"journal:{journal_folder}", "--to", f"journal:{to}")
    outcome = share_coordinator("migrate", *places)
    assert (outcome.exit_code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].split() == ["GROUP", "TOPIC-ID", "SHARE-PARTITIONS", "BATCHES", "START-OFFSETS", "STEP"]
    assert lines[1].split() == ["group", topic_id_text(TOPIC_ID), "2", "4", "101", "to", "500", "2", "copy"]
    assert lines[-2].endswith(
        ": 5 share-partitions; 5 would be copied, 0 replaced, 0 deleted, 0 omitted, 0 were present already"
    )
    assert lines[-1] == "Dry run: nothing was written. Repeat with --execute."
    assert not to.exists()

    outcome = share_coordinator("migrate", *places, "--execute")
    assert (outcome.exit_code, outcome.err) == (0, "")
    assert outcome.out.splitlines()[-1] == "Source and target have the same state of 5 share-partitions."

    shown = json.loads(share_coordinator("migrate", *places, "--execute", "-o", "json").out)
    assert (shown["executed"], shown["verified"], shown["differences"]["count"]) == (True, True, 0)
    assert shown["counts"]["already there"] == 5
    assert shown["groups"][0]["partitions"][0] == {
        "partition": 1,
        "start_offset": 101,
        "state_epoch": 3,
        "leader_epoch": 6,
        "delivery_complete_count": 7,
        "state_batches": 2,
        "step": "already there",
    }


@pytest.mark.slow
def test_migrate_and_recovery_escape_control_characters(
    share_coordinator: CommandLine, tmp_path: Path
) -> None:
    logs = MigrationLogs([StateRecord(make_key(number, EVIL), make_snapshot(number)) for number in range(2)])
    run_in_real_time(
        migrate_states(logs.reader(), make_journal_target(tmp_path / "from"), EXECUTE, ignore_progress)
    )
    run_in_real_time(
        migrate_states(
            MigrationLogs(make_sample_records()).reader(),
            make_journal_target(tmp_path / "to"),
            EXECUTE,
            ignore_progress,
        )
    )
    source = ("--from", f"journal:{tmp_path / 'from'}")
    done = share_coordinator("migrate", *source, "--to", f"journal:{tmp_path / 'new'}")
    assert [line.split()[0] for line in done.out.splitlines()[1:3]] == [ESCAPED] * 2
    refused = share_coordinator("migrate", "--from", f"journal:{tmp_path / 'to'}", *("--to", source[1]))
    assert rf"x\x1b[31mred\x07 new:{topic_id_text(TOPIC_ID)}:1" in refused.err
    for words in (
        ("rebuild", *source),
        ("audit", *source),
        ("rewrite", *source, "--to", f"journal:{tmp_path / 'new'}", "--engine", "local"),
        ("explain", EVIL, topic_id_text(TOPIC_ID), "1", *source),
    ):
        outcome = share_coordinator("recovery", *words)
        assert ESCAPED in outcome.out + outcome.err or words[0] == "audit", words
        assert all(line.isprintable() for line in (outcome.out + outcome.err).split("\n")), words


def test_refused_migration_prints_one_line_and_exits_with_code_1(
    share_coordinator: CommandLine, tmp_path: Path
) -> None:
    outcome = share_coordinator("migrate", "--from", f"journal:{tmp_path}", "--to", "journal:elsewhere")
    assert outcome == (1, "", "share-coordinator: the source does not exist\n")


@pytest.mark.parametrize(
    ("places", "said"),
    [
        (("rpc:a:1", "journal:x"), "no RPC of a coordinator lists its share-partitions"),
        (("journal:x", "x"), "--to=x cannot be used: it must be kafka:TOPIC, journal:DIR or rpc:HOST:PORT"),
        (("journal:x", "rpc:nowhere"), "rpc:HOST:PORT"),
        (("journal:x", "journal:./x"), "another place than --from"),
        (("kafka:__consumer_offsets", "journal:x"), "a topic that a share-coordinator keeps state in"),
        (("kafka:a b", "journal:x"), "a topic that a share-coordinator keeps state in"),
        (("kafka:state", "journal:x"), "bootstrap.servers is missing"),
    ],
)
def test_invalid_source_or_target_exits_with_code_2(
    share_coordinator: CommandLine, places: tuple[str, str], said: str
) -> None:
    outcome = share_coordinator("migrate", "--from", places[0], "--to", places[1])
    assert (outcome.exit_code, outcome.out) == (2, "")
    assert said in outcome.err
    assert len(outcome.err.splitlines()) == 1


@pytest.mark.parametrize("in_a_file", [False, True])
def test_connection_settings_of_a_coordinator_are_checked_first(
    share_coordinator: CommandLine, journal_folder: Path, tmp_path: Path, in_a_file: bool
) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SSL\nssl.ca.location=/nowhere\n")
    flags = ["--security-protocol", "SSL", "--ssl-ca-location", "/nowhere"]
    if in_a_file:
        flags = ["--coordinator-config", str(file)]
    outcome = share_coordinator(
        "migrate", "--from", f"journal:{journal_folder}", "--to", "rpc:127.0.0.1:1", *flags
    )
    assert outcome.exit_code == 2
    assert outcome.err.startswith("share-coordinator: ssl.ca.location=/nowhere cannot be used: ")
