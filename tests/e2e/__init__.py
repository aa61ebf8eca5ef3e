"""The whole thing: a real broker, Kafka's own clients and tools, HAProxy and our coordinator."""
