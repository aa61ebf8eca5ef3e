"""Run a real Prometheus with the files of deploy/prometheus, and find metric names in PromQL."""

import json
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import promql_parser
import yaml

from tests.deploy.files import ALERTS, PROMETHEUS, read_yaml
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess
from tests.kafka.toolchain import program_path

# The interval is short, so that rates exist after some seconds, but long enough for a busy machine.
SCRAPE_INTERVAL = "2s"


class PrometheusServer:
    """A Prometheus that scrapes `targets` (host:port) under the shipped job name."""

    def __init__(
        self,
        directory: Path,
        targets: Sequence[str],
        *,
        observers: Sequence[str] = (),
        access: Mapping[str, Any] | None = None,
    ) -> None:
        """Prepare Prometheus without starting it. Only addresses and intervals differ from the shipped files.

        `observers` are scraped as a separate job. `access` has the credentials for the coordinators' job.
        """
        (self._port,) = free_ports(1)
        config = read_yaml(PROMETHEUS / "prometheus.yml")
        config["global"] = dict.fromkeys(config["global"], SCRAPE_INTERVAL)
        (job,) = config["scrape_configs"]
        job |= access or {}
        job["static_configs"] = [{"targets": list(targets)}]
        if observers:
            job_of_observers = {
                "job_name": "share-coordinator-observer",
                "static_configs": [{"targets": list(observers)}],
            }
            config["scrape_configs"].append(job_of_observers)
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        (directory / "alerts.yml").write_text(ALERTS.read_text("utf-8"))
        program = program_path("prometheus")
        assert program is not None, "prometheus is not installed"
        self.process = ChildProcess(
            "Prometheus",
            [
                program,
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'series'}",
                f"--web.listen-address=127.0.0.1:{self._port}",
            ],
            directory / "prometheus.log",
        )

    def start(self) -> None:
        """Start Prometheus and wait until it is ready."""
        self.process.start()
        self.process.wait_ready(lambda: self.process.count_logged("Server is ready"), seconds=120)

    def kill(self) -> None:
        self.process.kill()

    def query(self, expression: str) -> list[dict[str, Any]]:
        """Return the current series of an expression, each with `metric` and `value`."""
        data = self.fetch_api_data("query", query=expression)
        assert data["resultType"] == "vector", expression
        result: list[dict[str, Any]] = data["result"]
        return result

    def fetch_api_data(self, what: str, **parameters: str) -> Any:
        """Return the data of an API response. Raises HTTPError if the API reports an error."""
        url = f"http://127.0.0.1:{self._port}/api/v1/{what}?{urlencode(parameters)}"
        with urllib.request.urlopen(url, timeout=120) as answer:
            return json.load(answer)["data"]


def find_metric_names(expression: str) -> set[str]:
    """Return the names of all metrics in a PromQL expression. Raises ValueError for an invalid expression."""
    names: set[str] = set()

    def visit_node(node: Any) -> bool:
        if isinstance(node, promql_parser.VectorSelector):
            assert node.name is not None, f"a selector without a name: {expression}"
            names.add(node.name)
        elif isinstance(node, promql_parser.MatrixSelector):
            visit_node(node.vector_selector)
        return True

    promql_parser.walk(promql_parser.parse(expression), visit_node)
    return names
