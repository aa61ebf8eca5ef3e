"""Security options of the command line: `config check` reads the files, and secrets are not printed."""

import io
from pathlib import Path

import pytest

from coordinator.cli import settings_flags as flags
from coordinator.client import ClientSecurity
from coordinator.config import load_config
from coordinator.security.users import Users
from tests.certificates import CertificateAuthority
from tests.unit.cli.command_line import CommandLine, CommandResult


def test_config_check_reads_listener_security_files(share_coordinator: CommandLine, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path)
    (tmp_path / "users").write_text("alice=alice-secret\n")
    (tmp_path / "keys").write_text('{"keys": []}')
    good = [
        *("--listen-security-protocol", "SASL_SSL"),
        *("--listen-ssl-certificate-location", str(authority.issue_certificate("us").combined_file)),
        *("--listen-sasl-users-file", str(tmp_path / "users")),
        *("--listen-allowed-principals", "User:alice"),
        *("--listen-sasl-enabled-mechanisms", "SCRAM-SHA-512,OAUTHBEARER"),
        *("--listen-sasl-oauthbearer-jwks-endpoint-url", "https://127.0.0.1:1/keys"),
        *("--listen-sasl-oauthbearer-jwks-endpoint-ca-location", str(authority.certificate)),
    ]
    assert share_coordinator("config", "check", *good).exit_code == 0

    def run_config_check(flag: str, text: str) -> str:
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
            "it must be a JSON Web Key Set: it has no key for signatures",
        ),
    ):
        assert said in run_config_check(flag, text)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"http.token.file": "/nope"}, "http.token.file=/nope cannot"),
        ({"http.token.file": "{short}"}, "that of line 1 is neither"),
        ({"http.ssl.certificate.location": "/nope"}, "http.ssl.certificate.location=/nope cannot"),
        ({"http.ssl.certificate.location": "{alone}"}, "http.ssl.certificate.location={alone} cannot"),
        (
            {"http.ssl.certificate.location": "{both}", "http.ssl.ca.location": "/nope"},
            "http.ssl.ca.location=/nope cannot",
        ),
        ({"http.allowed.principals": "bob"}, "http.allowed.principals=bob cannot"),
        (
            {"http.ssl.principal.mapping.rules": "RULE:("},
            "http.ssl.principal.mapping.rules=RULE:( cannot",
        ),
        ({"security.protocol": "SSL", "ssl.ca.location": "/nope"}, "ssl.ca.location=/nope cannot"),
        ({"security.protocol": "SASL_SSL"}, "sasl.username is missing"),
    ],
)
def test_config_check_reads_http_and_cluster_client_files(
    share_coordinator: CommandLine, tmp_path: Path, settings: dict[str, str], said: str
) -> None:
    us = CertificateAuthority(tmp_path).issue_certificate("us")
    files = {"short": tmp_path / "short", "alone": us.certificate, "both": us.combined_file}
    files["short"].write_text("alice read short\n")
    (tmp_path / "tokens").write_text("alice read 0123456789abcdef\n")
    good = {
        "log": "memory",
        "http.token.file": str(tmp_path / "tokens"),
        "http.ssl.certificate.location": str(us.combined_file),
        "bootstrap.servers": "127.0.0.1:1",
    }

    def check_settings(settings: dict[str, str]) -> CommandResult:
        return share_coordinator("config", "check", *(f"--set={name}={settings[name]}" for name in settings))

    assert check_settings(good).exit_code == 0
    outcome = check_settings({**good, **{name: text.format(**files) for name, text in settings.items()}})
    assert (outcome.exit_code, outcome.err.count("\n")) == (2, 1)
    assert said.format(**files) in outcome.err


def test_config_show_hides_secrets(share_coordinator: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("let-me-in\n")
    said = share_coordinator(
        *("config", "show", "--sasl-password-file", str(file), "--listen-ssl-key-password", "let-me-in")
    )
    assert said.exit_code == 0
    assert "let-me-in" not in said.out
    assert said.out.count("********") == 2


@pytest.mark.parametrize(
    ("args", "named"),
    [
        (["--sasl-password", "a", "--sasl-password", "hush"], "--sasl-password=********"),
        (["--sasl-password", "a", "--sasl-password=hush"], "--sasl-password=********"),
        (["--sasl-password", "a", "--set", "sasl.password=hush"], "sasl.password=********"),
        (["--set", "sasl.password=a", "--set", "sasl.password=hush"], "sasl.password=********"),
        (["--set", "sasl.password: hush=="], "--set=sasl.password"),
        (["--set", "sasl.password hush"], "--set=sasl.password"),
        (["--sasl-jaas-config", "a", "--sasl-jaas-config", "hush"], "--sasl-jaas-config"),
        (["--sasl-password", "a", "hush"], "--sasl-password"),
        (["--sasl-jaas-config=a", "hush"], "--sasl-jaas-config"),
        (["sasl.password=hush"], "sasl.password=********"),
        (["sasl.jaas.config=hush"], "sasl.jaas.config"),
    ],
)
def test_error_message_hides_secrets(share_coordinator: CommandLine, args: list[str], named: str) -> None:
    said = share_coordinator("config", "check", *args)
    assert said.exit_code == 2
    assert said.err.startswith(f"share-coordinator: {named} cannot be used: it must be ")
    assert "hush" not in said.err


def test_scram_keys_reads_the_password_from_standard_input(
    share_coordinator: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("between brokers\n"))
    said = share_coordinator("config", "scram-keys", "kafka", "--iterations", "4096")
    assert said.exit_code == 0
    assert "between brokers" not in said.out
    (tmp_path / "users").write_text(said.out)
    user = Users(str(tmp_path / "users"), "setting", ()).find_user("kafka")
    assert user is not None
    assert user.keys["SCRAM-SHA-256"].matches_password("between brokers", "SCRAM-SHA-256")
    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert share_coordinator("config", "scram-keys", "kafka").exit_code == 2


@pytest.mark.parametrize("strictly", ["strict", "surrogateescape"])
def test_scram_keys_refuses_a_password_that_is_not_utf_8(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch, strictly: str
) -> None:
    given = io.TextIOWrapper(io.BytesIO(b"hush\xff\n"), "utf-8", strictly)
    monkeypatch.setattr("sys.stdin", given)
    said = share_coordinator("config", "scram-keys", "kafka")
    assert (said.exit_code, said.out) == (2, "")
    assert said.err == "share-coordinator: password cannot be used: it must be UTF-8 text\n"


@pytest.mark.parametrize("name", ["", "a\nb", "\udcff"])
def test_scram_keys_refuses_a_user_name_that_is_not_one_line(
    share_coordinator: CommandLine, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("between brokers\n"))
    said = share_coordinator("config", "scram-keys", name)
    assert (said.exit_code, said.out, said.err.count("\n")) == (2, "", 1)
    assert ": it must be a name of printable characters" in said.err


def test_client_security_comes_from_the_given_file_or_the_settings(tmp_path: Path) -> None:
    ours = load_config(
        {"security.protocol": "SASL_PLAINTEXT", "sasl.username": "cluster", "sasl.password": "x"}
    ).config
    assert flags.load_security(None, ours).username == "cluster"
    file = tmp_path / "client.properties"
    file.write_text("sasl.username=not-used\n")
    assert flags.load_security(file, ours) == ClientSecurity(username="not-used")


def test_demo_uses_the_login_of_the_client_file(share_coordinator: CommandLine, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text("security.protocol=SASL_SSL\nsasl.username=alice\n")
    said = share_coordinator("demo", "--coordinator-config", str(file))
    assert said.exit_code == 2
    assert said.err.startswith("share-coordinator: sasl.password is missing: it must be given with")
