"""Test logins and refusals of Kafka's Java client at a secured listener of the coordinator."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from coordinator.security.users import ScramKeys, format_scram_keys
from tests.certificates import CertificateAuthority
from tests.kafka import KafkaJars
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import QUICK_JVM
from tests.unit.security.token_issuer import TokenIssuer

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

LET_IN = "UnsupportedVersionException: "
REFUSED = "SaslAuthenticationException: "
MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}


@contextmanager
def run_coordinator(directory: Path, settings: Mapping[str, str]) -> Iterator[CoordinatorProcess]:
    """Run a coordinator with these settings, and check that it stops without a traceback."""
    with CoordinatorProcess(directory, log="memory", settings=settings) as coordinator:
        yield coordinator
        coordinator.stop()
        assert "Traceback" not in coordinator.process.log.read_text()


def connect_clients(
    jars: KafkaJars, directory: Path, coordinator: CoordinatorProcess, *clients: Mapping[str, str]
) -> list[str]:
    """Connect one Java client for each item of `clients` (settings); return the printed outcomes."""
    files = []
    for number, settings in enumerate(clients):
        file = directory / f"client-{number}.properties"
        whole = {"bootstrap.servers": f"localhost:{coordinator.port}", **settings}
        file.write_text("".join(f"{name}={value}\n" for name, value in whole.items()))
        files.append(str(file))
    jvm = QUICK_JVM._replace(
        options=(
            *QUICK_JVM.options,
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={allowed_token_urls(directory)}",
        )
    )
    done = jars.run("Login", *files, seconds=150, jvm=jvm)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def allowed_token_urls(directory: Path) -> str:
    return ",".join(f"file://{directory / name}" for name in ("good.jwt", "expired.jwt"))


def login_settings(
    mechanism: str, user: str = "", password: str = "", *, protocol: str = "SASL_PLAINTEXT"
) -> dict[str, str]:
    words = f' username="{user}" password="{password}"' if user else ""
    return {
        "security.protocol": protocol,
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"{MODULES[mechanism]} required{words};",
    }


def token_login(directory: Path, name: str) -> dict[str, str]:
    return {
        **login_settings("OAUTHBEARER"),
        "sasl.oauthbearer.token.endpoint.url": f"file://{directory / name}",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
    }


def test_kafka_client_logs_in_only_with_valid_credentials(newest_jars: KafkaJars, tmp_path: Path) -> None:
    issuer, now_s = TokenIssuer(), int(time.time())
    (tmp_path / "good.jwt").write_text(issuer.token("carol", iat=now_s - 10, exp=now_s + 600))
    (tmp_path / "expired.jwt").write_text(issuer.token("carol", iat=now_s - 900, exp=now_s - 300))
    keys = format_scram_keys(
        "SCRAM-SHA-512", ScramKeys.derive("bob-secret", "SCRAM-SHA-512", b"salt" * 6, 8192)
    )
    (tmp_path / "users.properties").write_text(f"alice=alice-secret\nbob={keys}\n")
    settings = {
        "listen.security.protocol": "SASL_PLAINTEXT",
        "listen.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
        "listen.sasl.users.file": str(tmp_path / "users.properties"),
        "listen.sasl.oauthbearer.jwks.endpoint.url": issuer.write_keys(tmp_path / "keys.json"),
        "listen.allowed.principals": "User:alice;User:bob;User:carol",
    }
    with run_coordinator(tmp_path, settings) as coordinator:
        said = connect_clients(
            newest_jars,
            tmp_path,
            coordinator,
            login_settings("PLAIN", "alice", "alice-secret"),
            login_settings("SCRAM-SHA-256", "alice", "alice-secret"),
            login_settings("SCRAM-SHA-512", "alice", "alice-secret"),
            login_settings("SCRAM-SHA-512", "bob", "bob-secret"),
            token_login(tmp_path, "good.jwt"),
            login_settings("PLAIN", "alice", "guessed-it"),
            login_settings("SCRAM-SHA-256", "alice", "guessed-it"),
            login_settings("SCRAM-SHA-512", "mallory", "guessed-it"),
            token_login(tmp_path, "expired.jwt"),
        )
        log = coordinator.process.log.read_text()
    assert [line for line in said[:5] if not line.startswith(LET_IN)] == []
    assert said[5] == REFUSED + "Authentication failed: Invalid username or password"
    for line, mechanism in zip(said[6:8], ("SCRAM-SHA-256", "SCRAM-SHA-512"), strict=True):
        assert line.startswith(REFUSED)
        assert line.endswith(f"due to invalid credentials with SASL mechanism {mechanism}")
    assert said[8].startswith(REFUSED)
    assert "invalid_token" in said[8]
    for secret in ("alice-secret", "bob-secret", "guessed-it"):
        assert secret not in log


def test_kafka_client_connects_only_with_a_valid_certificate(newest_jars: KafkaJars, tmp_path: Path) -> None:
    authority, stranger = (
        CertificateAuthority(tmp_path / "ours"),
        CertificateAuthority(tmp_path / "theirs", "stranger"),
    )
    server = authority.issue_certificate("coordinator", key_password="of-the-key")
    secret = tmp_path / "key-password"
    secret.write_text("of-the-key\n")
    settings = {
        "listen.security.protocol": "SSL",
        "listen.ssl.certificate.location": str(server.certificate),
        "listen.ssl.key.location": str(server.key),
        "listen.ssl.key.password.file": str(secret),
        "listen.ssl.ca.location": str(authority.certificate),
        "listen.ssl.client.auth": "required",
        "listen.allowed.principals": "User:CN=broker-1",
    }

    def client_settings(trusted: CertificateAuthority, own: str = "") -> dict[str, str]:
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(trusted.certificate),
            **({"ssl.keystore.type": "PEM", "ssl.keystore.location": own} if own else {}),
        }

    # A disconnected client retries until these timeouts.
    soon = {"default.api.timeout.ms": "5000", "request.timeout.ms": "2500"}

    with run_coordinator(tmp_path, settings) as coordinator:
        said = connect_clients(
            newest_jars,
            tmp_path,
            coordinator,
            client_settings(authority, str(authority.issue_certificate("broker-1").combined_file)),
            client_settings(stranger, str(authority.issue_certificate("broker-1").combined_file)),
            soon | client_settings(authority, str(stranger.issue_certificate("broker-1").combined_file)),
            soon
            | client_settings(authority, str(authority.issue_certificate("late", ended=True).combined_file)),
            soon | client_settings(authority),
            soon | {"security.protocol": "PLAINTEXT"},
        )
        log = coordinator.process.log.read_text()
        status, metrics = coordinator.get("/metrics")
    assert said[0].startswith(LET_IN)
    assert said[1].startswith("SslAuthenticationException: SSL handshake failed")
    # With TLS 1.3, a client receives the refusal after its own handshake: as an error or a closed connection.
    assert all(not line.startswith(LET_IN) and line != "null" for line in said[2:])
    assert status == 200
    for reason in ("bad_certificate", "no_certificate", "plaintext_to_tls"):
        assert f'share_coordinator_connections_closed_total{{reason="{reason}"}}' in metrics.decode()
    assert log.count("a client without TLS came to the TLS port") <= 3
    assert "of-the-key" not in log
