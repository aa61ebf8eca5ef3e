"""Run every command of the documentation, or name the other test that runs it."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, Command, list_anchors, list_commands, list_links
from tests.docs.shell import PageShell, fill_placeholders
from tests.kafka import wait_until
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import standalone_rig

# Commands that another test runs, because they need their own machine, cluster or state.
ELSEWHERE = {
    r"make (run|demo)": "tests/docs/test_readme.py",
    r"make (test|bench.*|lint|install)": ".ci/run",
    r"make (fuzz.*|sanitize|scan-.*)": "Makefile",
    r"share-coordinator demo": "tests/unit/cli/test_demo.py",
    r"share-coordinator recovery .*--from .*": "tests/recovery/test_docs.py",
    r"share-coordinator (recovery .* journal:restored.*|recovery archive --from journal:data .*)"
    r"|share-coordinator serve --data-dir restored": "tests/recovery/test_jobs_on_coordinators.py",
    r"share-coordinator expiry( .*)?": "tests/unit/cli/test_expiry_command.py",
    r"share-coordinator migrate --from .*": "tests/e2e/test_migration.py",
    r"share-coordinator observe .*": "tests/e2e/test_observe.py",
    r"share-coordinator serve --log kafka .*": "tests/topic/test_group_membership.py",
    r"share-coordinator hand-over .*": "tests/topic/test_hand_over.py",
    r"share-coordinator .* --token-file .*": "tests/unit/cli/test_hand_over_command.py",
    r"kafka-(dump-log|console-consumer)\.sh .*": "tests/topic/test_tools.py",
    r"kafka-share-groups\.sh .* --(reset|delete)-offsets.*": "tests/e2e/test_share_consumer.py",
    r"kafka-topics\.sh .* \| grep -x __share_group_state": "tests/e2e/test_cluster_migration.py",
    r"docker(-compose)? .*": "tests/deploy/test_containers.py",
    # Installation from a checkout, because the package is not on a package index.
    r"pip (install '\.\[.*\]'.*|wheel --no-deps \.)": "tests/deploy/test_containers.py",
    r"kafka-storage\.sh random-uuid": "tests/kafka/broker.py",
    r"python -m tests\.limits": "tests/limits/test_hostile_connections.py",
    r"python -m tests\.benchmarks\.record": "tests/unit/benchmarks/test_recording.py",
    # The benchmark command only measures peak memory. The test runs the same Spark jobs, with executors that
    # die.
    r"python -m tests\.benchmarks\.recovery_memory": "tests/recovery/test_spark_cluster.py",
}
# Pages whose commands form one script, which another test runs completely.
SCRIPT_PAGES = {"docs/security.md": "tests/e2e/test_security_page.py"}
# Commands of other programs within sentences are often abbreviated, so they are not run.
MENTIONS_OF_OTHERS = r"(kafka-[a-z-]+\.sh|docker|systemctl|promtool|curl|make) .*"

# tests/docs/test_readme.py runs the commands of README.md.
ALL = [command for command in dict.fromkeys(list_commands()) if command.page != "README.md"]


def is_tested_elsewhere(command: Command) -> bool:
    return (command.page in SCRIPT_PAGES and not command.is_mention) or any(
        re.fullmatch(pattern, command.text) for pattern in ELSEWHERE
    )


TYPED = [command for command in ALL if not command.is_mention and not is_tested_elsewhere(command)]
MENTIONED = [
    command for command in ALL if command.is_mention and command.text.startswith("share-coordinator ")
]


@pytest.fixture(scope="module")
def page_shell(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageShell]:
    """A shell with a cluster whose share group `workers` has consumed records of the topic `orders`."""
    folder, cluster = tmp_path_factory.mktemp("reader"), tmp_path_factory.mktemp("cluster")
    with standalone_rig(newest_jars, cluster, with_cluster=True) as rig:
        rig.client.create_topic("orders")
        rig.client.set_group_config("workers", {"share.auto.offset.reset": "earliest"})
        rig.client.produce("orders", 10)
        consumer = rig.client.share_consumer("workers", "orders")
        records = wait_until(consumer.poll, seconds=120, what="records are delivered")
        consumer.acknowledge(["ACCEPT" if record.offset % 2 else "RELEASE" for record in records])
        consumer.close()
        yield PageShell(rig, newest_jars, folder)


def command_name(command: Command) -> str:
    return f"{command.page}: {command.text}"


@pytest.mark.broker
@pytest.mark.parametrize("command", TYPED, ids=command_name)
def test_command_of_page_succeeds(page_shell: PageShell, command: Command) -> None:
    done = page_shell.run_command(fill_placeholders(command.text))
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", MENTIONED, ids=command_name)
def test_mentioned_command_exists_with_its_options(command: Command, tmp_path: Path) -> None:
    words = shlex.split(re.sub(r"\[[^\]]*\]|[>|].*", "", command.text))
    done = command_help(words)
    for option in (word for word in words if word.startswith("--")):
        assert option in done, f"{option} is no option of {words}"


def command_help(words: list[str]) -> str:
    """Return the help of the command at the start of `words`."""
    from typer.testing import CliRunner

    from coordinator.cli.program import app

    names = [word for word in words[1:] if re.fullmatch(r"[a-z][a-z-]*", word)]
    for end in range(len(names), 0, -1):
        done = CliRunner().invoke(app, [*names[:end], "--help"], env={"COLUMNS": "200"})
        if done.exit_code == 0:
            return done.output
    raise AssertionError(f"{words} is no command")


@pytest.mark.parametrize(("pattern", "where"), ELSEWHERE.items())
def test_command_that_runs_elsewhere_is_in_a_page_and_test_exists(pattern: str, where: str) -> None:
    assert any(re.fullmatch(pattern, command.text) for command in ALL), "no page has such a command any more"
    assert (ROOT / where).exists()


@pytest.mark.parametrize(("page", "where"), SCRIPT_PAGES.items())
def test_page_that_runs_elsewhere_is_named_in_its_test(page: str, where: str) -> None:
    assert (ROOT / page).exists()
    assert Path(page).name in (ROOT / where).read_text("utf-8")


def test_every_command_is_run_or_mentioned() -> None:
    left = [
        command
        for command in ALL
        if command.is_mention
        and command not in MENTIONED
        and not is_tested_elsewhere(command)
        and not re.fullmatch(MENTIONS_OF_OTHERS, command.text)
    ]
    assert left == []


def test_every_link_has_a_target() -> None:
    dead = []
    for page, target in list_links():
        file, _, anchor = target.partition("#")
        there = page.parent / file if file else page
        if not there.exists() or (anchor and there.suffix == ".md" and anchor not in list_anchors(there)):
            dead.append(f"{page.relative_to(ROOT)}: {target}")
    assert dead == []
