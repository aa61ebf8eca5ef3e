"""Tests of coordinator.fastpath that need no other way beside it; those are in tests/property."""
