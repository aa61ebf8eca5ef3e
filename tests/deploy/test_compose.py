"""Test that docker-compose accepts docker-compose.yml, and that the services use the files of deploy/."""

import re
from pathlib import Path
from typing import Any

import pytest

from coordinator.config import load_config
from tests.deploy.compose import KAFKA_SERVICES, image_tag, resolve_services, run_compose
from tests.deploy.files import BROKER_LOGGING, GRAFANA, HAPROXY_CFG, PROMETHEUS, read_yaml
from tests.deploy.scripts import run_without_starting_the_broker
from tests.kafka import RELEASES, fetch_jars
from tests.kafka.broker import SINGLE
from tests.kafka.jars import REPOSITORY

with_compose = pytest.mark.needs("docker-compose")

NAMESPACE = "service:splitter"


def list_mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the read-only files and directories of a service, by their path in the container."""
    volumes = [volume.split(":") for volume in service["volumes"]]
    return {there: here for here, there, mode in volumes if mode == "ro"}


@with_compose
def test_docker_compose_accepts_file() -> None:
    assert run_compose("config", "--quiet") == ""


@with_compose
def test_services_mount_files_of_deploy() -> None:
    services = resolve_services()
    assert list_mounts(services["splitter"]) == {"/usr/local/etc/haproxy/haproxy.cfg": str(HAPROXY_CFG)}
    assert list_mounts(services["kafka"]) == {
        "/etc/share-groups/server.properties": str(SINGLE),
        "/etc/share-groups/log4j2.properties": str(BROKER_LOGGING),
    }
    assert list_mounts(services["prometheus"]) == {
        f"/etc/prometheus/{name}": str(PROMETHEUS / name) for name in ("prometheus.yml", "alerts.yml")
    }
    assert list_mounts(services["grafana"]) == {
        "/etc/grafana/provisioning": str(GRAFANA / "provisioning"),
        "/etc/grafana/dashboards": str(GRAFANA / "dashboards"),
    }
    assert "environment" not in services["splitter"], "the defaults in haproxy.cfg must be used"


@with_compose
def test_coordinator_addresses_match_haproxy_and_prometheus() -> None:
    services = resolve_services()
    config = load_config(environ=services["coordinator"]["environment"]).config
    default = re.search(r"presetenv COORDINATOR_ADDRESS (\S+)", HAPROXY_CFG.read_text("utf-8"))
    assert default is not None
    assert str(config.listen) == str(config.advertise) == default[1]
    assert {services[name]["network_mode"] for name in ("coordinator", *KAFKA_SERVICES)} == {NAMESPACE}
    (job,) = read_yaml(PROMETHEUS / "prometheus.yml")["scrape_configs"]
    host, _, port = job["static_configs"][0]["targets"][0].partition(":")
    assert host in services["splitter"]["networks"]["default"]["aliases"]
    assert (config.http.host, config.http.port) == ("0.0.0.0", int(port))
    assert f"127.0.0.1:{port}:{port}/tcp" in services["splitter"]["ports"]


@with_compose
def test_services_are_confined_and_images_are_releases() -> None:
    for name, service in resolve_services().items():
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        if "build" not in service:
            assert re.fullmatch(r"[a-z/]+:v?\d+(\.\d+)+", service["image"]), name
    assert image_tag(resolve_services()["kafka"]["image"]) in RELEASES


@with_compose
@pytest.mark.broker
def test_storage_is_formatted_at_first_start_and_reused(tmp_path: Path) -> None:
    kafka = resolve_services()["kafka"]
    jars = fetch_jars(image_tag(kafka["image"]))
    elsewhere = {"/etc/share-groups/server.properties": SINGLE}
    for said in ("Formatting", "already formatted"):
        printed = run_without_starting_the_broker(kafka["command"][2], jars, tmp_path, elsewhere, {})
        assert said in printed
        assert f"would start {SINGLE}" in printed
    assert (tmp_path / "data" / "kafka" / "meta.properties").exists()


@with_compose
def test_base_image_is_pinned_by_the_same_digest() -> None:
    dockerfile = (REPOSITORY / "Dockerfile").read_text("utf-8")
    pinned = re.search(r"^ARG PYTHON_IMAGE=(python:3\.\d+-slim@sha256:[0-9a-f]{64})$", dockerfile, re.M)
    assert pinned is not None
    assert resolve_services()["coordinator"]["build"]["args"]["PYTHON_IMAGE"] == pinned[1]
    assert set(re.findall(r"^FROM (\S+)", dockerfile, re.M)) - {"${PYTHON_IMAGE}"} <= {
        *re.findall(r" AS (\S+)$", dockerfile, re.M)
    }


@with_compose
def test_dockerfile_has_named_targets() -> None:
    stages = re.findall(r"^FROM \S+ AS (\S+)$", (REPOSITORY / "Dockerfile").read_text("utf-8"), re.M)
    assert {resolve_services()["coordinator"]["build"]["target"], "serve", "recovery", "spark"} <= {*stages}
