"""Test forwarding between coordinators, and client tools, with authentication on all connections."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from coordinator.client import ClientSecurity, RetryPolicy, ShareCoordinatorClient
from coordinator.operate.migration.migrate import migrate_states
from protocol.state_records import SharePartitionKey
from tests.certificates import CertificateAuthority
from tests.kafka import BuiltInRig
from tests.kafka.coordinator import CoordinatorProcess
from tests.topic.logs import new_topic
from tests.unit.cli.command_line import CommandLine
from tests.unit.cli.conftest import share_coordinator as share_coordinator
from tests.unit.log.kafka_logs import run_in_real_time
from tests.unit.migration.locations import (
    EXECUTE,
    MigrationLogs,
    ignore_progress,
    make_journal_target,
    make_sample_records,
)

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

PARTITIONS = 8
KEYS = [SharePartitionKey("group", bytes([number]) * 16, number) for number in range(40)]
# No coordinator owns a shard until both have joined.
PATIENT = RetryPolicy(attempts_max=480, first_s=0.25, multiplier=1.0)


class SecurityFiles:
    """The security files of all processes: certificates of one authority, and users."""

    def __init__(self, folder: Path) -> None:
        self.authority = CertificateAuthority(folder / "tls")
        self.users = folder / "users.properties"
        self.users.write_text("coordinator=of-coordinators\ntool=of-tools\n")
        self.password = folder / "password"
        self.password.write_text("of-tools\n")

    def settings(self, name: str) -> dict[str, str]:
        own = self.authority.issue_certificate(name)
        return {
            "listen.security.protocol": "SASL_SSL",
            "listen.ssl.certificate.location": str(own.certificate),
            "listen.ssl.key.location": str(own.key),
            "listen.ssl.ca.location": str(self.authority.certificate),
            "listen.ssl.client.auth": "requested",
            "listen.sasl.enabled.mechanisms": "SCRAM-SHA-512",
            "listen.sasl.users.file": str(self.users),
            "listen.allowed.principals": "User:coordinator;User:tool",
            "listen.connections.max.reauth.ms": "4000",
            "forwarding.sasl.username": "coordinator",
            "forwarding.sasl.password": "of-coordinators",
        }

    @property
    def client_security(self) -> ClientSecurity:
        return ClientSecurity(
            "SASL_SSL", "SCRAM-SHA-512", "tool", "of-tools", ca_file=str(self.authority.certificate)
        )

    def write_client_properties(self) -> str:
        file = self.users.with_name("tool.properties")
        file.write_text(
            "security.protocol=SASL_SSL\nsasl.mechanism=SCRAM-SHA-512\nsasl.username=tool\n"
            f"sasl.password.file={self.password}\nssl.ca.location={self.authority.certificate}\n"
        )
        return str(file)


@pytest.fixture
def security_files(tmp_path: Path) -> SecurityFiles:
    return SecurityFiles(tmp_path)


@pytest.fixture
def coordinator_pair(
    built_in: BuiltInRig, security_files: SecurityFiles, tmp_path: Path
) -> Iterator[list[CoordinatorProcess]]:
    """Two coordinators that share a topic and forward requests for each other's shards."""
    topic = new_topic("peers")
    common = {
        "bootstrap.servers": built_in.broker.bootstrap,
        "share.coordinator.state.topic.name": topic,
        "share.coordinator.state.topic.num.partitions": str(PARTITIONS),
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        "ownership": "group",
        "group.id": topic,
        "forwarding": "always",
    }
    with ExitStack() as stack:
        yield [
            stack.enter_context(
                CoordinatorProcess(
                    tmp_path / name, log="kafka", settings={**security_files.settings(name), **common}
                )
            )
            for name in ("one", "two")
        ]


def count_forwarded(coordinator: CoordinatorProcess) -> float:
    """Return the number of requests that a coordinator forwarded successfully."""
    _, body = coordinator.get("/metrics")
    lines = body.decode().splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith("share_coordinator_forwarded_total{") and 'code="NONE"' in line
    )


@pytest.mark.broker
def test_authenticated_coordinators_forward_to_each_other(
    coordinator_pair: list[CoordinatorProcess], security_files: SecurityFiles
) -> None:
    async def send_read(port: int, leader_epoch: int) -> list[int]:
        # The client sends all requests to one coordinator, which forwards about half of them.
        async with ShareCoordinatorClient(
            ("localhost", port), direct=True, retry=PATIENT, security=security_files.client_security
        ) as client:
            if leader_epoch == 1:
                for key in KEYS:
                    await client.initialize(key, state_epoch=1, start_offset=key.partition)
            states = [await client.read(key, leader_epoch) for key in KEYS]
        return [state.start_offset for state in states]

    for leader_epoch, coordinator in enumerate(coordinator_pair, 1):
        assert asyncio.run(send_read(coordinator.port, leader_epoch)) == list(range(len(KEYS)))
    assert all(count_forwarded(coordinator) > 0 for coordinator in coordinator_pair)
    for coordinator in coordinator_pair:
        log = coordinator.process.log.read_text()
        assert "of-coordinators" not in log
        assert "A login failed." not in log


def test_tools_authenticate_to_coordinator(
    share_coordinator: CommandLine, security_files: SecurityFiles, tmp_path: Path
) -> None:
    journal = tmp_path / "from"
    run_in_real_time(
        migrate_states(
            MigrationLogs(make_sample_records(6)).reader(),
            make_journal_target(journal),
            EXECUTE,
            ignore_progress,
        )
    )
    client = ("--coordinator-config", security_files.write_client_properties())
    settings = security_files.settings("coordinator")
    with CoordinatorProcess(tmp_path, log="memory", settings=settings) as coordinator:
        address = f"localhost:{coordinator.port}"
        to = ("migrate", "--from", f"journal:{journal}", "--to", f"rpc:{address}", "--execute")
        refused = share_coordinator(*to)
        assert refused.exit_code == 1
        assert refused.err.startswith("share-coordinator: the target cannot be reached: ")
        carried = share_coordinator(*to, *client)
        assert (carried.exit_code, carried.err) == (0, "")
        assert carried.out.splitlines()[-1] == "Source and target have the same state of 5 share-partitions."

        live = ("--from", f"journal:{journal}", "--live", address)
        found = json.loads(share_coordinator("recovery", "diff", *live, *client, "-o", "json").out)
        # One share-partition was reinitialized in the journal, and RPCs cannot transfer its leader epoch.
        assert (found["compared"], found["equal"], found["unknown"]) == (5, 4, {})
        played = share_coordinator("demo", "-b", address, *client)
        assert played.exit_code == 0, played.err
        stranger = share_coordinator("demo", "-b", address)
        assert stranger.exit_code == 1
