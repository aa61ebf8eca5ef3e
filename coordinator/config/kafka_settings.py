"""Settings of Kafka's own coordinator that ours has no use for, and Kafka names for which ours has another.

The rule for the first: one that only tunes Kafka's implementation is accepted and has no effect (an
operator may bring a broker's file along). What promises safety is never among them.
"""

from typing import NamedTuple


class KafkaSetting(NamedTuple):
    """A setting of Kafka that is understood and changes nothing. `low` and `high` are the values accepted."""

    name: str
    low: int
    high: int
    reason: str


_INT32_MAX = 2**31 - 1
_TOPIC = "share.coordinator.state.topic."

SETTINGS_WITHOUT_EFFECT = {
    kafka_setting.name: kafka_setting
    for kafka_setting in (
        KafkaSetting(
            _TOPIC + "segment.bytes", 1, _INT32_MAX, "see journal.segment.bytes; a topic is the brokers'"
        ),
        KafkaSetting(
            _TOPIC + "compression.codec", 0, 4, "state is not compressed; it is kept small by pruning"
        ),
        KafkaSetting(
            "share.coordinator.load.buffer.size", 1, _INT32_MAX, "loading has a fixed bound of its own"
        ),
        KafkaSetting("share.coordinator.threads", 1, _INT32_MAX, "one event loop serves all shards"),
        KafkaSetting(
            "share.coordinator.append.linger.ms",
            -1,
            _INT32_MAX,
            "there is no timer: an idle shard writes at once, a busy one collects while its last write runs",
        ),
        KafkaSetting("share.coordinator.cached.buffer.max.bytes", 524_288, _INT32_MAX, "no buffers are kept"),
    )
}

# What somebody who knows Kafka would write first.
EQUIVALENT_SETTINGS = {
    "listeners": "listen",
    "advertised.listeners": "advertise",
    "log.dir": "data.dir",
    "log.dirs": "data.dir",
    "node.id": "node.id.first",
    "broker.id": "node.id.first",
    "queued.max.requests": "max.in.flight.requests.per.connection",
    "log.flush.interval.messages": "journal.sync",
    "log.segment.bytes": "journal.segment.bytes",
    "metadata.broker.list": "bootstrap.servers",
    "sasl.jaas.config": "sasl.username",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.keystore.location": "ssl.certificate.location",
}
