"""Run the commands of the documentation in a shell with access to a cluster and a coordinator."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from tests.docs.pages import ROOT
from tests.kafka.jars import KafkaJars
from tests.kafka.rig import StandaloneRig

_BIN = Path(sys.executable).parent
# The main classes of the scripts in Kafka's distribution.
_KAFKA_TOOLS = {
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-groups.sh": "org.apache.kafka.tools.GroupsCommand",
    "kafka-share-groups.sh": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
}
_SECONDS_MAX = 180


class PageShell:
    """A shell in a directory, with the commands of the documentation in its PATH."""

    def __init__(self, rig: StandaloneRig, jars: KafkaJars, folder: Path) -> None:
        self._folder = folder
        self._replacements = {
            "127.0.0.1:9095": f"127.0.0.1:{rig.coordinator.port}",
            "127.0.0.1:9096": f"127.0.0.1:{rig.coordinator.http_port}",
            "HOST:9096": f"127.0.0.1:{rig.coordinator.http_port}",
            "kafka-1:9092,kafka-2:9092": rig.broker.bootstrap,
            "kafka-1:9092": rig.broker.bootstrap,
        }
        self._environment = {
            **os.environ,
            "SHARE_COORDINATOR_URL": f"http://127.0.0.1:{rig.coordinator.http_port}",
            "SHARE_COORDINATOR_BOOTSTRAP_SERVERS": rig.broker.bootstrap,
            "COLUMNS": "200",
        }
        self._environment["PATH"] = f"{folder / 'bin'}:{_BIN}:{os.environ['PATH']}"
        (folder / "bin").mkdir()
        for name, tool in _KAFKA_TOOLS.items():
            script = folder / "bin" / name
            script.write_text(f"#!/bin/sh\nexec java -cp '{jars.directory}/*' {tool} \"$@\"\n")
            script.chmod(0o755)
        shutil.copytree(ROOT / "deploy", folder / "deploy")
        # A running process has the journal open for writing, so the shell gets a copy.
        shutil.copytree(rig.coordinator.data, folder / "data")

    def run_command(self, command: str) -> "subprocess.CompletedProcess[str]":
        """Run a command, with the addresses of the documentation replaced by those of this cluster."""
        for theirs, ours in self._replacements.items():
            command = command.replace(theirs, ours)
        return subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self._folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )


def fill_placeholders(command: str) -> str:
    """Return a command without optional parts, and with values for its placeholders."""
    command = re.sub(r"\s*\[[^\]]*\]", "", command)
    for name, value in (("GROUP", "workers"), ("TOPIC", "orders"), ("PARTITION", "0"), ("DIR", "data")):
        command = re.sub(rf"\b{name}\b", value, command)
    return command
