"""Tests of the limits against hostile and very large requests: memory, event-loop time, connections."""
