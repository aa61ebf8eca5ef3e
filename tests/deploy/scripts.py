"""Run the shell scripts of the manifests that start a broker, without starting the broker."""

import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tests.deploy.compose import MAIN_CLASSES
from tests.kafka.jars import KafkaJars

STORAGE = "/opt/kafka/bin/kafka-storage.sh"
START = "exec /opt/kafka/bin/kafka-server-start.sh"


def run_without_starting_the_broker(
    script: str,
    jars: KafkaJars,
    directory: Path,
    elsewhere: Mapping[str, Path],
    environment: Mapping[str, str],
) -> str:
    """Run `script` in `directory` with Kafka's real storage tool, and return its output.

    Each path in the keys of `elsewhere` is replaced by its value. Instead of starting the broker, the script
    prints the arguments.
    """
    for there, here in elsewhere.items():
        assert there in script, there
        script = script.replace(there, str(here))
    assert STORAGE in script
    assert START in script
    script = script.replace(STORAGE, "storage").replace(START, "echo would start")
    storage = shlex.join(jars.java_command(MAIN_CLASSES["kafka-storage.sh"]))
    done = subprocess.run(
        ["/bin/bash", "-euc", f'storage() {{ {storage} "$@"; }}\n{script}'],
        capture_output=True,
        text=True,
        cwd=directory,
        env={**os.environ, **environment},
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
