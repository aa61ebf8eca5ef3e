"""Test the files that deploy the periodic audit and the periodic archive."""

import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.deploy.files import COMPOSE_FILE, DEPLOY, PROMETHEUS, read_yaml, yaml_documents
from tests.deploy.test_kubernetes import OLDEST
from tests.unit.cli.command_line import CommandLine

EACH_JOB = pytest.mark.parametrize("job", ["audit", "archive"])


def compose_service(job: str) -> dict[str, Any]:
    service: dict[str, Any] = read_yaml(COMPOSE_FILE)["services"][job]
    return service


def kubernetes_pod(job: str) -> dict[str, Any]:
    (template,) = (
        each["spec"]["template"]
        for each in yaml_documents(DEPLOY / "spark" / f"{job}.yaml")
        if each["kind"] == "Deployment"
    )
    found: dict[str, Any] = template
    return found


def job_arguments(job: str, file: str) -> list[str]:
    """Return the arguments of the command that a file runs."""
    if file == "compose":
        arguments = compose_service(job)["command"]
    else:
        (container,) = kubernetes_pod(job)["spec"]["containers"]
        arguments = container["args"]
    found: list[str] = arguments
    return found


def optional_scrape_jobs() -> dict[str, str]:
    """Return the target of each scrape job that is a comment in prometheus.yml."""
    text = (PROMETHEUS / "prometheus.yml").read_text("utf-8")
    (commented,) = re.findall(r"(?ms)^  # If share-coordinator observe.*", text)
    lines = [line.removeprefix("  # ") for line in commented.splitlines() if not line.startswith("  # If")]
    return {
        each["job_name"]: each["static_configs"][0]["targets"][0] for each in yaml.safe_load("\n".join(lines))
    }


@EACH_JOB
@pytest.mark.parametrize("file", ["compose", "kubernetes"])
def test_command_is_accepted_and_serves_metrics_to_prometheus(
    job: str, file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    periods: list[tuple[float, str]] = []

    def record_period(*_: object, every_s: float, listen: object, **more: object) -> None:
        periods.append((every_s, str(listen)))

    monkeypatch.setattr("coordinator.recovery.continuous.run_periodically", record_period)
    arguments = [each.replace(":/journal", f":{tmp_path}") for each in job_arguments(job, file)]
    outcome = CommandLine(monkeypatch, capsys)(*arguments)
    assert (outcome.exit_code, outcome.err) == (0, "")
    _, _, port = optional_scrape_jobs()[f"share-coordinator-{job}"].partition(":")
    assert periods == [(300, f"0.0.0.0:{port}")]


@EACH_JOB
def test_compose_service_is_reachable_by_prometheus_and_reads_the_journal(job: str) -> None:
    service = compose_service(job)
    assert service["profiles"] == [job]
    (alias,) = service["networks"]["default"]["aliases"]
    assert alias == optional_scrape_jobs()[f"share-coordinator-{job}"].partition(":")[0]
    data, results = service["volumes"]
    assert data == "coordinator-data:/journal:ro"
    assert results.endswith(":/data")
    assert results.partition(":")[0] in read_yaml(COMPOSE_FILE)["volumes"]
    assert (service["build"]["target"], service["restart"]) == ("recovery", "unless-stopped")


@EACH_JOB
@pytest.mark.parametrize("release", [OLDEST, kubernetes_validate.latest_version()])
def test_manifest_matches_kubernetes_schemas(job: str, release: str) -> None:
    for document in yaml_documents(DEPLOY / "spark" / f"{job}.yaml"):
        kubernetes_validate.validate(document, release, strict=True)


@EACH_JOB
def test_pod_is_confined_and_names_its_metrics_port(job: str) -> None:
    template = kubernetes_pod(job)
    spec = template["spec"]
    (container,) = spec["containers"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    (port,) = (each["containerPort"] for each in container["ports"])
    assert template["metadata"]["annotations"] == {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(port),
    }
    assert f"--metrics-listen=0.0.0.0:{port}" in container["args"]
