"""End-to-end tests: a real broker, Kafka's own clients and tools, HAProxy and the coordinator."""
