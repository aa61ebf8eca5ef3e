"""Fuzzing of everything that decodes bytes from outside, in Python and in C."""
