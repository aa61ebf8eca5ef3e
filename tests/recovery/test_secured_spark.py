"""Test that Spark's executors read a Kafka cluster with client certificates and SASL, and use S3."""

import asyncio
import base64
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from coordinator.client import ClientSecurity
from coordinator.cluster.kafka.brokers import Brokers
from coordinator.errors import LogUnavailable
from coordinator.log.kafka import KafkaLog, TopicConfig
from coordinator.process.clock import SystemClock
from coordinator.recovery import api
from coordinator.recovery.rebuild import rebuild
from coordinator.recovery.records import Records
from coordinator.recovery.sources import open_source
from coordinator.recovery.sources.base import LogRange
from coordinator.recovery.sources.topic import TopicSource
from tests.certificates import CertificateAuthority
from tests.kafka.broker import Broker
from tests.kafka.jars import KafkaJars
from tests.recovery.log_strategies import comparable_rows, sort_by_key
from tests.recovery.logs_on_disk import encode_batches, load_expected_states, make_varied_records
from tests.recovery.s3_server import BUCKET, needs_s3, s3_server
from tests.recovery.spark_cluster import executor_of_this_task, spark_cluster
from tests.topic.logs import LIMITS
from tests.topic.secured_broker import PASSWORD, USER, secure_listener
from tests.unit.log.environments import append_durably, read_all

# All jobs run in the setup of the first test, in one Spark session, because it takes seconds to start.
pytestmark = [
    *(pytest.mark.broker, pytest.mark.spark, pytest.mark.slow, pytest.mark.timeout(900)),
    needs_s3,
]

TOPIC = "secured-states"
PARTITIONS, RECORDS = 6, 100
MECHANISMS = ("PLAIN", "SCRAM-SHA-512", "OAUTHBEARER")


def make_token() -> str:
    """Return an unsigned JSON web token, which the broker's default validator accepts."""

    def encode(part: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=")

    now_s = int(time.time())
    return f"{encode({'alg': 'none'})}.{encode({'sub': USER, 'iat': now_s, 'exp': now_s + 3_600})}."


def require_certificates(broker: Broker, authority: Path) -> None:
    """Make the client listener accept all mechanisms, and require certificates of clients (KIP-684)."""
    modules = "org.apache.kafka.common.security"
    tokens = f"{modules}.oauthbearer.OAuthBearerLoginModule required"
    for override in (
        f"sasl.enabled.mechanisms={','.join(MECHANISMS)}",
        f"scram-sha-512.sasl.jaas.config={modules}.scram.ScramLoginModule required;",
        f'oauthbearer.sasl.jaas.config={tokens} unsecuredLoginStringClaim_sub="x";',
        "ssl.client.auth=required",
        "ssl.truststore.type=PEM",
        f"ssl.truststore.location={authority}",
    ):
        broker.process.command += ["--override", f"listener.name.client.{override}"]


def client_securities(folder: Path, signer: Path, authority: CertificateAuthority) -> list[ClientSecurity]:
    """Return the settings of a client for each mechanism, with a certificate."""
    own = authority.issue_certificate("executor")
    (folder / "token").write_text(make_token())
    common = ClientSecurity(
        "SASL_SSL", ca_file=str(signer), certificate_file=str(own.certificate), key_file=str(own.key)
    )
    return [
        common._replace(mechanism="PLAIN", username=USER, password=PASSWORD),
        common._replace(mechanism="SCRAM-SHA-512", username=USER, password=PASSWORD),
        common._replace(mechanism="OAUTHBEARER", token_file=str(folder / "token")),
    ]


async def write_topic(bootstrap: str, security: ClientSecurity) -> None:
    """Write records to the state topic over the secured listener."""
    log = KafkaLog(
        Brokers(bootstrap, TOPIC, security=security),
        TopicConfig(TOPIC, PARTITIONS, replication_factor=1, min_isr=1),
        owner="test",
        clock=SystemClock(),
        limits=LIMITS,
    )
    await log.open()
    for p in range(PARTITIONS):
        await log.acquire_ownership(p)
        await read_all(log, [p])
        records = make_varied_records(RECORDS, seed=p)
        for at in range(0, RECORDS, 50):
            await append_durably(log, p, records[at : at + 50])
    await log.close()


@pytest.fixture(scope="module")
def driver_outcomes(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Run the driver on a cluster with archive and results in S3."""
    folder = tmp_path_factory.mktemp("secured")
    credential = f"SCRAM-SHA-512=[name={USER},password={PASSWORD}]"
    broker = Broker(newest_jars, folder, format_flags=("--add-scram", credential))
    signer = secure_listener(broker, folder)
    authority = CertificateAuthority(folder / "clients")
    require_certificates(broker, authority.certificate)
    securities = client_securities(folder, signer, authority)
    try:
        broker.start()
        asyncio.run(write_topic(broker.bootstrap, securities[0]))
        # With TLS 1.3, the broker closes the connection after the handshake of a client.
        with pytest.raises(LogUnavailable, match=r"closed|certificate"):
            asyncio.run(
                write_topic(broker.bootstrap, securities[0]._replace(certificate_file="", key_file=""))
            )
        with s3_server(folder) as s3, spark_cluster(folder) as cluster:
            command = [
                *(sys.executable, "-m", "tests.recovery.test_secured_spark", cluster.master),
                *(
                    broker.bootstrap,
                    json.dumps([each._asdict() for each in securities]),
                    f"s3a://{BUCKET}/jobs",
                    str(folder),
                ),
            ]
            environment = {**cluster.environment(**s3.spark_settings), **s3.environment}
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, timeout=600, check=False
            )
            assert done.returncode == 0, done.stderr[-6_000:]
            found: dict[str, Any] = json.loads((folder / "outcomes.json").read_text())
    finally:
        broker.kill()
    return found


@pytest.fixture(scope="module")
def expected_states() -> Any:
    batches = {p: encode_batches(make_varied_records(RECORDS, seed=p)) for p in range(PARTITIONS)}
    return json.loads(json.dumps(load_expected_states(batches), default=repr))


def without_write_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows without the time of the last write, because this time is the time of the test run."""
    return [{name: value for name, value in row.items() if name != "last_write_ms"} for row in rows]


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_executors_read_secured_cluster(
    mechanism: str, driver_outcomes: dict[str, Any], expected_states: Any
) -> None:
    """Each read of the source asserts that it runs in an executor.

    Each of the two executors must have read a part.
    """
    assert driver_outcomes[mechanism]["executors"] == 2
    assert without_write_times(driver_outcomes[mechanism]["states"]) == without_write_times(expected_states)


def test_executors_archive_to_object_store_and_read_it(
    driver_outcomes: dict[str, Any], expected_states: Any
) -> None:
    """The stream's checkpoint, the archive and the states are in S3."""
    archived = driver_outcomes["archive"]
    assert (archived["records"] >= PARTITIONS * RECORDS, archived["whole"]) == (True, True)
    assert without_write_times(archived["states"]) == without_write_times(expected_states)


@dataclass(frozen=True)
class NotedSource(TopicSource):
    """A source that creates a file with the name of the executor at each read."""

    notes: str = ""

    def read(self, log_range: LogRange) -> Iterator[Records]:
        """Read a range; fail if this process is not a Python worker of an executor."""
        Path(self.notes, str(executor_of_this_task())).touch()
        return super().read(log_range)


def state_rows(states: Any) -> list[dict[str, Any]]:
    """Return states as a coordinator has them in memory."""
    return comparable_rows(sort_by_key(states))


def run_driver(master: str, bootstrap: str, securities: str, uri: str, folder: str) -> None:
    """Rebuild with each of `securities`, archive to S3, rebuild from S3, and write FOLDER/outcomes.json.

    `securities` is a list of the fields of `ClientSecurity`, as JSON.
    """
    from coordinator.recovery.archive_stream import archive_stream
    from coordinator.recovery.engines import spark as spark_engine
    from coordinator.recovery.engines.spark import SparkEngine
    from coordinator.recovery.engines.spark_session import get_or_start_session

    # By default, one task reads this small topic.
    spark_engine._TASK_RECORDS_MIN = 1
    spark = get_or_start_session(master)
    driver_outcomes: dict[str, Any] = {}
    access: dict[str, Any] = {}
    for fields in json.loads(securities):
        name = fields["mechanism"]
        notes = Path(folder, name)
        notes.mkdir()
        access = {"bootstrap_servers": bootstrap, "security": ClientSecurity(**fields)}
        source = NotedSource(TOPIC, **access, notes=str(notes))
        states = rebuild(SparkEngine(spark), source).states.to_pylist()
        driver_outcomes[name] = {"states": state_rows(states), "executors": len(os.listdir(notes))}
    source = open_source(f"kafka:{TOPIC}", **access)
    done = archive_stream(spark, source, f"{uri}/archive")
    stored = api.states(spark, f"archive:{uri}/archive", to=f"{uri}/states")
    driver_outcomes["archive"] = {
        "records": sum(each.records for each in done),
        "whole": all(each.is_whole for each in done),
        "states": state_rows([row.asDict(recursive=True) for row in stored.collect()]),
    }
    Path(folder, "outcomes.json").write_text(json.dumps(driver_outcomes, default=repr))


if __name__ == "__main__":
    run_driver(*sys.argv[1:])
