"""Recorded requests of Kafka's persister can be replayed."""

from pathlib import Path

import pytest

from tests.benchmarks.recording import list_recordings, load_recording
from tests.benchmarks.replay import ReplayWorkload

TOPIC_IDS = [bytes([number]) * 16 for number in range(5)]


@pytest.mark.parametrize("path", list_recordings(), ids=lambda path: path.name)
def test_every_recording_in_the_repository_can_be_replayed(path: Path) -> None:
    recording = load_recording(path)
    replay = ReplayWorkload(recording, brokers=1)
    clients = replay.clients(0, TOPIC_IDS)
    assert sum(len(client.run) for client in clients) == len(recording.shapes) == recording.about["requests"]
    assert {topic for shape in recording.shapes for topic, _ in shape.topics} <= set(range(len(TOPIC_IDS)))
