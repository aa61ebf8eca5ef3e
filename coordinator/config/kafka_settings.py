"""Kafka's settings without effect here, and Kafka's names for settings that have another name here.

A setting that only tunes Kafka's implementation is accepted without effect, so that an operator can reuse a
broker's file. A setting that affects durability or security is never accepted without effect.
"""

from typing import NamedTuple


class KafkaSetting(NamedTuple):
    """A Kafka setting that is accepted without effect; `low` and `high` limit the accepted values."""

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
            _TOPIC + "segment.bytes", 1, _INT32_MAX, "see journal.segment.bytes; brokers configure topics"
        ),
        KafkaSetting(
            _TOPIC + "compression.codec", 0, 4, "state is not compressed; it is kept small by pruning"
        ),
        KafkaSetting(
            "share.coordinator.load.buffer.size", 1, _INT32_MAX, "the buffer for loading has a fixed size"
        ),
        KafkaSetting("share.coordinator.threads", 1, _INT32_MAX, "one event loop serves all shards"),
        KafkaSetting(
            "share.coordinator.append.linger.ms",
            -1,
            _INT32_MAX,
            "there is no timer: an idle shard writes at once; a busy shard batches during the last write",
        ),
        KafkaSetting(
            "share.coordinator.cached.buffer.max.bytes", 524_288, _INT32_MAX, "buffers are not cached"
        ),
    )
}

# Names that Kafka users may try, and the equivalent settings.
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
