"""What people are told who use a part whose packages are not installed."""

KAFKA_EXTRA = "pip install share-coordinator[kafka]"
