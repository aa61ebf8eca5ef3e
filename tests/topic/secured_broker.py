"""Run a broker whose client listener requires TLS and a password, and may require permissions."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from coordinator.client import ClientSecurity
from tests.kafka.broker import Broker
from tests.kafka.jars import RELEASES, KafkaJars, fetch_jars
from tests.kafka.toolchain import program_path

USER, PASSWORD, STORE_PASSWORD = "coordinator", "not-told", "of-the-store"


def run_keytool(*arguments: str) -> str:
    """Run keytool of the JDK. Return its output."""
    program = program_path("keytool")
    assert program is not None, "keytool comes with Java"
    return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout


def secure_listener(broker: Broker, directory: Path) -> Path:
    """Require TLS and a password on the broker's client listener.

    Return the file of the broker's certificate.
    """
    store = directory / "broker.p12"
    in_store = ("-alias", "broker", "-keystore", str(store), "-storepass", STORE_PASSWORD)
    run_keytool("-genkeypair", "-keyalg", "EC", "-dname", "CN=broker", "-ext", "san=ip:127.0.0.1", *in_store)
    signer = directory / "signer.pem"
    signer.write_text(run_keytool("-exportcert", "-rfc", *in_store))
    login = f'PlainLoginModule required username="x" password="x" user_{USER}="{PASSWORD}";'
    _add_settings(
        broker,
        "listener.security.protocol.map=CLIENT:SASL_SSL,INTERNAL:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "listener.name.client.sasl.enabled.mechanisms=PLAIN",
        f"listener.name.client.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.{login}",
        f"listener.name.client.ssl.keystore.location={store}",
        "listener.name.client.ssl.keystore.type=PKCS12",
        f"listener.name.client.ssl.keystore.password={STORE_PASSWORD}",
    )
    return signer


def _add_settings(broker: Broker, *settings: str) -> None:
    for setting in settings:
        broker.process.command += ["--override", setting]


class SecuredBroker:
    """A running broker, and the credentials of the test user."""

    def __init__(self, broker: Broker, signer: Path) -> None:
        self.broker = broker
        self.bootstrap = broker.bootstrap
        # The address of a listener without TLS and passwords, whose clients may do everything.
        self.internal_bootstrap = f"127.0.0.1:{broker.internal_port}"
        self.signer = signer
        self.security = ClientSecurity("SASL_SSL", "PLAIN", USER, PASSWORD, ca_file=str(signer))

    def settings(self, password: str = PASSWORD) -> dict[str, str]:
        """Return the settings with which a coordinator or an observer logs in."""
        return {
            "security.protocol": "SASL_SSL",
            "sasl.username": USER,
            "sasl.password": password,
            "ssl.ca.location": str(self.signer),
        }

    def allow(self, *what: str) -> None:
        """Add an ACL that allows operations to the test user."""
        # The tool needs a class that the newest release does not have.
        done = fetch_jars(RELEASES[-2]).run(
            "org.apache.kafka.tools.AclCommand",
            *("--bootstrap-server", self.internal_bootstrap),
            *("--add", "--allow-principal", f"User:{USER}"),
            *what,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"


@contextmanager
def run_secured_broker(jars: KafkaJars, directory: Path, *, deny_all: bool = True) -> Iterator[SecuredBroker]:
    """Run a broker. With `deny_all`, the test user needs an ACL for every operation."""
    broker = Broker(jars, directory)
    signer = secure_listener(broker, directory)
    if deny_all:
        _add_settings(
            broker,
            "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users=User:ANONYMOUS",
        )
    try:
        broker.start()
        yield SecuredBroker(broker, signer)
    finally:
        broker.kill()
