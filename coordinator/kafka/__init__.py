"""The way to a Kafka cluster: connections, metadata, requests.  The only package that knows aiokafka.

`cluster` is the seam to the state log in plain values, `brokers` its real implementation; importing this
package alone does not import the library.
"""
