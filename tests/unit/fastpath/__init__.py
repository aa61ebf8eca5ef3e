"""Tests of coordinator.fastpath alone. The tests that compare it with pure Python are in tests/property."""
