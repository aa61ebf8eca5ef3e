"""Fuzzing of all decoders of external bytes, in Python and in C."""
