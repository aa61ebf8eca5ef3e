"""State logs: the port (`base`), and memory, an embedded journal and a Kafka topic behind it."""
