"""Test that a real Prometheus scrapes a coordinator with TLS and a token, as prometheus.yml describes."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.files import PROMETHEUS
from tests.deploy.prometheus import PrometheusServer
from tests.kafka import wait_until
from tests.unit.admin.admin_server import serve_admin
from tests.unit.admin.test_http_security import CertificateFiles
from tests.unit.admin.test_tokens import READING

pytestmark = pytest.mark.needs("prometheus")


def read_access_settings(ca_file: Path, token_file: Path) -> dict[str, Any]:
    """Return the settings in the comments of prometheus.yml, with these files."""
    text = (PROMETHEUS / "prometheus.yml").read_text("utf-8")
    told = "\n".join(re.findall(r"^ +#   (.+)$", text.partition("static_configs:")[0], re.MULTILINE))
    settings: dict[str, Any] = yaml.safe_load(told)
    assert set(settings) == {"scheme", "tls_config", "authorization"}
    settings["tls_config"]["ca_file"] = str(ca_file)
    settings["authorization"]["credentials_file"] = str(token_file)
    return settings


@pytest.mark.parametrize(("token", "is_up"), [(READING, 1), ("wrong-0123456789-wrong", 0)])
def test_prometheus_scrapes_with_valid_token_only(tmp_path: Path, token: str, is_up: int) -> None:
    files = CertificateFiles(tmp_path)
    token_file = tmp_path / "prometheus.token"
    token_file.write_text(token + "\n")
    with serve_admin(**files.settings(http_token_file=str(files.tokens))) as coordinator:
        target = coordinator.url.removeprefix("https://")
        server = PrometheusServer(
            tmp_path, [target], access=read_access_settings(files.authority.certificate, token_file)
        )
        try:
            server.start()
            wait_until(lambda: server.query(f"up == {is_up}"), seconds=120, what="it has scraped")
            refused = coordinator.coordinator.metrics.registry.get_sample_value

            def is_refused() -> bool:
                return bool(refused("share_coordinator_http_refused_total", {"status": "401"}))

            # On a busy machine, a scrape may time out; it is then neither refused nor successful.
            if is_up:
                wait_until(
                    lambda: server.query("share_coordinator_ready"), seconds=120, what="it has figures"
                )
                assert not is_refused()
            else:
                wait_until(is_refused, seconds=120, what="it is refused")
                assert not server.query("share_coordinator_ready")
        finally:
            server.kill()
