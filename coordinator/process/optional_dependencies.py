"""The command that installs the packages for Kafka clients, for error messages."""

KAFKA_EXTRA = "pip install share-coordinator[kafka]"
