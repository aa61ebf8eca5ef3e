"""Tests of TLS, SASL and principals."""
