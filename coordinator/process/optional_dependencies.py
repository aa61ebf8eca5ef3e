"""The installation hint for users of a part whose packages are not installed."""

KAFKA_EXTRA = "pip install share-coordinator[kafka]"
