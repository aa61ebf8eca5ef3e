"""The command `hand-over`, and the TLS and token options of all commands."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from protocol.state_records import topic_id_text
from tests.builders import TOPIC_ID
from tests.unit.admin.admin_server import AdminServer, serve_admin
from tests.unit.admin.test_hand_over_routes import make_snapshot_and_updates
from tests.unit.admin.test_http_security import BOB, CertificateFiles
from tests.unit.admin.test_tokens import READING, WRITING
from tests.unit.cli.command_line import CommandLine, CommandResult

TOPIC = topic_id_text(TOPIC_ID)


@pytest.fixture(scope="module")
def certificate_files(tmp_path_factory: pytest.TempPathFactory) -> CertificateFiles:
    made = CertificateFiles(tmp_path_factory.mktemp("certificates"))
    (made.tokens.parent / "reading").write_text(f"{READING}\n")
    (made.tokens.parent / "writing").write_text(f"# the operator's\noperator write {WRITING}\n")
    return made


@pytest.fixture
def secured_coordinator(certificate_files: CertificateFiles) -> Iterator[AdminServer]:
    """A coordinator over TLS that accepts tokens and client certificates, and allows writes."""
    settings = certificate_files.settings(
        http_ssl_client_auth="requested",
        http_allowed_principals=BOB,
        http_token_file=str(certificate_files.tokens),
        http_writes="true",
    )
    with serve_admin(make_snapshot_and_updates(0, 5), **settings) as coordinator:
        yield coordinator


class AuthenticatedCommandLine:
    """Runs commands with a token file of the given scope, by default `write`."""

    def __init__(self, command_line: CommandLine, url: str, files: CertificateFiles) -> None:
        self._run = command_line
        folder = files.tokens.parent
        self._options = ("--url", url, "--ca", str(files.authority.certificate), "--token-file")
        self._tokens = {"write": str(folder / "writing"), "read": str(folder / "reading")}

    def __call__(self, *arguments: str, scope: str = "write") -> CommandResult:
        return self._run(*arguments, *self._options, self._tokens[scope])


@pytest.fixture
def authenticated_command_line(
    share_coordinator: CommandLine, secured_coordinator: AdminServer, certificate_files: CertificateFiles
) -> AuthenticatedCommandLine:
    return AuthenticatedCommandLine(share_coordinator, secured_coordinator.url, certificate_files)


@pytest.mark.parametrize(
    ("arguments", "exit_code", "said"),
    [
        (("hand-over", "0"), 1, "this coordinator owns all shards (ownership=static)"),
        (("hand-over", "99"), 1, "there is no shard 99; shards are numbered from 0 to 3"),
        (("hand-over",), 2, "Missing argument 'SHARD'"),
    ],
)
def test_invalid_write_command_prints_one_error_line(
    authenticated_command_line: AuthenticatedCommandLine,
    arguments: tuple[str, ...],
    exit_code: int,
    said: str,
) -> None:
    done = authenticated_command_line(*arguments)
    assert (done.exit_code, done.out) == (exit_code, "")
    assert said in done.err
    assert "Traceback" not in done.err


def test_token_of_scope_read_allows_only_a_dry_run(
    authenticated_command_line: AuthenticatedCommandLine,
) -> None:
    assert authenticated_command_line("shards", scope="read").exit_code == 0
    dry = authenticated_command_line("hand-over", "0", scope="read")
    assert "this coordinator owns all shards (ownership=static)" in dry.err
    done = authenticated_command_line("hand-over", "0", "--execute", scope="read")
    assert done.exit_code == 1
    assert "token prometheus may only read; a change requires a token of scope write" in done.err


def test_connection_options_come_from_the_environment(
    share_coordinator: CommandLine,
    secured_coordinator: AdminServer,
    certificate_files: CertificateFiles,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SHARE_COORDINATOR_URL", secured_coordinator.url)
    monkeypatch.setenv("SHARE_COORDINATOR_CA", str(certificate_files.authority.certificate))
    monkeypatch.setenv("SHARE_COORDINATOR_CERT", str(certificate_files.bob.certificate))
    monkeypatch.setenv("SHARE_COORDINATOR_KEY", str(certificate_files.bob.key))
    assert share_coordinator("groups", "describe", "orders").exit_code == 0
    monkeypatch.delenv("SHARE_COORDINATOR_CERT")
    monkeypatch.delenv("SHARE_COORDINATOR_KEY")
    monkeypatch.setenv("SHARE_COORDINATOR_TOKEN_FILE", str(certificate_files.tokens.parent / "reading"))
    assert share_coordinator("state", "show", "orders", TOPIC, "0").exit_code == 0
    assert share_coordinator("top").exit_code == 0


@pytest.mark.slow
def test_refused_connection_error_names_the_remedy(
    share_coordinator: CommandLine,
    secured_coordinator: AdminServer,
    certificate_files: CertificateFiles,
    tmp_path: Path,
) -> None:
    ca = str(certificate_files.authority.certificate)
    plain = secured_coordinator.url.replace("https:", "http:")
    wrong = tmp_path / "wrong"
    wrong.write_text("wrong-0123456789-wrong\n")
    for options, said in (
        (("--url", secured_coordinator.url), "give the authority of its certificate with --ca FILE"),
        (("--url", plain), "check whether the server uses https://"),
        (
            ("--url", secured_coordinator.url, "--ca", ca),
            "a token is required: send Authorization: Bearer TOKEN",
        ),
        (
            ("--url", secured_coordinator.url, "--ca", ca, "--token-file", str(wrong)),
            "the token is not valid",
        ),
        (
            (
                "--url",
                secured_coordinator.url,
                "--ca",
                ca,
                "--cert",
                str(certificate_files.eve.combined_file),
            ),
            "User:CN=eve may not read",
        ),
    ):
        done = share_coordinator("shards", *options)
        assert (done.exit_code, done.out) == (1, "")
        assert said in done.err
        assert "Traceback" not in done.err


def test_expired_client_certificate_is_an_error(
    share_coordinator: CommandLine, secured_coordinator: AdminServer, certificate_files: CertificateFiles
) -> None:
    done = share_coordinator(
        *("shards", "--url", secured_coordinator.url, "--ca", str(certificate_files.authority.certificate)),
        *("--cert", str(certificate_files.ended.combined_file)),
    )
    assert done.exit_code == 1
    assert "no coordinator answers at" in done.err


def test_tls_to_a_plaintext_port_is_an_error(
    share_coordinator: CommandLine, certificate_files: CertificateFiles
) -> None:
    with serve_admin() as coordinator:
        url = coordinator.url.replace("http:", "https:")
        done = share_coordinator("shards", "--url", url, "--ca", str(certificate_files.authority.certificate))
    assert done.exit_code == 1
    assert "check whether the server uses http:// without TLS" in done.err


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "a readable file (No such file or directory)"),
        ("# nothing\n", "a file with a token"),
        ("é\n", "an ASCII file"),
        ("t\0o\0k\0e\0n\0", "a file with a token of printable characters"),
        ("a read sha256:" + sha256(b"x").hexdigest(), "a file with the token, not its digest"),
    ],
)
def test_invalid_token_file_is_refused(
    share_coordinator: CommandLine, tmp_path: Path, text: str | None, said: str
) -> None:
    path = tmp_path / "token"
    if text is not None:
        path.write_text(text)
    done = share_coordinator("shards", "--token-file", str(path))
    assert (done.exit_code, done.out) == (2, "")
    assert f"--token-file={path} cannot be used: it must be {said}" in done.err


DIFF = ("recovery", "diff", "--from", "journal:tests", "--live", "127.0.0.1:1", "--engine", "local")


@pytest.mark.parametrize("option", ["--ca", "--cert"])
@pytest.mark.parametrize("command", [("shards",), DIFF], ids=["shards", "diff"])
def test_invalid_certificate_file_is_refused(
    share_coordinator: CommandLine, tmp_path: Path, command: tuple[str, ...], option: str
) -> None:
    path = tmp_path / "file.pem"
    for text in (None, "no PEM"):
        if text is not None:
            path.write_text(text)
        done = share_coordinator(*command, "--url", "https://127.0.0.1:1", option, str(path))
        assert (done.exit_code, done.out) == (2, "")
        assert f"{option}={path} cannot be used" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (
            ["--url", "https://127.0.0.1:1", "--key", "k.pem"],
            "--key=k.pem cannot be used: it must be given together with --cert",
        ),
        (
            ["--url", "http://127.0.0.1:1", "--ca", "c.pem"],
            "--ca=c.pem cannot be used: it must be omitted (",
        ),
        (["--cert", "c.pem", "--key", "k.pem"], "--cert=c.pem cannot be used: it must be omitted ("),
    ],
)
def test_certificate_option_without_effect_is_refused(
    share_coordinator: CommandLine, args: list[str], said: str
) -> None:
    done = share_coordinator("shards", *args)
    assert (done.exit_code, done.out, done.err.count("\n")) == (2, "", 1)
    assert said in done.err
