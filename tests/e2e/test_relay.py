"""Test the relay with real brokers that authenticate to each other and store state in this coordinator."""

import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from struct import Struct

import pytest

from protocol.errors import ErrorCode
from tests.certificates import CertificateAuthority
from tests.e2e.delivery_recorder import (
    LONG_RECORD_LOCK,
    SMALL_COMMITS,
    DeliveryRecorder,
    consume_every_second,
    consume_in_thread,
    consume_rest,
    consume_with_group,
    mixed_acknowledgements,
    new_topic,
    produce_records,
)
from tests.kafka import RELEASES, KafkaJars, fetch_jars, wait_until
from tests.kafka.relayed import RelayedRig, relayed_rig
from tests.kafka.secured import (
    PLAIN,
    SCRAM,
    BrokerSecurity,
    LoginCredentials,
    sasl_between_brokers,
    tls_between_brokers,
)
from tests.unit.relay.fake_peers import (
    FETCHER,
    METADATA,
    PERSISTER,
    encode_request,
    handshake_request,
    token_request,
)

pytestmark = [pytest.mark.broker, pytest.mark.timeout(600)]

BROKERS, EVE = LoginCredentials("kafka", "between-brokers"), LoginCredentials("eve", "hers")
ALLOWED = {"relay.allowed.principals": f"User:{BROKERS.user}"}
FIND_COORDINATOR = 10
# The body of a Metadata request of version 4: an empty list of topics, and no topic creation.
NO_TOPICS = b"\0\0\0\0\0"


@pytest.fixture(scope="module")
def plaintext_rig(newest_jars: KafkaJars, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RelayedRig]:
    """A broker that accepts the logins of the users `kafka` and `eve`, in sessions that expire."""
    # Kafka's clients reauthenticate in the last 15 % of a session, which must suffice on a slow machine.
    security = sasl_between_brokers(PLAIN, BROKERS, EVE, session_ms=30_000)
    with relayed_rig(newest_jars, tmp_path_factory.mktemp("plain"), security, ALLOWED) as rig:
        yield rig


class RawClient:
    """A client that connects to the relay's port and sends raw frames."""

    def __init__(self, rig: RelayedRig) -> None:
        self._socket = socket.create_connection(("127.0.0.1", rig.relay.port), timeout=120)
        self._stream = self._socket.makefile("rb")

    def close(self) -> None:
        self._stream.close()
        self._socket.close()

    def exchange_frame(self, frame: bytes) -> bytes:
        """Send a frame and return the response without its size; empty if the connection is closed."""
        try:
            self._socket.sendall(frame)
            size = self._stream.read(4)
            return self._stream.read(*Struct(">i").unpack(size)) if len(size) == 4 else b""
        except ConnectionError:
            return b""

    def log_in(self, user: str, password: str) -> int:
        """Log in with PLAIN; return the error code of the response."""
        self.exchange_frame(handshake_request(PLAIN))
        answer = self.exchange_frame(token_request(f"\0{user}\0{password}".encode()))
        # The error code follows the correlation id and the empty tagged fields.
        return int(Struct(">h").unpack_from(answer, 5)[0])


def test_only_authenticated_and_allowed_persisters_reach_coordinator(plaintext_rig: RelayedRig) -> None:
    find_coordinator = encode_request(FIND_COORDINATOR, PERSISTER, b"\0\4here\2", version=1)
    requests = {
        client_id: encode_request(METADATA, client_id, NO_TOPICS, version=4)
        for client_id in (PERSISTER, FETCHER)
    }
    before = plaintext_rig.relay.metric('connections_decided_total{destination="coordinator"}')
    with closing(RawClient(plaintext_rig)) as eve:
        assert eve.log_in(*EVE) == ErrorCode.NONE
        assert eve.exchange_frame(requests[FETCHER]) != b""
    with closing(RawClient(plaintext_rig)) as eve:
        assert eve.log_in(*EVE) == ErrorCode.NONE
        assert eve.exchange_frame(find_coordinator) == b""
    assert plaintext_rig.relay.metric('connections_refused_total{reason="principal"}') == 1
    with closing(RawClient(plaintext_rig)) as stranger:
        assert stranger.log_in(BROKERS.user, "guessed") == ErrorCode.SASL_AUTHENTICATION_FAILED
        assert stranger.exchange_frame(requests[PERSISTER]) == b""
    for request in requests.values():
        with closing(RawClient(plaintext_rig)) as stranger:
            assert stranger.exchange_frame(request) == b""
    assert plaintext_rig.relay.metric('connections_decided_total{destination="coordinator"}') == before


def test_expiring_sasl_sessions_are_reauthenticated(plaintext_rig: RelayedRig) -> None:
    relay, client = plaintext_rig.relay, plaintext_rig.client
    topic, group, _ = new_topic(client, "sessions", settings=LONG_RECORD_LOCK)
    recorder = DeliveryRecorder()
    consumer = client.share_consumer(group, topic, SMALL_COMMITS)
    goal = relay.metric("reauthentications_total") + 4
    with consume_in_thread(recorder, consumer, mixed_acknowledgements):
        count = 0
        while relay.metric("reauthentications_total") < goal:
            count = consume_every_second(client, recorder, topic, count)
    consumer.close()
    assert recorder.failed_commits == 0
    assert recorder.violations == []
    assert relay.metric('connections_refused_total{reason="session"}') == 0


def test_kills_of_relay_lose_no_acknowledged_record(plaintext_rig: RelayedRig) -> None:
    partitions, kills, per_round = 3, 4, 60
    topic, group, _ = new_topic(plaintext_rig.client, "kills", partitions=partitions)
    recorder = DeliveryRecorder()
    consumer = plaintext_rig.client.share_consumer(group, topic, SMALL_COMMITS)
    with consume_in_thread(recorder, consumer, mixed_acknowledgements):
        for kill in range(kills):
            produce_records(plaintext_rig.client, topic, partitions, first=kill * per_round, count=per_round)
            recorder.wait_until_acknowledged(kill * partitions * per_round + partitions * 10, seconds=120)
            plaintext_rig.relay.kill()
            plaintext_rig.relay.start()
            recorder.wait_until_acknowledged((kill + 1) * partitions * per_round, seconds=120)
    consumer.close()
    assert consume_rest(plaintext_rig.client, group, topic, partitions, end=kills * per_round) == []
    assert recorder.violations == []


def test_persister_waits_for_killed_coordinator(plaintext_rig: RelayedRig) -> None:
    topic, group, _ = new_topic(plaintext_rig.client, "waits")
    recorder = DeliveryRecorder()
    consumer = plaintext_rig.client.share_consumer(group, topic, SMALL_COMMITS)
    with consume_in_thread(recorder, consumer, mixed_acknowledgements):
        produce_records(plaintext_rig.client, topic, 1, first=0, count=100)
        recorder.wait_until_acknowledged(20, seconds=120)
        plaintext_rig.coordinator.kill()
        # All earlier records may be acknowledged already, so produce further records.
        produce_records(plaintext_rig.client, topic, 1, first=100, count=100)
        wait_until(
            lambda: plaintext_rig.relay.metric("connections_waiting_for_coordinator") > 0,
            seconds=120,
            what="a persister is held",
        )
        plaintext_rig.coordinator.start()
        recorder.wait_until_acknowledged(200, seconds=120)
    consumer.close()
    assert recorder.violations == []


def test_incomplete_scram_exchange_does_not_reach_coordinator(tmp_path: Path) -> None:
    """The broker is of the oldest release."""
    security = sasl_between_brokers(SCRAM, BROKERS)
    with relayed_rig(fetch_jars(RELEASES[0]), tmp_path, security, ALLOWED) as rig:
        consume_with_group(rig.client, rig.coordinator, "scram")
        before = rig.relay.metric('connections_decided_total{destination="coordinator"}')
        with closing(RawClient(rig)) as stranger:
            stranger.exchange_frame(handshake_request(SCRAM))
            challenge = stranger.exchange_frame(token_request(b"n,,n=kafka,r=a-nonce"))
            assert Struct(">h").unpack_from(challenge, 5) == (ErrorCode.NONE,)
            # The SCRAM exchange is incomplete, so the client is not authenticated.
            assert stranger.exchange_frame(encode_request(METADATA, PERSISTER, NO_TOPICS, version=4)) == b""
        assert rig.relay.metric('connections_refused_total{reason="unauthenticated"}') == 1
        assert rig.relay.metric('connections_decided_total{destination="coordinator"}') == before


def test_share_group_works_over_mutual_tls_without_sasl(newest_jars: KafkaJars, tmp_path: Path) -> None:
    authority = CertificateAuthority(tmp_path / "certificates")
    relay, broker = authority.issue_certificate("relay"), authority.issue_certificate("broker")
    trusted = str(authority.certificate)
    overrides = {
        "listener.security.protocol.map": "CLIENT:PLAINTEXT,INTERNAL:SSL,CONTROLLER:PLAINTEXT",
        **tls_between_brokers(str(broker.combined_file), trusted, client_auth="required"),
    }
    settings = {
        "relay.security.protocol": "SSL",
        "relay.allowed.principals": "User:CN=broker",
        "relay.ssl.certificate.location": str(relay.combined_file),
        "relay.ssl.ca.location": trusted,
        "relay.ssl.client.auth": "required",
        "ssl.ca.location": trusted,
        "ssl.certificate.location": str(relay.combined_file),
    }
    with relayed_rig(newest_jars, tmp_path, BrokerSecurity(overrides), settings) as rig:
        consume_with_group(rig.client, rig.coordinator, "tls-alone")


def test_three_brokers_replicate_through_their_relays_over_sasl_and_tls(
    newest_jars: KafkaJars, tmp_path: Path
) -> None:
    """Each record has three copies before it is acknowledged, and replication passes through the relays.

    The relays also authenticate to the brokers with a certificate.
    """
    authority = CertificateAuthority(tmp_path / "certificates")
    relay, broker = authority.issue_certificate("relay"), authority.issue_certificate("broker")
    trusted = str(authority.certificate)
    settings = {
        **ALLOWED,
        "relay.security.protocol": "SASL_SSL",
        "relay.ssl.certificate.location": str(relay.combined_file),
        "ssl.ca.location": trusted,
        "ssl.certificate.location": str(relay.combined_file),
    }
    tls = tls_between_brokers(str(broker.combined_file), trusted, client_auth="required")
    security = sasl_between_brokers(SCRAM, BROKERS, tls=tls)
    with relayed_rig(newest_jars, tmp_path, security, settings, brokers=3) as rig:
        consume_with_group(rig.client, rig.coordinator, "replicated", partitions=6)
        sent = [relay.metric('received_bytes_total{destination="broker"}') for relay in rig.relays]
        assert min(sent) > 10_000
        topic, group, _ = new_topic(rig.client, "survives", partitions=3)
        produce_records(rig.client, topic, 3, first=0, count=30)
        recorder = DeliveryRecorder()
        consumer = rig.client.share_consumer(group, topic, SMALL_COMMITS)
        # More than two partitions have, so that each partition has state.
        recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, 75, seconds=120)
        rig.relays[1].kill()
        rig.relays[1].start()
        produce_records(rig.client, topic, 3, first=30, count=30)
        # The killed broker leads one of the three partitions, and the new leader reads its state.
        rig.brokers[1].kill()
        recorder.consume_until_acknowledged(consumer, mixed_acknowledgements, 180, seconds=120)
        consumer.close()
        assert consume_rest(rig.client, group, topic, 3, end=60) == []
        assert recorder.violations == []
