"""Kafka bytes to values and back. Pure: knows no coordinator, no socket and no clock."""
