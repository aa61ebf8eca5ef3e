"""The state log in a Kafka topic; appends and reads use aiokafka's connections.

`coordinator.log.claims` has the rules of ownership, and `kafka_log` is the log.
`coordinator.cluster.kafka.broker_results` is the interface to the cluster.
"""

from coordinator.log.kafka.kafka_log import KafkaLog
from coordinator.log.kafka.limits import KafkaLogLimits
from coordinator.log.kafka.topic import TopicConfig
