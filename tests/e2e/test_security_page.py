"""Run the commands of docs/security.md unchanged, on other ports."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kafka.ports import free_ports

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.mark.needs("openssl", "curl")
def test_commands_of_security_page_succeed(tmp_path: Path) -> None:
    wire, http = free_ports(2)
    blocks = re.findall(r"```sh\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 5
    script = "\n".join(["set -e", *blocks]).replace("9095", str(wire)).replace("9096", str(http))
    program = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-c", script.replace("log=memory", f"log=memory\nhttp=127.0.0.1:{http}")],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{program}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("Configuration is valid.") == 2
    assert done.stdout.count("the state is gone") + done.stdout.lower().count("delete") >= 2
    assert "between-brokers" not in done.stderr
    assert "Traceback" not in done.stderr
