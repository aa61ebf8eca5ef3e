"""Record the requests of a persister as *shapes*: their structure, without names and payload."""

import time
from collections import defaultdict
from collections.abc import Callable, Hashable
from itertools import count
from threading import Lock
from typing import Any, TypeVar

from protocol.frames import FrameReader
from protocol.messages import APIS, find_coordinator, request_header, request_header_version
from protocol.state_batches import unpack
from protocol.state_records import parse_topic_id
from tests.benchmarks.frames import RequestEntry
from tests.benchmarks.recording import RECORDED_FIELDS, RequestShape

_FRAME_BYTES_MAX = 1 << 26
# The client id of a persister; other connections of a broker are not recorded.
_PERSISTER = "Persister-client-"
K = TypeVar("K", bound=Hashable)


class TrafficRecorder:
    """Collects the requests of all connections of a broker's persister. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._requests_max = 0
        self._requests: list[tuple[float, int, int, int, Any]] = []
        self._connections = count()
        self._lock = Lock()

    def begin(self, requests_max: int) -> None:
        """Start a new recording; open connections remain part of it."""
        with self._lock:
            self._requests = []
            self._requests_max = requests_max

    @property
    def full(self) -> bool:
        """Whether the maximum number of requests was recorded."""
        return self.count >= self._requests_max

    @property
    def count(self) -> int:
        """The number of recorded requests."""
        return len(self._requests)

    def seconds_since_last(self) -> float:
        """Return the time since the last recorded request, in seconds."""
        return self._clock() - self._requests[-1][0] if self._requests else 0.0

    def record_connection(self) -> Callable[[bytes], None]:
        """Return a function that records the received bytes of a new connection."""
        reader = FrameReader(_FRAME_BYTES_MAX)
        with self._lock:
            number = next(self._connections)

        def record_data(data: bytes) -> None:
            for frame in reader.receive_data(data):
                self._record_frame(number, frame, self._clock())

        return record_data

    def _record_frame(self, connection: int, frame: bytes, now_s: float) -> None:
        api_key, version = int.from_bytes(frame[:2], "big"), int.from_bytes(frame[2:4], "big")
        if api_key not in RECORDED_FIELDS or self.full:
            return
        header, start = request_header.decode(frame, 0, request_header_version(api_key, version))
        if not (header.client_id or "").startswith(_PERSISTER):
            return
        request = APIS[api_key].module.decode_request(frame, start, version)
        with self._lock:
            self._requests.append((now_s, connection, api_key, version, request))

    def shapes(self) -> list[RequestShape]:
        """Return the shapes of the recorded requests."""
        with self._lock:
            return _Anonymizer().shapes(self._requests)


class _Anonymizer:
    """Replaces names with numbers, and epochs and offsets with the differences to their lowest value."""

    def __init__(self) -> None:
        self._connections: dict[int, int] = {}
        self._groups: dict[str, int] = {}
        self._topics: dict[bytes, int] = {}
        self._partitions: defaultdict[bytes, dict[int, int]] = defaultdict(dict)
        self._start_offsets: dict[tuple[str, bytes, int], int] = {}
        self._state_epochs: dict[tuple[str, bytes, int], int] = {}
        self._leader_epochs: dict[tuple[str, bytes, int], int] = {}

    def shapes(self, requests: list[tuple[float, int, int, int, Any]]) -> list[RequestShape]:
        began_s = requests[0][0] if requests else 0.0
        for _, _, _, _, request in requests:
            self._record_lowest_epochs(request)
        return [
            RequestShape(
                round((now_s - began_s) * 1000),
                _assign_number(self._connections, connection),
                api_key,
                version,
                *self._number_request(request),
            )
            for now_s, connection, api_key, version, request in requests
        ]

    def _record_lowest_epochs(self, request: Any) -> None:
        """Update the lowest epochs of each share-partition in a request."""
        for topic in getattr(request, "topics", ()):
            for part in topic.partitions:
                key = (request.group_id, topic.topic_id, part.partition)
                for lowest, name in (
                    (self._state_epochs, "state_epoch"),
                    (self._leader_epochs, "leader_epoch"),
                ):
                    epoch = getattr(part, name, -1)
                    if epoch >= 0:
                        lowest[key] = min(epoch, lowest.get(key, epoch))

    def _number_request(self, request: Any) -> tuple[int, list[tuple[int, list[RequestEntry]]]]:
        if isinstance(request, find_coordinator.FindCoordinatorRequest):
            (text,) = request.coordinator_keys
            group, topic, partition = text.rsplit(":", 2)
            topic_id = parse_topic_id(topic)
            entry = RequestEntry(self._number_partition(topic_id, int(partition)))
            return _assign_number(self._groups, group), [(_assign_number(self._topics, topic_id), [entry])]
        group = request.group_id
        topics = [
            (
                _assign_number(self._topics, topic.topic_id),
                [self._number_entry(group, topic.topic_id, part) for part in topic.partitions],
            )
            for topic in request.topics
        ]
        return _assign_number(self._groups, group), topics

    def _number_partition(self, topic_id: bytes, partition: int) -> int:
        return _assign_number(self._partitions[topic_id], partition)

    def _number_entry(self, group: str, topic_id: bytes, part: Any) -> RequestEntry:
        key = (group, topic_id, part.partition)
        start_offset = getattr(part, "start_offset", -1)
        entry = RequestEntry(
            self._number_partition(topic_id, part.partition),
            _relative_epoch(getattr(part, "state_epoch", -1), self._state_epochs.get(key, 0)),
            _relative_epoch(getattr(part, "leader_epoch", -1), self._leader_epochs.get(key, 0)),
        )
        if start_offset < 0:
            return entry
        first = self._start_offsets.setdefault(key, start_offset)
        batches = [
            (batch.first_offset - start_offset, batch.last_offset - batch.first_offset, *batch[2:])
            for batch in unpack(getattr(part, "state_batches", b""))
        ]
        return entry._replace(
            start_offset=start_offset - first,
            delivery_complete_count=getattr(part, "delivery_complete_count", -1),
            batches=batches,
        )


def _assign_number(numbers: dict[K, int], name: K) -> int:
    return numbers.setdefault(name, len(numbers))


def _relative_epoch(epoch: int, lowest: int) -> int:
    return epoch - lowest if epoch >= 0 else 0
