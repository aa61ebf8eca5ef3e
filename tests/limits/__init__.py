"""Limits that hold against hostile and very large requests: memory, event-loop time, connections."""
