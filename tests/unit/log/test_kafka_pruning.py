"""How far the log in a topic is pruned: what has to stay, and what if it cannot be done."""

import asyncio

import pytest

from coordinator.errors import LogOutcomeUnknown, LogUnavailable
from coordinator.kafka.cluster import NoResponse
from tests.unit.log.environments import append, append_durably, prune
from tests.unit.log.kafka_logs import ONE, KafkaLogs, run, served, values


def test_pruning_keeps_a_record_that_tells_the_owner_epoch() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        log = await all_of_them.owner(0)
        for _ in range(5):
            await append_durably(log, 0, ONE)
        await prune(log, 0, 6)
        await log.close()
        # The renewal says owner epoch and lease.
        assert all_of_them.partition(0).start == 6
        late = all_of_them.log()
        await late.open()
        assert await late.own(0) == 2

    run(main())


def test_a_record_that_does_not_count_is_never_the_first_of_a_pruned_log() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        all_of_them.kafka.transactional = False
        log = await all_of_them.owner(0)
        await append_durably(log, 0, [(b"k", None)])
        second = await all_of_them.owner(0)
        await append_durably(second, 0, [(b"k", None)])
        # The first one does not know yet, and the broker does not stop it.
        all_of_them.write(0, [(b"k", b"of a zombie")], owner_epoch=1)
        third = all_of_them.log()
        await third.open()
        # It misleads who comes next about the owner epoch, too.
        await third.own(0)
        with pytest.raises(LogUnavailable, match="does not count"):
            await values(third)
        await third.own(0)
        assert await values(third) == [None, None]
        # Nothing is left, so that nothing is needed of what lies below the zombie's record.
        await served(third, 0)
        await prune(third, 0, 4)
        await third.close()
        assert all_of_them.partition(0).start == 6
        assert await values(await all_of_them.owner(0)) == []

    run(main())


def test_nothing_is_pruned_for_the_sake_of_records_that_were_lost() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        log = await all_of_them.owner(0)
        for _ in range(5):
            await append_durably(log, 0, ONE)
        # The newest record says all, so that the older ones are not needed; but then it is lost.
        all_of_them.partition(0).truncate(5)
        log.prune(0, 5)
        assert await values(log) == [b"value"] * 4
        # The renewal that deleting waits for finds out.
        assert log.renewal_due(0, read=False)
        assert isinstance((await append(log, 0, []))[1], LogOutcomeUnknown)
        await log.close()
        assert all_of_them.partition(0).start == 0

    run(main())


def test_what_could_not_be_pruned_is_not_pruned_in_a_log_that_went_back_meanwhile() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        log, cluster = all_of_them.log_and_cluster()
        await log.open()
        await log.own(0)
        await values(log)
        for _ in range(5):
            await append_durably(log, 0, ONE)

        async def hangs(node: int, offsets: dict[int, int]) -> dict[int, int]:
            raise NoResponse("the broker hangs", sent=True)

        delete, cluster.delete_records = cluster.delete_records, hangs  # type: ignore[method-assign]
        await prune(log, 0, 5)
        await asyncio.sleep(0.1)
        cluster.delete_records = delete  # type: ignore[method-assign]
        # What is left of the log is loaded anew, and then another shard is pruned.
        all_of_them.partition(0).truncate(4)
        await log.own(0)
        assert await values(log) == [b"value"] * 3
        await log.own(1)
        async for _ in log.read((1,)):
            pass
        for _ in range(3):
            await append_durably(log, 1, ONE)
        await prune(log, 1, 2)
        await log.close()
        assert (all_of_them.partition(0).start, all_of_them.partition(1).start) == (0, 2)

    run(main())


def test_a_broker_that_cannot_delete_records_switches_pruning_off(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        all_of_them.kafka.deletes_records = False
        log = await all_of_them.owner(0)
        for turn in range(5):
            await append_durably(log, 0, ONE)
            await prune(log, 0, turn + 1)
            await append_durably(log, 0, ONE)
        assert all_of_them.pruning_failed == ["unsupported"]
        assert caplog.text.count("pruning is off") == 1
        assert all_of_them.kafka.requests.count(("delete", 1)) == 1

    run(main())


def test_who_cannot_log_in_to_prune_is_counted_and_the_log_closes() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        log = await all_of_them.owner(0)
        for _ in range(5):
            await append_durably(log, 0, ONE)

        async def no_token(node: int, offsets: object) -> dict[int, int]:
            raise LogUnavailable("no token")

        log._cluster.delete_records = no_token  # type: ignore[method-assign, assignment]
        await prune(log, 0, 6)
        await log.close()
        assert all_of_them.pruning_failed == ["unreachable"]

    run(main())


def test_a_pruning_that_failed_unforeseen_does_not_keep_the_log_from_closing() -> None:
    async def main() -> None:
        all_of_them = KafkaLogs()
        log = await all_of_them.owner(0)
        for _ in range(5):
            await append_durably(log, 0, ONE)

        async def defect(node: int, offsets: object) -> dict[int, int]:
            raise RuntimeError("a defect")

        log._cluster.delete_records = defect  # type: ignore[method-assign, assignment]
        await prune(log, 0, 6)
        await log.close()

    run(main())
