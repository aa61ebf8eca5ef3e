"""Compare the responses of a real broker and of the coordinator to logins and unauthorized requests.

The broker has users, an authorizer, and its own share coordinator. The coordinator has the same users, and
the same user on its list of allowed principals.
"""

import socket
from collections.abc import Iterator, Sequence
from struct import pack
from typing import NamedTuple

import pytest

from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import find_coordinator as find_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import sasl_authenticate, sasl_handshake
from protocol.messages import write_share_group_state as write_api
from tests.builders import TOPIC_ID, make_initialize, make_read, make_write
from tests.kafka import KafkaJars
from tests.kafka.broker import Broker
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.secured import PLAIN, LoginCredentials, sasl_between_brokers
from tests.unit.security.test_passwords import PLAIN_TOKENS
from tests.unit.server.sasl_clients import authenticate_frame
from tests.unit.server.wire import request_frame

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

BROKERS, EVE = LoginCredentials("kafka", "between-brokers"), LoginCredentials("alice", "alice-secret")
KEY = "group:AAAAAAAAAAAAAAAAAAAAAQ:0"


class ListenerPorts(NamedTuple):
    """The ports of both servers."""

    kafka: int
    ours: int


class WireExchange(NamedTuple):
    """The responses without size prefix, and whether the server closed the connection afterwards."""

    answers: list[bytes]
    closed: bool


@pytest.fixture(scope="module")
def server_ports(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ListenerPorts]:
    """A broker with an authorizer, and a coordinator with a list of allowed principals."""
    folder = tmp_path_factory.mktemp("answers")
    security = sasl_between_brokers(PLAIN, BROKERS, EVE)
    authorizer = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # The broker's own controller connects without a name.
        "super.users": f"User:{BROKERS.user};User:ANONYMOUS",
    }
    broker = Broker(newest_jars, folder, overrides={**security.overrides, **authorizer})
    (folder / "users.properties").write_text("".join(f"{user}={word}\n" for user, word in (BROKERS, EVE)))
    coordinator = CoordinatorProcess(
        folder,
        log="memory",
        settings={
            "listen.security.protocol": "SASL_PLAINTEXT",
            "listen.sasl.enabled.mechanisms": PLAIN,
            "listen.sasl.users.file": str(folder / "users.properties"),
            "listen.allowed.principals": f"User:{BROKERS.user}",
        },
    )
    try:
        broker.start()
        with coordinator:
            yield ListenerPorts(broker.internal_port, coordinator.port)
    finally:
        broker.kill()


# A server closes a connection within the delay of failed logins, or later if the machine is busy.
CLOSES_WITHIN_S, CLOSES_AT_LAST_WITHIN_S = 2.0, 60.0


def exchange_with_both(sides: ListenerPorts, frames: Sequence[bytes]) -> tuple[WireExchange, WireExchange]:
    """Return the exchanges with the coordinator and with Kafka.

    If only one of the two servers closed the connection, retry with more time.
    """
    heard = exchange_frames(sides.ours, frames), exchange_frames(sides.kafka, frames)
    if heard[0].closed != heard[1].closed:
        patience_s = CLOSES_AT_LAST_WITHIN_S
        return exchange_frames(sides.ours, frames, patience_s), exchange_frames(
            sides.kafka, frames, patience_s
        )
    return heard


def exchange_frames(port: int, frames: Sequence[bytes], patience_s: float = CLOSES_WITHIN_S) -> WireExchange:
    """Send each frame after the response to the previous frame, and detect whether the server closes."""
    answers: list[bytes] = []
    with socket.create_connection(("127.0.0.1", port), timeout=120) as peer, peer.makefile("rb") as stream:
        try:
            for frame in frames:
                peer.sendall(frame)
                size = stream.read(4)
                if len(size) < 4:
                    return WireExchange(answers, True)
                answers.append(stream.read(int.from_bytes(size, "big")))
            peer.settimeout(patience_s)
            return WireExchange(answers, stream.read(1) == b"")
        except TimeoutError:
            return WireExchange(answers, False)
        except ConnectionError:
            return WireExchange(answers, True)


def handshake_frame(mechanism: str = PLAIN, version: int = 1) -> bytes:
    body = sasl_handshake.encode_request(sasl_handshake.SaslHandshakeRequest(mechanism), version)
    return request_frame(17, version, 7, body, flexible=False)


def find_coordinator_frame(version: int) -> bytes:
    request = find_api.FindCoordinatorRequest(
        key="" if version >= 4 else KEY,
        key_type=2 if version else 0,
        coordinator_keys=[KEY, KEY + "1"] if version >= 4 else [],
    )
    return request_frame(10, version, 9, find_api.encode_request(request, version), flexible=version >= 3)


def add_size_prefix(token: bytes) -> bytes:
    return pack(">i", len(token)) + token


GOOD = f"\0{EVE.user}\0{EVE.password}".encode()
LOGGED_IN = [handshake_frame(), authenticate_frame(GOOD)]

LOGINS: dict[str, list[bytes]] = {
    "a mechanism that is not enabled": [handshake_frame("GSSAPI")],
    "a mechanism that is not enabled, in the oldest version": [handshake_frame("SCRAM-SHA-256", 0)],
    "a good login": LOGGED_IN,
    "a good login, v0": [handshake_frame(), authenticate_frame(GOOD, 0)],
    "a good login, v1": [handshake_frame(), authenticate_frame(GOOD, 1)],
    "a bare token": [handshake_frame(version=0), add_size_prefix(GOOD), find_coordinator_frame(6)],
    "a bare token that is wrong": [handshake_frame(version=0), add_size_prefix(b"\0alice\0wrong")],
    "a login after the login": [*LOGGED_IN, authenticate_frame(GOOD)],
    "a handshake after the login": [*LOGGED_IN, handshake_frame()],
    "another request after the handshake": [handshake_frame(), find_coordinator_frame(6)],
    "another request after the handshake, not batched": [handshake_frame(), find_coordinator_frame(3)],
    "a handshake after the handshake": [handshake_frame(), handshake_frame()],
    "another request first": [find_coordinator_frame(6)],
    "a token first": [authenticate_frame(GOOD)],
    "a version of SaslAuthenticate to come": [
        handshake_frame(),
        request_frame(
            36, 9, 2, sasl_authenticate.encode_request(sasl_authenticate.SaslAuthenticateRequest(GOOD), 2)
        ),
    ],
    "half a header": [b"\0\0\0\2ab"],
    "bytes that are no handshake": [b"\0\0\0\x0a\0\x11\0\x01\0\0\0\x01\xff\xff"],
    **{
        f"a token like {token!r}": [handshake_frame(), authenticate_frame(token)] for token, _ in PLAIN_TOKENS
    },
}


@pytest.mark.parametrize("name", LOGINS)
def test_login_is_answered_like_kafka(server_ports: ListenerPorts, name: str) -> None:
    ours, kafkas = exchange_with_both(server_ports, LOGINS[name])
    assert ours == kafkas


def state_requests() -> Iterator[tuple[str, bytes]]:
    """Yield a state request for two partitions, for each API and each version that Kafka 4.4.0 supports."""
    parts = {
        "Initialize": (
            initialize_api,
            initialize_api.InitializeStateData,
            [make_initialize(), make_initialize(partition=1)],
        ),
        "Read": (read_api, read_api.ReadStateData, [make_read(), make_read(partition=1)]),
        "Write": (write_api, write_api.WriteStateData, [make_write(), make_write(partition=1)]),
        "Delete": (
            delete_api,
            delete_api.DeleteStateData,
            [delete_api.PartitionData(0), delete_api.PartitionData(1)],
        ),
        "Summary": (
            summary_api,
            summary_api.ReadStateSummaryData,
            [summary_api.PartitionData(0, 0), summary_api.PartitionData(1, 0)],
        ),
    }
    for name, (api, topic, partitions) in parts.items():
        request_class = getattr(api, next(each for each in vars(api) if each.endswith("Request")))
        for version in range(api.MIN_VERSION, api.MAX_VERSION + 1):
            body = api.encode_request(request_class("group", [topic(TOPIC_ID, partitions)]), version)
            yield f"{name} v{version}", request_frame(api.API_KEY, version, 8, body)


REFUSED = {
    **dict(state_requests()),
    **{f"FindCoordinator v{version}": find_coordinator_frame(version) for version in range(6, 7)},
}


@pytest.mark.parametrize("name", REFUSED)
def test_unauthorized_request_is_answered_like_kafka(server_ports: ListenerPorts, name: str) -> None:
    frames = [*LOGGED_IN, REFUSED[name]]
    ours, kafkas = exchange_with_both(server_ports, frames)
    assert len(ours.answers) == 3
    assert ours == kafkas
