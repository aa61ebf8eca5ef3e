"""Benchmarks, which run on demand with `make bench`; no test measures time."""
