"""Run docker-compose.yml with docker-compose."""

import os
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import yaml

from tests.deploy.files import COMPOSE_FILE
from tests.kafka.ports import free_ports
from tests.kafka.toolchain import program_path

KAFKA_SERVICES = ("kafka", "producer", "consumer")
_PROJECT = "share-groups"

# The main class of each script of Kafka that a service runs.
MAIN_CLASSES = {
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-console-share-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleShareConsumer",
    "kafka-server-start.sh": "kafka.Kafka",
    "kafka-storage.sh": "kafka.tools.StorageTool",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
}


def run_compose(*arguments: str, environment: Mapping[str, str] | None = None, seconds: float = 900) -> str:
    """Run docker-compose on the shipped file and return its output. An error fails the test."""
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


def resolve_services() -> dict[str, Any]:
    services: dict[str, Any] = yaml.safe_load(run_compose("config"))["services"]
    return services


def image_tag(image: str) -> str:
    return image.rpartition(":")[2]


class ComposeStack:
    """The services of docker-compose.yml in an engine.

    Environment variables set all values that differ from those in docker-compose.yml.
    """

    # All services but Grafana, for which there is no stand-in image.
    SERVICES = ("splitter", "coordinator", *KAFKA_SERVICES, "prometheus")

    def __init__(self, engine_environment: Mapping[str, str], images: Mapping[str, str]) -> None:
        """Prepare the services in the engine of this environment; `images` maps variables to image names."""
        kafka_port, self.http_port, self.prometheus_port, grafana_port = free_ports(4)
        self._environment = {
            **engine_environment,
            **images,
            "KAFKA_PORT": str(kafka_port),
            "HTTP_PORT": str(self.http_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
            "GRAFANA_PORT": str(grafana_port),
        }

    def run(self, *arguments: str) -> str:
        """Run a docker-compose command on these services."""
        return run_compose(*arguments, environment=self._environment)

    def status_and_logs(self) -> str:
        """Return the status of the services and the end of their output, for error messages."""
        return self.run("ps") + self.run("logs", "--no-color", "--tail", "30")


@contextmanager
def running_stack(engine_environment: Mapping[str, str], images: Mapping[str, str]) -> Iterator[ComposeStack]:
    """Start all services; remove them at the end."""
    stack = ComposeStack(engine_environment, images)
    try:
        try:
            stack.run("up", "--detach", "--no-build", *ComposeStack.SERVICES)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{stack.status_and_logs()}") from None
        yield stack
    finally:
        stack.run("down", "--volumes", "--timeout", "5")
