"""Test a coordinator process with TLS and tokens for HTTP: commands, replaced files, and log lines."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.certificates import CertificateAuthority
from tests.kafka import wait_until
from tests.kafka.ports import free_ports
from tests.kafka.processes import PROGRAM, ChildProcess
from tests.unit.admin.test_tokens import READING, WRITING, write_token_file

KEY_PASSWORD = "open-sesame-of-the-key"


class SecuredCoordinator:
    """A coordinator with TLS and tokens, its files, and commands that use its HTTP API."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = CertificateAuthority(folder / "ca")
        self.issue_certificate("coordinator")
        self.tokens = write_token_file(folder, f"reader read {READING}\noperator write {WRITING}\n")
        for name, token in (("reading", READING), ("writing", WRITING)):
            (folder / name).write_text(token + "\n")
        port, self.http_port = free_ports(2)
        self.settings = {
            "http.ssl.certificate.location": str(folder / "server.crt"),
            "http.ssl.key.location": str(folder / "server.key"),
            "http.ssl.key.password": KEY_PASSWORD,
            "http.token.file": str(self.tokens),
            "http.writes": "true",
        }
        environment = {
            f"SHARE_COORDINATOR_{name.replace('.', '_').upper()}": value
            for name, value in self.settings.items()
        }
        self.environment = {**os.environ, **environment}
        command = [PROGRAM, "serve", "--log", "memory", "--listen", f"127.0.0.1:{port}"]
        self.process = ChildProcess(
            "share-coordinator",
            [*command, "--http", f"127.0.0.1:{self.http_port}"],
            folder / "coordinator.log",
            environment=environment,
        )

    def issue_certificate(self, name: str, *, ended: bool = False) -> None:
        """Replace the coordinator's certificate by a new one, as in a renewal."""
        issued = self.authority.issue_certificate(name, key_password=KEY_PASSWORD, ended=ended)
        for made, place in ((issued.key, "server.key"), (issued.certificate, "server.crt")):
            shutil.copy(made, self.folder / f"{place}.new")
            os.replace(self.folder / f"{place}.new", self.folder / place)

    def run(self, *arguments: str, token: str = "reading") -> "subprocess.CompletedProcess[str]":
        """Run a command that uses the HTTP API."""
        options = ("--url", f"https://127.0.0.1:{self.http_port}", "--ca", str(self.authority.certificate))
        return subprocess.run(
            [PROGRAM, *arguments, *options, "--token-file", str(self.folder / token)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def answers(self) -> bool:
        """Return whether the command `shards` succeeds."""
        return self.run("shards").returncode == 0


@pytest.fixture
def secured_coordinator(tmp_path: Path) -> Iterator[SecuredCoordinator]:
    running = SecuredCoordinator(tmp_path)
    running.process.start()
    try:
        running.process.wait_ready(running.answers, seconds=120)
        yield running
    finally:
        running.process.kill()


def test_commands_work_while_certificates_and_tokens_are_replaced(
    secured_coordinator: SecuredCoordinator,
) -> None:
    assert secured_coordinator.run("groups", "list").returncode == 0
    refused = secured_coordinator.run("prune", "--execute")
    assert (refused.returncode, "token reader may only read" in refused.stderr) == (1, True)
    assert secured_coordinator.run("prune", "--execute", token="writing").returncode == 0

    # An expired certificate, then a valid one.
    secured_coordinator.issue_certificate("ended", ended=True)
    wait_until(
        lambda: "certificate has expired" in secured_coordinator.run("shards").stderr,
        seconds=120,
        what="the coordinator presents the expired certificate",
    )
    secured_coordinator.issue_certificate("renewed")
    wait_until(
        secured_coordinator.answers, seconds=120, what="the coordinator presents the renewed certificate"
    )

    # An invalid token file is ignored; a valid one is used.
    write_token_file(secured_coordinator.folder, "nonsense\n")
    log = secured_coordinator.process.log
    wait_until(
        lambda: "The new tokens are invalid, and the previous ones stay in use" in log.read_text(),
        seconds=120,
        what="a complaint",
    )
    assert secured_coordinator.answers()
    write_token_file(secured_coordinator.folder, f"reader read {WRITING}\n")
    wait_until(lambda: not secured_coordinator.answers(), seconds=120, what="the old token is refused")
    assert secured_coordinator.run("shards", token="writing").returncode == 0

    secured_coordinator.process.stop(seconds=120)
    text = log.read_text()
    assert "Traceback" not in text
    for secret in (READING, WRITING, KEY_PASSWORD):
        assert secret not in text
    audited = [json.loads(line) for line in text.splitlines() if '"coordinator.audit"' in line]
    done = [(line["who"], line["what"]) for line in audited if line["event"] == "write request executed"]
    assert done == [("token operator", "prune")]
