"""TLS with reloadable files, SASL mechanisms and principals, for the Kafka listener and the HTTP listener.

This package takes settings as values and does not read the configuration.
"""
