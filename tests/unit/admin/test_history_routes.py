"""The delivery history of a share-partition and of one record over HTTP, as `recovery explain` shows it."""

import asyncio
import os
import signal
from typing import Any

import pytest

from coordinator.operate.history import HistoryProcess
from coordinator.operate.history import process as history_process
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.routing import state_partition
from protocol.state_records import SharePartitionKey, StateRecord, topic_id_text
from tests.builders import TOPIC_ID, pack_batches
from tests.unit.admin.admin_server import NOW_MS, SHARDS, AdminTestClient, TopicsInMemory, run_admin

KEY = SharePartitionKey("orders", TOPIC_ID, 0)
INITIALISED = ShareSnapshotValue(0, 1, 0, 0, NOW_MS, NOW_MS, b"", 0)
PATH = f"/api/v1/delivery-history?group=orders&topic={topic_id_text(TOPIC_ID)}&partition=0"


def make_update(leader_epoch: int, start_offset: int, *batches: tuple[int, int, int, int]) -> StateRecord:
    return StateRecord(KEY, ShareUpdateValue(0, leader_epoch, start_offset, pack_batches(*batches), 0))


# Record 4 is released, then accepted, and then the start offset moves to 5.
RECORDS = [
    StateRecord(KEY, INITIALISED),
    make_update(1, 0, (0, 3, 2, 1), (4, 4, 0, 1)),
    StateRecord(SharePartitionKey("orders", TOPIC_ID, 1), INITIALISED),
    make_update(1, -1, (4, 4, 2, 2)),
    make_update(2, 5),
]


async def read_history(coordinator: AdminTestClient, more: str = "") -> dict[str, Any]:
    answer = await coordinator.get(PATH + more)
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert isinstance(found, dict)
    return found


async def test_history_of_record_shows_each_change_of_its_state() -> None:
    async with run_admin(RECORDS, TopicsInMemory({TOPIC_ID: "parcels"})) as coordinator:
        found = await read_history(coordinator, "&record_offset=4")
        unknown = await coordinator.get(PATH.replace("partition=0", "partition=7"))
    shown = [(event["delivery_state"], event["delivery_count"], event["what"]) for event in found["events"]]
    assert shown == [
        (None, None, "done: the start offset is 5"),
        ("ACKNOWLEDGED", 2, "accepted (ACKNOWLEDGED) at delivery 2"),
        ("AVAILABLE", 1, "released, to be delivered again (AVAILABLE) at delivery 1"),
        (None, None, "nothing is stored of it: not delivered yet, or handed out for the first time"),
    ]
    assert found["summary"] == "record 4: done: the start offset is 5"
    assert (found["topic"], found["record_offset"], found["records"]) == ("parcels", 4, 4)
    assert {event["time"] for event in found["events"]} == {"2023-11-14T22:13:20.123Z"}
    assert found["pruned"] is None
    assert unknown.status_code == 404
    assert "has no records of share-partition orders" in unknown.json()["message"]


async def test_history_of_share_partition_is_read_in_pages() -> None:
    async with run_admin(RECORDS) as coordinator:
        whole = await read_history(coordinator)
        pages, before = [], ""
        while before is not None:
            page = await read_history(coordinator, f"&limit=3{before}")
            pages.append(page["events"])
            before = None if page["next"] is None else f"&before={page['next']}"
        number = state_partition(KEY, SHARDS)
        coordinator.log.prune(number, 1)
        pruned = await read_history(coordinator)
        coordinator.log._batches[number].append(b"\0" * 100)
        undecodable = await coordinator.get(PATH)
    assert [len(events) for events in pages] == [3, 1]
    assert [event for events in pages for event in events] == whole["events"]
    assert [event["record"] for event in whole["events"]] == ["update", "update", "update", "snapshot"]
    assert [event["leader_epoch"] for event in whole["events"]] == [2, 1, 1, 0]
    assert whole["events"][2]["what"] == (
        "leader epoch 1; 0-3 accepted at delivery 1; 4 released, to be delivered again at delivery 1"
    )
    assert len(pruned["events"]) == 3
    assert pruned["log_start_offset"] == 1
    assert pruned["pruned"].startswith("records before log offset 1 were pruned; events before 2023-11-14T")
    assert undecodable.status_code == 503
    assert (
        "cannot be read: batch length 0 at byte 0 is shorter than a batch header"
        in undecodable.json()["message"]
    )


async def test_other_requests_are_answered_while_history_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The history process is a `sleep` that ends only when it is killed."""
    monkeypatch.setattr(history_process, "COMMAND", ["sleep", "600"])
    async with run_admin(RECORDS) as coordinator:
        reading = asyncio.create_task(coordinator.get(PATH))
        while coordinator.history.pid is None:  # noqa: ASYNC110 (a thread starts the process)
            await asyncio.sleep(0)
        assert (await coordinator.get("/livez")).status_code == 200
        waiting = [asyncio.create_task(coordinator.get(PATH)) for _ in range(5)]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert {task.result().status_code for task in done} == {503}
        coordinator.history.close()
        assert (await reading).status_code == 503
        assert {task.result().status_code for task in (await asyncio.wait(waiting))[0]} == {503}
        assert coordinator.history.pid is None


async def wait_until_history_process_ended(coordinator: AdminTestClient) -> None:
    async with asyncio.timeout(60):
        while coordinator.history.pid is not None:  # noqa: ASYNC110 (a thread ends the process)
            await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_one_process_reads_all_histories_and_is_replaced_after_it_dies() -> None:
    async with run_admin(RECORDS) as coordinator:
        found = await read_history(coordinator)
        pid = coordinator.history.pid
        assert pid is not None
        assert (await read_history(coordinator), coordinator.history.pid) == (found, pid)
        os.kill(pid, signal.SIGKILL)
        # With WNOWAIT, the coordinator can still read the exit status.
        await asyncio.to_thread(os.waitid, os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert await read_history(coordinator) == found
        assert coordinator.history.pid not in (None, pid)


@pytest.mark.slow
async def test_idle_history_process_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_process, "IDLE_S", 0.0)
    async with run_admin(RECORDS) as coordinator:
        await read_history(coordinator)
        await wait_until_history_process_ended(coordinator)


@pytest.mark.slow
async def test_history_process_over_its_memory_limit_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_process, "RESIDENT_BYTES_MAX", 0)
    async with run_admin(RECORDS) as coordinator:
        await read_history(coordinator)
        assert coordinator.history.pid is None


async def test_history_over_its_time_limit_returns_503(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_process, "COMMAND", ["sh", "-c", "kill -ALRM $$"])
    async with run_admin(RECORDS) as coordinator:
        answer = await coordinator.get(PATH)
    assert answer.status_code == 503
    assert (
        "takes longer than 25 s to read; use share-coordinator recovery explain" in answer.json()["message"]
    )


def test_unused_history_process_can_be_closed() -> None:
    HistoryProcess(lambda state_partition: pytest.fail("not opened")).close()
