"""The state log in a Kafka topic: records that count, appended and read by us, on aiokafka's connections.

The rule of ownership is `coordinator.log.claims`; `kafka_log` is the log; `cluster` says what it needs of a
cluster, and `brokers` alone knows the client library.
"""

from coordinator.log.kafka.kafka_log import KafkaLog, KafkaLogLimits
from coordinator.log.kafka.security import Security
from coordinator.log.kafka.topic import TopicWish

__all__ = ["KafkaLog", "KafkaLogLimits", "Security", "TopicWish"]
