"""Tests of coordinator.fastpath alone. Tests in tests/property compare the fast path with pure Python."""
