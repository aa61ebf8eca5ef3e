"""Several coordinators of one world, on a Kafka cluster that breaks, and a membership that is often wrong.

`brokers` says what may break there, `membership` who is told what, `world` and `nemesis` what befalls the
coordinators.  `raw_log` states once more which records count, and `truncations` what is left of a promise
when the cluster itself has lost what it acknowledged.
"""
