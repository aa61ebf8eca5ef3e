"""Tests of coordinator.hot that need no other way beside it; those are in tests/property."""
