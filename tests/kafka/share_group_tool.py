"""Run Kafka's unmodified `kafka-share-groups.sh`."""

import subprocess
from typing import NamedTuple

from tests.kafka.jars import KafkaJars

_TOOL = "org.apache.kafka.tools.consumer.group.ShareGroupCommand"


class DescribedOffset(NamedTuple):
    """A line of the tool's output for `--describe --offsets`.

    A field is None if the tool prints a dash or has no such column.
    """

    group: str
    topic: str
    partition: int
    start_offset: int | None
    lag: int | None


class ShareGroupTool:
    """Runs `kafka-share-groups.sh` for the share groups of one cluster, once in each method."""

    def __init__(self, jars: KafkaJars, bootstrap: str) -> None:
        self._jars = jars
        self._bootstrap = bootstrap

    def describe_offsets(self, group: str) -> list[DescribedOffset]:
        """Return the lines of the tool's output for `--describe --offsets`."""
        printed = self.run("--describe", "--offsets", "--group", group)
        lines = [line.split() for line in printed.splitlines()]
        header = next((line for line in lines if line[:1] == ["GROUP"]), [])
        rows = [dict(zip(header, line, strict=True)) for line in lines if line[:1] == [group]]
        return [
            DescribedOffset(
                row["GROUP"],
                row["TOPIC"],
                int(row["PARTITION"]),
                _parse_number(row["START-OFFSET"]),
                _parse_number(row.get("LAG", "-")),
            )
            for row in rows
        ]

    def reset_offsets_to_earliest(self, group: str, topic: str) -> str:
        return self.run("--reset-offsets", "--to-earliest", "--execute", "--group", group, "--topic", topic)

    def delete_offsets(self, group: str, topic: str) -> str:
        return self.run("--delete-offsets", "--group", group, "--topic", topic)

    def delete(self, group: str) -> str:
        return self.run("--delete", "--group", group)

    def list(self) -> list[str]:
        return self.run("--list").split()

    def run(self, *options: str) -> str:
        """Run the tool and return its output. If the tool reports an error, the test fails."""
        done = self._jars.run(_TOOL, "--bootstrap-server", self._bootstrap, *options)
        assert not _has_failed(done), f"{options}: {done.stdout}{done.stderr}"
        return done.stdout

    def run_failing(self, *options: str) -> str:
        done = self._jars.run(_TOOL, "--bootstrap-server", self._bootstrap, *options)
        assert _has_failed(done), f"{options}: {done.stdout}{done.stderr}"
        return done.stdout


def _has_failed(done: "subprocess.CompletedProcess[str]") -> bool:
    # The tool's exit code is 0 after most errors.
    return done.returncode != 0 or "Error:" in done.stdout


def _parse_number(cell: str) -> int | None:
    return None if cell == "-" else int(cell)
