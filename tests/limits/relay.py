"""Run a relay that is under attack, in front of a fake broker and a real coordinator.

The fake broker runs on a thread of the measuring process. The relay forwards the connections of clients that
are not persisters to this broker. After a login, the broker reads no more requests.
"""

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.benchmarks.start_systems import coordinator_process
from tests.certificates import CertificateAuthority, IssuedCertificate
from tests.kafka.ports import free_ports
from tests.kafka.relay import RelayProcess
from tests.kafka.served_process import ProgramBuild
from tests.unit.relay import fake_peers

USERS = {"broker": "broker-secret", "guest": "guest-secret"}


@contextmanager
def _fake_broker(own: IssuedCertificate) -> Iterator[int]:
    """Run the fake broker with TLS, and yield its port."""
    started, loop = threading.Event(), asyncio.new_event_loop()
    broker = fake_peers.FakeBroker()
    stop = asyncio.Event()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(own.combined_file)

    async def run_broker() -> None:
        await broker.start(context)
        started.set()
        await stop.wait()
        await broker.stop()

    fake_peers.USERS.update(USERS)
    thread = threading.Thread(target=loop.run_until_complete, args=[run_broker()])
    thread.start()
    started.wait()
    try:
        yield broker.address.port
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
        loop.close()


@contextmanager
def relay_process(folder: Path, build: ProgramBuild) -> Iterator[RelayProcess]:
    """Run a relay with TLS and SASL; the user `broker` is an allowed principal."""
    authority = CertificateAuthority(folder / "authority")
    own = authority.issue_certificate("relay")
    settings = {
        "relay.security.protocol": "SASL_SSL",
        "relay.allowed.principals": "User:broker",
        "relay.ssl.certificate.location": str(own.certificate),
        "relay.ssl.key.location": str(own.key),
        "ssl.ca.location": str(authority.certificate),
    }
    port, http_port = free_ports(2)
    with coordinator_process(folder / "coordinator", {}) as coordinator, _fake_broker(own) as broker_port:
        relay = RelayProcess(
            folder,
            port=port,
            http_port=http_port,
            broker_port=broker_port,
            coordinator_port=coordinator.port,
            settings=settings,
            build=build,
        )
        relay.start()
        try:
            yield relay
        finally:
            relay.stop()
