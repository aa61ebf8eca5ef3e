"""docker-compose.yml, brought up with images that stand in for those of a registry.

Nothing in it is changed but the images: where Kafka's image has a distribution of Kafka, the stand-in has the
jars that other tests run, and scripts of the same names.
"""

import os
import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from tests.deploy.engine import PYTHON_IMAGE, Engine
from tests.deploy.files import COMPOSE_FILE
from tests.kafka.jars import KafkaJars, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.toolchain import program_path

# Grafana is nowhere to be had.
SERVICES = ("splitter", "coordinator", "kafka", "producer", "consumer", "prometheus")
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


class Stack:
    """The services of docker-compose.yml, up and running."""

    def __init__(self, engine: Engine, image: str, directory: Path) -> None:
        """Prepare them, the coordinator from `image`; nothing is started."""
        kafka_port, self.http_port, self.prometheus_port, grafana_port = free_ports(4)
        jars = fetch_jars(release_of(composed()["kafka"]["image"]))
        self._override = directory / "stand-ins.yml"
        self._override.write_text(yaml.safe_dump(_stand_ins(jars, directory)))
        self._environment = {
            **engine.environment,
            "COORDINATOR_IMAGE": image,
            "HAPROXY_IMAGE": PYTHON_IMAGE,
            "KAFKA_IMAGE": _kafka_image(engine, directory),
            "PROMETHEUS_IMAGE": PYTHON_IMAGE,
            "KAFKA_PORT": str(kafka_port),
            "HTTP_PORT": str(self.http_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(grafana_port),
        }

    def run(self, *arguments: str) -> str:
        """Run a command of docker-compose on these services."""
        return compose("-f", str(self._override), *arguments, environment=self._environment)


@contextmanager
def running_stack(engine: Engine, image: str, directory: Path) -> Iterator[Stack]:
    """Bring everything up; at the end nothing of it is left."""
    stack = Stack(engine, image, directory)
    try:
        stack.run("up", "--detach", "--no-build", *SERVICES)
        yield stack
    finally:
        stack.run("down", "--volumes", "--timeout", "10")


def _kafka_image(engine: Engine, directory: Path) -> str:
    """Make the stand-in for Kafka's image: its user and its folder; the rest comes with volumes."""
    recipe = directory / "kafka"
    recipe.mkdir()
    (recipe / "Dockerfile").write_text(
        f"FROM {PYTHON_IMAGE}\nRUN install -d -o 1000 -g 1000 /var/lib/kafka/data\nUSER 1000:1000\n"
    )
    engine.docker("build", "-t", "stand-in/kafka", str(recipe))
    return "stand-in/kafka"


def _stand_ins(jars: KafkaJars, directory: Path) -> dict[str, Any]:
    """Return a second compose file: what the images lack, from this machine."""
    java = Path(program_path("java") or "").resolve()
    home = java.parents[1]
    scripts = directory / "bin"
    scripts.mkdir()
    for name, main_class in MAIN_CLASSES.items():
        script = scripts / name
        script.write_text(
            f"#!/bin/bash\nexec {java} -XX:+UseSerialGC -XX:TieredStopAtLevel=1 $KAFKA_HEAP_OPTS "
            f'$KAFKA_LOG4J_OPTS -cp "/opt/kafka/libs/*" {main_class} "$@"\n'
        )
        script.chmod(0o755)
    # Debian's Java keeps its configuration there.
    java_folders = [home, *Path("/etc").glob("java-*")]
    kafka_parts = [
        f"{scripts}:/opt/kafka/bin:ro",
        f"{jars.directory}:/opt/kafka/libs:ro",
        *(f"{folder}:{folder}:ro" for folder in java_folders),
    ]
    prometheus = program_path("prometheus")
    command = ["--config.file=/etc/prometheus/prometheus.yml", "--storage.tsdb.path=/prometheus"]
    services: dict[str, Any] = {name: {"volumes": kafka_parts} for name in KAFKA_SERVICES}
    services["splitter"] = {"user": "99"}
    services["prometheus"] = {
        "entrypoint": ["/bin/prometheus"],
        "command": command,
        "volumes": [f"{prometheus}:/bin/prometheus:ro"],
    }
    return {"services": services}
