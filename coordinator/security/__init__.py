"""TLS with reloadable files, SASL mechanisms and principals, for the Kafka listener and the HTTP listener.

This package gets settings as values and does not read the configuration.
"""
