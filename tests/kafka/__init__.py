"""Run a real Kafka for tests: brokers from Maven jars, HAProxy, and Kafka's own Java client and tools.

No module here imitates Kafka. A test requests a broker through a fixture of `tests.kafka.fixtures`. Every
process started here ends with the test process, even if the test process is killed.
"""

from tests.kafka.broker import Broker
from tests.kafka.client import CommitFailure, Delivery, KafkaClient, KafkaClientError, ShareConsumer
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.haproxy import HAProxy
from tests.kafka.jars import RELEASES, KafkaJars, fetch_jars
from tests.kafka.ports import free_ports
from tests.kafka.processes import ChildProcess, ConditionTimeout, wait_until
from tests.kafka.rig import BuiltInRig, StandaloneRig
from tests.kafka.share_group_tool import ShareGroupTool

__all__ = [
    "RELEASES",
    "Broker",
    "BuiltInRig",
    "ChildProcess",
    "CommitFailure",
    "ConditionTimeout",
    "CoordinatorProcess",
    "Delivery",
    "HAProxy",
    "KafkaClient",
    "KafkaClientError",
    "KafkaJars",
    "ShareConsumer",
    "ShareGroupTool",
    "StandaloneRig",
    "fetch_jars",
    "free_ports",
    "wait_until",
]
