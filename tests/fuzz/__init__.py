"""Fuzz targets for all decoders of external bytes, in Python and in C."""
