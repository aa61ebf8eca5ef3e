"""Test that the notebooks in deploy/spark run, and that their results equal those of the commands."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from coordinator.recovery import api
from coordinator.recovery.audit import AuditOptions, audit
from coordinator.recovery.engines import LocalEngine
from coordinator.recovery.sources import open_source
from tests.recovery.conftest import SPARK_OPTIONS
from tests.recovery.test_docs import write_example_log

NOTEBOOKS = Path(__file__).parents[2] / "deploy" / "spark"

pytestmark = pytest.mark.slow


@pytest.fixture
def log(tmp_path: Path) -> str:
    """A log in which two groups have lost state."""
    write_example_log(tmp_path / "log")
    return f"segments:{tmp_path / 'log'}"


def run_notebook(name: str, log: str, folder: Path) -> list[str]:
    """Execute a notebook in a kernel process; return the text that each code cell prints."""
    settings = " ".join(f"--conf '{name}={value}'" for name, value in SPARK_OPTIONS.items())
    environment = {
        **os.environ,
        "STATE_LOG": log,
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_SUBMIT_ARGS": f"--master local[2] {settings} pyspark-shell",
        "JUPYTER_PLATFORM_DIRS": "1",
        "IPYTHONDIR": str(folder),
    }
    program = Path(sys.executable).with_name("jupyter-execute")
    command = [str(program), f"--output={folder / name}", str(NOTEBOOKS / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4_000:]
    cells = json.loads((folder / name).read_text("utf-8"))["cells"]
    printed = []
    for cell in cells:
        outputs = cell.get("outputs", [])
        texts = [output.get("text") or output.get("data", {}).get("text/plain", "") for output in outputs]
        printed.append("".join(line for text in texts for line in text))
    return printed


@pytest.mark.spark
def test_notebook_names_groups_that_lost_state(log: str, tmp_path: Path) -> None:
    cells = run_notebook("lost-state.ipynb", log, tmp_path)
    found = audit(LocalEngine(1), open_source(log), AuditOptions()).findings.to_pylist()
    critical = [row for row in found if row["severity"] == "critical" and row["group_id"]]
    groups = {row["group_id"] for row in critical}
    assert len(groups) == 2
    lines = [line.split("|")[1].strip() for line in cells[3].splitlines() if line.startswith("|")]
    assert set(lines[1:]) == groups
    first = min(critical, key=lambda row: row["timestamp_ms"])
    assert f"{first['check']} at log offset {first['log_offset']} of {first['group_id']}" in cells[5]
    assert re.search(rf"\| *{first['log_offset']}\|", cells[5])


def test_notebook_counts_deliveries(log: str, tmp_path: Path) -> None:
    cells = run_notebook("delivery-counts.ipynb", log, tmp_path)
    rows = api.history(log).to_pylist()
    batches = [
        (row["group_id"], batch) for row in rows if row["kind"] == "update" for batch in row["state_batches"]
    ]
    assert cells[1] == f"({len(rows)}, {len(batches)})"
    assert {group for group, _ in batches} <= set(cells[3].split())
    highest = max(batch["delivery_count"] for _, batch in batches)
    assert highest > 1
    assert str(highest) in cells[3].splitlines()[0].split()
    assert "part of records delivered again" in cells[4]
