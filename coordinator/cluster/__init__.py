"""The Kafka cluster around a coordinator: its brokers and topics, and which coordinator owns which shard."""
