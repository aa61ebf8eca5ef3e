"""Encode and decode Kafka's wire format. Pure: no I/O, no clock, no import from the coordinator."""
