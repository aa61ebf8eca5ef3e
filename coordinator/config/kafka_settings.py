"""Kafka's names for settings that have another name here, or that have no equivalent here."""

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
    "share.coordinator.state.topic.segment.bytes": "journal.segment.bytes",
    "metadata.broker.list": "bootstrap.servers",
    "sasl.jaas.config": "sasl.username",
    "ssl.truststore.location": "ssl.ca.location",
    "ssl.keystore.location": "ssl.certificate.location",
}

# Settings that only tune Kafka's implementation.
SETTINGS_WITHOUT_EQUIVALENT = {
    "share.coordinator.append.linger.ms",
    "share.coordinator.cached.buffer.max.bytes",
    "share.coordinator.load.buffer.size",
    "share.coordinator.state.topic.compression.codec",
    "share.coordinator.threads",
}
