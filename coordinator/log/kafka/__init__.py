"""The state log in a Kafka topic: records that count, appended and read by us, on aiokafka's connections.

The rule of ownership is `coordinator.log.claims`; `kafka_log` is the log. What it needs of a cluster is
`coordinator.kafka.cluster`.
"""

from coordinator.log.kafka.kafka_log import KafkaLog
from coordinator.log.kafka.limits import KafkaLogLimits
from coordinator.log.kafka.topic import TopicConfig

__all__ = ["KafkaLog", "KafkaLogLimits", "TopicConfig"]
