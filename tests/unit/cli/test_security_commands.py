"""Commands about security: files are checked before anything begins, and secrets stay secret."""

import io
from pathlib import Path

import pytest

from coordinator.cli import settings_flags as flags
from coordinator.client import ClientSecurity
from coordinator.config import Config
from coordinator.security.users import Users
from tests.certificates import Authority
from tests.unit.cli.calling import CommandLine


def test_config_check_reads_the_files(share_coordinator: CommandLine, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    (tmp_path / "users").write_text("alice=alice-secret\n")
    (tmp_path / "keys").write_text('{"keys": []}')
    good = [
        *("--listen-security-protocol", "SASL_SSL"),
        *("--listen-ssl-certificate-location", str(authority.issue("us").both)),
        *("--listen-sasl-users-file", str(tmp_path / "users")),
        *("--listen-allowed-principals", "User:alice"),
        *("--listen-sasl-enabled-mechanisms", "SCRAM-SHA-512,OAUTHBEARER"),
        *("--listen-sasl-oauthbearer-jwks-endpoint-url", "https://127.0.0.1:1/keys"),
        *("--listen-sasl-oauthbearer-jwks-endpoint-ca-location", str(authority.certificate)),
    ]
    assert share_coordinator("config", "check", *good).exit_code == 0

    def with_bad(flag: str, text: str) -> str:
        outcome = share_coordinator(
            "config", "check", *good[: good.index(flag)], flag, text, *good[good.index(flag) + 2 :]
        )
        assert outcome.exit_code == 2
        assert outcome.err.count("\n") == 1
        return outcome.err

    for flag, text, said in (
        ("--listen-ssl-certificate-location", "/nowhere", "listen.ssl.certificate.location=/nowhere cannot"),
        ("--listen-sasl-users-file", "/nowhere", "listen.sasl.users.file=/nowhere cannot"),
        (
            "--listen-sasl-oauthbearer-jwks-endpoint-ca-location",
            "/nowhere",
            "listen.sasl.oauthbearer.jwks.endpoint.ca.location=/nowhere cannot",
        ),
        ("--listen-allowed-principals", "alice", "listen.allowed.principals=alice cannot"),
        (
            "--listen-sasl-oauthbearer-jwks-endpoint-url",
            str(tmp_path / "keys"),
            "it must be a JSON Web Key Set: no key for signatures in it",
        ),
    ):
        assert said in with_bad(flag, text)


def test_config_show_hides_what_is_secret(share_coordinator: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("let-me-in\n")
    said = share_coordinator(
        *("config", "show", "--sasl-password-file", str(file), "--listen-ssl-key-password", "let-me-in")
    )
    assert said.exit_code == 0
    assert "let-me-in" not in said.out
    assert said.out.count("********") == 2


def test_scram_keys_takes_the_password_from_standard_input(
    share_coordinator: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("between brokers\n"))
    said = share_coordinator("config", "scram-keys", "kafka", "--iterations", "4096")
    assert said.exit_code == 0
    assert "between brokers" not in said.out
    (tmp_path / "users").write_text(said.out)
    user = Users(str(tmp_path / "users"), "setting", ()).find("kafka")
    assert user is not None
    assert user.keys["SCRAM-SHA-256"].fits("between brokers", "SCRAM-SHA-256")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert share_coordinator("config", "scram-keys", "kafka").exit_code == 2


def test_how_to_connect_to_a_coordinator_is_in_the_settings_or_in_a_file(tmp_path: Path) -> None:
    ours = Config(security_protocol="SASL_PLAINTEXT", sasl_username="cluster", sasl_password="x")
    assert flags.client_security(None, ours).username == "cluster"
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=not-used\n")
    assert flags.client_security(file, ours) == ClientSecurity(username="not-used")


def test_the_demo_logs_in(share_coordinator: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.username=alice\n")
    said = share_coordinator("demo", "--coordinator-config", str(file))
    assert said.exit_code == 2
    assert said.err.startswith("share-coordinator: sasl.password= cannot be used: it must be given with")
