"""Benchmarks: figures on demand, never a timed test. `make bench` runs them."""
