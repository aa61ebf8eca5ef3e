"""Compare the delivery history of the HTTP API with the job `explain` on the same log."""

import json
from typing import Any
from urllib.parse import urlencode

from coordinator.recovery.explain import explain
from coordinator.recovery.sources.base import Source
from protocol.state_records import SharePartitionKey, topic_id_text
from tests.kafka.served_process import ServedProcess


def read_history(process: ServedProcess, key: SharePartitionKey, **more: int) -> dict[str, Any]:
    """Return a page of the delivery history; `more` has further query parameters."""
    named = {"group": key.group_id, "topic": topic_id_text(key.topic_id), "partition": key.partition}
    status, body = process.get(f"/api/v1/delivery-history?{urlencode(named | more)}")
    assert status == 200, body
    found = json.loads(body)
    assert isinstance(found, dict)
    return found


def check_history(process: ServedProcess, source: Source, key: SharePartitionKey, offset: int) -> None:
    """Check that the HTTP API and the job `explain` agree about a share-partition and a record.

    The log must not change meanwhile.
    """
    for selected in (None, offset):
        explained = explain(source, key, selected).to_json_values()
        more = {} if selected is None else {"record_offset": selected}
        found = read_history(process, key, limit=1_000, **more)
        assert found["summary"] == explained["summary"]
        assert found["records"] == explained["records"]
        assert found["state_partition"] == explained["state_partition"]
        assert [_make_comparable(event) for event in reversed(found["events"])] == [
            _make_comparable(event) for event in explained["events"]
        ]


def _make_comparable(event: dict[str, Any]) -> tuple[object, ...]:
    owner_epoch = event["owner_epoch"]
    names = ("log_offset", "time", "record", "leader_epoch", "what")
    return (*(event[name] for name in names), None if owner_epoch == -1 else owner_epoch)
