"""docker-compose.yml, as its tool understands it, and what the scripts in Kafka's image start."""

import os
import shlex
import subprocess
from typing import Any

import yaml

from tests.deploy.files import COMPOSE_FILE
from tests.kafka.toolchain import program_path

KAFKA_SERVICES = ("kafka", "producer", "consumer")
_PROJECT = "share-groups"

# What Kafka's scripts start.
MAIN_CLASSES = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def compose(*arguments: str, environment: dict[str, str] | None = None, seconds: float = 300) -> str:
    """Run docker-compose on our file and return what it printed. An error fails the test."""
    program = program_path("docker-compose")
    assert program is not None, "docker-compose is not installed"
    done = subprocess.run(
        [program, "-p", _PROJECT, "-f", str(COMPOSE_FILE), *arguments],
        capture_output=True,
        text=True,
        env={**os.environ, **(environment or {})},
        timeout=seconds,
        check=False,
    )
    assert done.returncode == 0, f"docker-compose {shlex.join(arguments)}:\n{done.stdout}{done.stderr}"
    return done.stdout


def composed() -> dict[str, Any]:
    """Return the services as docker-compose understands them."""
    services: dict[str, Any] = yaml.safe_load(compose("config"))["services"]
    return services


def release_of(image: str) -> str:
    """Return the tag of an image."""
    return image.rpartition(":")[2]
