"""Parse the files of deploy/."""

from configparser import ConfigParser
from pathlib import Path
from typing import Any

import yaml

from tests.kafka.jars import REPOSITORY

DEPLOY = REPOSITORY / "deploy"
COMPOSE_FILE = REPOSITORY / "docker-compose.yml"
HAPROXY_CFG = DEPLOY / "haproxy" / "haproxy.cfg"
BROKER_LOGGING = DEPLOY / "kafka" / "log4j2.properties"
PROMETHEUS = DEPLOY / "prometheus"
ALERTS = PROMETHEUS / "alerts.yml"
GRAFANA = DEPLOY / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "share-coordinator.json"


def read_yaml(path: Path) -> Any:
    """Return the only YAML document of a file."""
    return yaml.safe_load(path.read_text("utf-8"))


def yaml_documents(path: Path) -> list[dict[str, Any]]:
    """Return all YAML documents of a file."""
    return list(yaml.safe_load_all(path.read_text("utf-8")))


def container_environment(container: dict[str, Any], pod_fields: dict[str, str]) -> dict[str, str]:
    """Return the environment of a container in a pod with these fields, as Kubernetes sets it."""
    values: dict[str, str] = {}
    for variable in container["env"]:
        source = variable.get("valueFrom")
        text = pod_fields[source["fieldRef"]["fieldPath"]] if source else variable["value"]
        # A variable can refer only to variables above it.
        for name, value in values.items():
            text = text.replace(f"$({name})", value)
        assert "$(" not in text
        values[variable["name"]] = text
    return values


def read_unit(path: Path) -> ConfigParser:
    """Return the sections of a systemd unit."""
    parsed = ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(path)
    return parsed


def alert_rules() -> list[dict[str, Any]]:
    return [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"] if "alert" in rule]


def recording_rules() -> list[dict[str, Any]]:
    """Return the recording rules, which the alerts use for properties of an installation."""
    return [rule for group in read_yaml(ALERTS)["groups"] for rule in group["rules"] if "record" in rule]
