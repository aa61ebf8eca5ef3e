"""Drive Kafka's own Java clients from Python, by a JVM that reads commands from stdin (java/Driver.java)."""

import itertools
import json
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, NamedTuple

from tests.kafka.jars import KafkaJars
from tests.kafka.processes import ChildProcess

# This timeout is longer than the timeouts of Kafka's clients (default.api.timeout.ms is 60 s).
_ANSWER_TIMEOUT_S = 180


class KafkaClientError(Exception):
    """Raised if a Kafka client threw an exception; has the name of the Java class and the Java message."""

    def __init__(self, java_class: str, message: str | None) -> None:
        super().__init__(f"{java_class}: {message}")
        self.java_class = java_class


class Delivery(NamedTuple):
    """A record that a share consumer received. The first delivery of a record has the count 1."""

    topic: str
    partition: int
    offset: int
    value: str
    delivery_count: int


class CommitFailure(NamedTuple):
    """The cause of a failed commit of a partition: the name of a Java exception, and its message."""

    java_class: str
    message: str | None


class KafkaClient:
    """A JVM with an admin client, a producer, and any number of share consumers.

    The methods are thread-safe.
    """

    def __init__(self, jars: KafkaJars, bootstrap: str, directory: Path) -> None:
        """Start the JVM."""
        self.process = ChildProcess(
            "Kafka client", jars.java_command("Driver", bootstrap), directory / "client.log", piped=True
        )
        self._ids = itertools.count()
        self._lock = threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self.process.start()
        self._reader = threading.Thread(target=self._read_answers, name="kafka client answers", daemon=True)
        self._reader.start()

    def close(self) -> None:
        """Kill the JVM; its consumers do not leave their groups."""
        self.process.kill()
        self._reader.join()

    def create_topic(self, topic: str, *, partitions: int = 1) -> str:
        """Create a topic and return its id in Kafka's format (base64url, 22 characters)."""
        return str(self.call("create_topic", topic=topic, partitions=partitions)["topic_id"])

    def topics(self) -> set[str]:
        """Return the names of all topics, including internal topics."""
        return set(self.call("topics"))

    def set_group_config(self, group: str, settings: Mapping[str, str]) -> None:
        self.call("set_group_config", group=group, settings=dict(settings))

    def produce(self, topic: str, count: int, *, first: int = 0, partition: int = 0) -> list[int]:
        """Produce `count` records with the values `first`, `first` + 1, ...; return their offsets."""
        answer = self.call("produce", topic=topic, count=count, first=first, partition=partition)
        return [int(offset) for offset in answer]

    def share_consumer(
        self, group: str, topic: str, settings: Mapping[str, str] | None = None
    ) -> "ShareConsumer":
        """Open a share consumer of `topic` that acknowledges each record explicitly."""
        name = f"consumer-{next(self._ids)}"
        self.call("open", consumer=name, group=group, topic=topic, settings=dict(settings or {}))
        return ShareConsumer(self, name)

    def call(self, operation: str, **arguments: Any) -> Any:
        """Run one command of the driver and return its result. Raises `KafkaClientError` for an exception."""
        command_id = next(self._ids)
        answer: Future[Any] = Future()
        with self._lock:
            self._waiting[command_id] = answer
            command = {"id": command_id, "operation": operation, **arguments}
            self.process.stdin.write(json.dumps(command) + "\n")
            self.process.stdin.flush()
        return answer.result(_ANSWER_TIMEOUT_S)

    def _read_answers(self) -> None:
        for line in self.process.stdout:
            answer = json.loads(line)
            waiting = self._waiting.pop(answer["id"])
            if failure := answer.get("failure"):
                waiting.set_exception(KafkaClientError(failure["class"], failure["message"]))
            else:
                waiting.set_result(answer["result"])
        # The JVM has ended: fail all pending commands.
        for waiting in self._waiting.values():
            waiting.set_exception(KafkaClientError("", f"the Kafka client ended, see {self.process.log}"))


class ShareConsumer:
    """A KafkaShareConsumer with explicit acknowledgement. Not thread-safe."""

    def __init__(self, client: KafkaClient, name: str) -> None:
        self._client = client
        self._name = name

    def poll(self, timeout_ms: int = 1_000) -> list[Delivery]:
        """Return the records that arrive within `timeout_ms`; acknowledge them before the next poll."""
        rows = self._client.call("poll", consumer=self._name, timeout_ms=timeout_ms)
        return [Delivery(*row) for row in rows]

    def acknowledge(self, types: Sequence[str]) -> dict[tuple[str, int], CommitFailure | None]:
        """Acknowledge the records of the last poll, the record with index i with `types[i]`, and commit.

        A type is ACCEPT, RELEASE or REJECT. For each (topic, partition), return None if commitSync reported
        success, else the failure.
        """
        rows = self._client.call("settle", consumer=self._name, types=list(types))
        return {
            (topic, partition): CommitFailure(failure["class"], failure["message"]) if failure else None
            for topic, partition, failure in rows
        }

    def close(self) -> None:
        """Close the consumer, and wait until the broker has removed the member from the group.

        The `close` of the Java consumer does not wait until the member is removed. The broker drops the
        in-memory state of a group when its last member has left.
        """
        self._client.call("close", consumer=self._name)
