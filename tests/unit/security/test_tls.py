"""TLS files: accepted handshakes, and replacement of files."""

import asyncio
import errno
import gc
import logging
import os
import ssl
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest

from coordinator.config import Config
from coordinator.config.security_groups import ListenerTlsSettings, SaslSettings
from coordinator.errors import ConfigError
from coordinator.security.tls import ServerTls
from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.unit import clock_skipping
from tests.unit.coroutine_tests import wait_until
from tests.unit.security.handshakes import client_context, common_name, perform_handshake

pytestmark = pytest.mark.run_with(function=clock_skipping.run_with_skipping_clock)


@pytest.fixture
def our_authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "ours")


@pytest.fixture
def other_authority(tmp_path: Path) -> CertificateAuthority:
    return CertificateAuthority(tmp_path / "theirs")


def make_tls(issued: IssuedCertificate, **more: str) -> ServerTls:
    return ServerTls(issued.listener_tls(**more), "listen")


def replace_file(old: Path, new: Path) -> None:
    """Replace a file atomically, as tools that renew certificates do."""
    fresh = old.with_suffix(".new")
    fresh.write_bytes(new.read_bytes())
    fresh.replace(old)


def served_certificate_name(
    tls: ServerTls, authority: CertificateAuthority, name: str | None = "localhost"
) -> str:
    return common_name(
        perform_handshake(tls.context, client_context(str(authority.certificate)), name).servers_certificate
    )


def test_key_may_be_in_the_certificate_file_and_encrypted(our_authority: CertificateAuthority) -> None:
    issued = our_authority.issue_certificate("one", key_password="let me in")
    assert served_certificate_name(make_tls(issued), our_authority) == "one"
    alone = make_tls(issued, certificate_location=str(issued.combined_file), key_location="")
    assert served_certificate_name(alone, our_authority) == "one"


@pytest.mark.parametrize(
    ("client_auth", "showing", "let_in"),
    [
        ("none", "nothing", True),
        ("none", "valid", True),
        ("requested", "nothing", True),
        ("requested", "valid", True),
        ("requested", "of another authority", False),
        ("requested", "expired", False),
        ("required", "nothing", False),
        ("required", "valid", True),
        ("required", "of another authority", False),
        ("required", "expired", False),
    ],
)
def test_handshake_follows_client_auth(
    our_authority: CertificateAuthority,
    other_authority: CertificateAuthority,
    client_auth: str,
    showing: str,
    let_in: bool,
) -> None:
    tls = make_tls(
        our_authority.issue_certificate("server"),
        ca_location=str(our_authority.certificate),
        client_auth=client_auth,
    )
    certificate = {
        "nothing": "",
        "valid": str(our_authority.issue_certificate("client").combined_file),
        "of another authority": str(other_authority.issue_certificate("stranger").combined_file),
        "expired": str(our_authority.issue_certificate("late", ended=True).combined_file),
    }[showing]
    # With TLS 1.2, the client sees the refusal within the handshake.
    client = client_context(str(our_authority.certificate), certificate, newest=ssl.TLSVersion.TLSv1_2)
    if let_in:
        certificate_seen = perform_handshake(tls.context, client).clients_certificate
        assert bool(certificate_seen) == (client_auth != "none" and showing == "valid")
    else:
        with pytest.raises(ssl.SSLError):
            perform_handshake(tls.context, client)


def test_protocols_older_than_tls_1_2_are_refused(our_authority: CertificateAuthority) -> None:
    tls = make_tls(our_authority.issue_certificate("server"))
    assert tls.context.minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.parametrize("name", ["localhost", None])
def test_new_certificate_is_used_from_the_next_handshake(
    our_authority: CertificateAuthority, name: str | None
) -> None:
    issued = our_authority.issue_certificate("before")
    tls = make_tls(issued)
    assert tls.reload_if_changed() is False

    after = our_authority.issue_certificate("after")
    replace_file(issued.key, after.key)
    replace_file(issued.certificate, after.certificate)

    assert tls.reload_if_changed() is True
    assert tls.reload_if_changed() is False
    assert served_certificate_name(tls, our_authority, name) == "after"


def test_expired_certificate_is_logged_once(
    our_authority: CertificateAuthority, caplog: pytest.LogCaptureFixture
) -> None:
    issued, late = our_authority.issue_certificate("us"), our_authority.issue_certificate("us2", ended=True)
    tls = make_tls(issued)
    assert not caplog.records
    replace_file(issued.key, late.key)
    replace_file(issued.certificate, late.certificate)
    assert tls.reload_if_changed() is True
    assert tls.reload_if_changed() is False
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.getMessage().startswith(f"The certificate in {issued.certificate} expired at 20")


@pytest.mark.parametrize("client_auth", ["none", "required"])
def test_sessions_are_not_resumed_with_tls_1_2(our_authority: CertificateAuthority, client_auth: str) -> None:
    tls = make_tls(
        our_authority.issue_certificate("server"),
        ca_location=str(our_authority.certificate),
        client_auth=client_auth,
    )
    client = client_context(
        str(our_authority.certificate),
        str(our_authority.issue_certificate("client").combined_file),
        newest=ssl.TLSVersion.TLSv1_2,
    )
    one_for_all = tls.context
    first = perform_handshake(one_for_all, client)
    assert perform_handshake(one_for_all, client, session=first.session).resumed, (
        "with one shared context, OpenSSL resumes the session"
    )
    assert not perform_handshake(
        tls.context, client, session=perform_handshake(tls.context, client).session
    ).resumed


def test_context_is_freed_after_its_handshake(our_authority: CertificateAuthority) -> None:
    """A context takes about 13 KB; reference counting frees it without the garbage collector."""
    tls = make_tls(our_authority.issue_certificate("server"))
    gc.collect()
    gc.disable()
    try:
        context = weakref.ref(tls.context)
        assert context() is None
    finally:
        gc.enable()


def test_removed_authority_is_no_longer_trusted(
    our_authority: CertificateAuthority, other_authority: CertificateAuthority
) -> None:
    both = our_authority.certificate.with_name("both.pem")
    both.write_bytes(our_authority.certificate.read_bytes() + other_authority.certificate.read_bytes())
    tls = make_tls(our_authority.issue_certificate("server"), ca_location=str(both), client_auth="required")
    client = client_context(
        str(our_authority.certificate),
        str(other_authority.issue_certificate("client").combined_file),
        newest=ssl.TLSVersion.TLSv1_2,
    )
    let_in = perform_handshake(tls.context, client)
    assert common_name(let_in.clients_certificate) == "client"

    replace_file(both, our_authority.certificate)

    assert tls.reload_if_changed() is True
    with pytest.raises(ssl.SSLError):
        perform_handshake(tls.context, client)
    # A session from before the removal is refused too.
    with pytest.raises(ssl.SSLError):
        perform_handshake(tls.context, client, session=let_in.session)


def test_files_behind_kubernetes_links_are_reloaded(
    our_authority: CertificateAuthority, tmp_path: Path
) -> None:
    """In a mounted secret, files are links into the directory `..data`, which is a link that gets
    replaced."""
    mounted = tmp_path / "mounted"
    for version in ("1", "2"):
        issued = our_authority.issue_certificate(f"version {version}")
        (mounted / f"..{version}").mkdir(parents=True)
        (mounted / f"..{version}" / "tls.crt").write_bytes(issued.certificate.read_bytes())
        (mounted / f"..{version}" / "tls.key").write_bytes(issued.key.read_bytes())
    (mounted / "..data").symlink_to("..1")
    for file in ("tls.crt", "tls.key"):
        (mounted / file).symlink_to(f"..data/{file}")
    settings = ListenerTlsSettings(
        certificate_location=str(mounted / "tls.crt"), key_location=str(mounted / "tls.key")
    )
    tls = ServerTls(settings, "listen")
    assert served_certificate_name(tls, our_authority) == "version 1"

    (mounted / "..new").symlink_to("..2")
    os.replace(mounted / "..new", mounted / "..data")

    assert tls.reload_if_changed() is True
    assert served_certificate_name(tls, our_authority) == "version 2"


def corrupt_certificate(issued: IssuedCertificate) -> None:
    issued.certificate.write_text("not a certificate")


def remove_certificate(issued: IssuedCertificate) -> None:
    issued.certificate.unlink()


def replace_key(issued: IssuedCertificate) -> None:
    other = CertificateAuthority(issued.key.parent / "other").issue_certificate("other")
    replace_file(issued.key, other.key)


@pytest.mark.parametrize("spoil", [corrupt_certificate, remove_certificate, replace_key])
def test_invalid_new_files_keep_the_previous_ones_and_are_logged(
    our_authority: CertificateAuthority,
    spoil: Callable[[IssuedCertificate], None],
    caplog: pytest.LogCaptureFixture,
) -> None:
    issued = our_authority.issue_certificate("before")
    tls = make_tls(issued)
    spoil(issued)

    with caplog.at_level(logging.INFO):
        assert tls.reload_if_changed() is False
        assert tls.reload_if_changed() is False

    (line,) = (record.getMessage() for record in caplog.records)
    assert "the previous ones stay in use: listen.ssl.certificate.location=" in line
    assert "\n" not in line
    assert served_certificate_name(tls, our_authority) == "before"

    after = our_authority.issue_certificate("after")
    replace_file(issued.certificate, after.certificate)
    replace_file(issued.key, after.key)
    assert tls.reload_if_changed() is True
    assert served_certificate_name(tls, our_authority) == "after"

    # The same error after a successful reload is new.
    caplog.clear()
    spoil(issued)
    assert tls.reload_if_changed() is False
    assert [record.getMessage() for record in caplog.records] == [line]


async def test_watch_reloads_changed_files_although_a_read_fails(
    our_authority: CertificateAuthority, monkeypatch: pytest.MonkeyPatch
) -> None:
    issued = our_authority.issue_certificate("before")
    tls = make_tls(issued)
    load, failures = tls._load, [OSError(errno.EMFILE, "too many open files"), RecursionError()]

    def load_after_failures() -> None:
        if failures:
            raise failures.pop()
        load()

    monkeypatch.setattr(tls, "_load", load_after_failures)
    watching = asyncio.create_task(tls.watch(0.01))
    after = our_authority.issue_certificate("after")
    replace_file(issued.key, after.key)
    replace_file(issued.certificate, after.certificate)
    await wait_until(lambda: served_certificate_name(tls, our_authority) == "after")
    watching.cancel()


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (
            {"certificate_location": "/nowhere/a.pem"},
            "listen.ssl.certificate.location=/nowhere/a.pem cannot be used",
        ),
        ({"key_password": "wrong"}, "listen.ssl.certificate.location="),
        ({"ca_location": "/nowhere/ca.pem"}, "listen.ssl.ca.location=/nowhere/ca.pem cannot be used"),
    ],
)
def test_unusable_file_is_one_error_line(
    our_authority: CertificateAuthority, change: dict[str, str], complaint: str
) -> None:
    issued = our_authority.issue_certificate("server", key_password="right")
    with pytest.raises(ConfigError) as raised:
        make_tls(issued, **change)
    assert str(raised.value).startswith(complaint)
    assert "\n" not in str(raised.value)


def test_key_password_is_not_in_the_repr() -> None:
    tls = ListenerTlsSettings(key_password="secret")
    assert "secret" not in repr(tls) + repr(Config(relay_ssl=tls, sasl=SaslSettings(password="secret")))
