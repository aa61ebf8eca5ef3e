"""State logs: the interface (`base`), and its implementations in memory, a journal and a Kafka topic."""
