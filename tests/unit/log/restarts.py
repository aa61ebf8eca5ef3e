"""Restart a journal on a simulated disk with random faults, and check its contents after each restart.

A seed determines all random choices. Writers append, some records are pruned, and faults are injected. At
the end, the process closes the journal, is killed, or loses power.

The next process must find every acknowledged append at the same log offset. The next process may find an
append in flight or of unknown outcome, at most once. A refused append must not be found. Records that one
process found or appended must remain in all later processes.

A power failure may lose the last acknowledged records only with sync mode `os`. In this case, the records
that were pruned after the lost records were written must exist again, because only the lost records
replaced them.
"""

import asyncio
from collections.abc import Sequence
from random import Random

from coordinator.errors import LogError, LogOutcomeUnknown, LogUnavailable
from coordinator.log.journal import Journal
from tests.simulation.disk import DiskFaults
from tests.unit.log.environments import STATE_PARTITIONS, SimulatedEnvironment, read_all

RestartResult = dict[int, list[tuple[int, bytes | None, bytes | None]]]


class ExpectedRecords:
    """The records that the log of one state partition must hold."""

    def __init__(self) -> None:
        self.start_offset = 0
        # Per prune: the end offset at that time, and the new start offset.
        self.prunes: list[tuple[int, int]] = []
        self.values: list[bytes] = []
        # Appends that the log may contain after `values`: in flight at a crash, or of unknown outcome.
        self.maybe: list[list[bytes]] = []

    @property
    def end_offset(self) -> int:
        return len(self.values)

    def drop_lost_records(self, end_offset: int) -> None:
        """Remove the records that a power failure has lost, and the prunes after them."""
        del self.values[end_offset:]
        self.prunes = [(end, start) for end, start in self.prunes if end <= end_offset]
        self.start_offset = max((start for _, start in self.prunes), default=0)


class RestartTest:
    """Several processes, one after another, that use the same storage."""

    def __init__(
        self,
        seed: int,
        faults: DiskFaults,
        sync: str = "always",
        endings: Sequence[str] = ("close", "kill", "power"),
        life_s: float = 0.2,
    ) -> None:
        self.rng = Random(seed)
        self.faults = faults
        self.sync = sync
        self.endings = endings
        self.life_s = life_s
        self.world = SimulatedEnvironment(seed, DiskFaults(write_s=0.0002, sync_s=0.001))
        self.expected = [ExpectedRecords() for _ in range(STATE_PARTITIONS)]
        self.appended = 0
        self.acknowledged = 0
        self.refused = 0
        self.unknown = 0
        self._power_failed = False

    def run(self, processes: int) -> None:
        """Run `processes` processes, one after another, and check the final contents."""
        for _ in range(processes):
            self.world.run(self._run_process())
        self.world.storage.faults = DiskFaults()
        self.world.run(self._check_after_restart())

    async def _check_after_restart(self) -> None:
        journal = self.world.journal(self.sync)
        await journal.open()
        self._check_contents(journal, await read_all(journal))
        await journal.close()

    async def _run_process(self) -> None:
        storage = self.world.storage
        journal = await self._open_journal()
        self._check_contents(journal, await read_all(journal))
        writers = [
            asyncio.get_running_loop().create_task(self._append_randomly(journal, partition))
            for partition in range(STATE_PARTITIONS)
        ]
        await asyncio.sleep(self.rng.expovariate(1 / self.life_s))
        ending = self.rng.choice(self.endings)
        if ending == "kill":
            storage.kill()
        elif ending == "power":
            storage.cut_power()
            self._power_failed = True
        for writer in writers:
            writer.cancel()
        for end in await asyncio.gather(*writers, return_exceptions=True):
            # The writer failed before it was cancelled.
            if not isinstance(end, asyncio.CancelledError):
                raise end
        if ending == "close":
            await journal.close()

    async def _open_journal(self) -> Journal:
        """Open the journal with random faults. After two failures, open the journal without faults."""
        storage = self.world.storage
        storage.faults = self.faults
        for _ in range(2):
            journal = self.world.journal(self.sync)
            opening = asyncio.get_running_loop().create_task(journal.open())
            patience_s = self.rng.choice((0.003, 0.03, 60.0))
            await asyncio.wait({opening}, timeout=patience_s)
            if not opening.done():
                # The process is killed during the start.
                storage.kill()
                opening.cancel()
                await asyncio.wait({opening})
                continue
            if opening.exception() is None:
                return journal
            assert isinstance(opening.exception(), LogUnavailable)
        storage.faults = DiskFaults(write_s=0.0002, sync_s=0.001)
        journal = self.world.journal(self.sync)
        await journal.open()
        storage.faults = self.faults
        return journal

    async def _append_randomly(self, journal: Journal, partition: int) -> None:
        rng, expected = self.rng, self.expected[partition]
        while True:
            values = [self._random_value() for _ in range(rng.choice((1, 1, 1, 2, 5)))]
            told: asyncio.Future[tuple[int, LogError | None]] = asyncio.get_running_loop().create_future()

            def on_append_done(
                base_offset: int,
                error: LogError | None,
                values: list[bytes] = values,
                told: "asyncio.Future[tuple[int, LogError | None]]" = told,
            ) -> None:
                self._record_outcome(expected, values, base_offset, error)
                if not told.done():
                    told.set_result((base_offset, error))

            expected.maybe.append(values)
            journal.append(partition, [(b"key", value) for value in values], 1, on_append_done)
            _, error = await told
            if isinstance(error, LogOutcomeUnknown):
                # Read the log again, as the runtime does. The records of the append of unknown outcome must
                # not appear.
                found = (await read_all(journal, range(partition, partition + 1))).get(partition, [])
                self._check_partition(partition, found, [])
            if error is not None:
                await asyncio.sleep(rng.expovariate(1 / 0.3))
            elif rng.random() < 0.05:
                expected.start_offset = rng.randint(expected.start_offset, expected.end_offset)
                expected.prunes.append((expected.end_offset, expected.start_offset))
                journal.prune(partition, expected.start_offset)
            await asyncio.sleep(rng.expovariate(1 / 0.002) if rng.random() < 0.5 else 0)

    def _random_value(self) -> bytes:
        # Values have no zeros, so that each written sector differs from an unwritten one.
        self.appended += 1
        size = self.rng.choice((3, 30, 300, 2000)) if self.rng.random() < 0.98 else 20_000
        return b"%d:" % self.appended + bytes([self.rng.randrange(1, 256)]) * size

    def _record_outcome(
        self, expected: ExpectedRecords, values: list[bytes], base_offset: int, error: LogError | None
    ) -> None:
        assert base_offset == expected.end_offset
        expected.maybe.remove(values)
        if error is None:
            # Earlier appends of unknown outcome can no longer appear.
            expected.maybe.clear()
            expected.values += values
            self.acknowledged += 1
        elif isinstance(error, LogOutcomeUnknown):
            expected.maybe.append(values)
            self.unknown += 1
        else:
            assert isinstance(error, LogUnavailable)
            self.refused += 1

    def _check_contents(self, journal: Journal, found: RestartResult) -> None:
        may_lose = self._power_failed and self.sync == "os"
        for partition in range(STATE_PARTITIONS):
            expected = self.expected[partition]
            shown = found.get(partition, [])
            if may_lose:
                expected.drop_lost_records(journal.end_offset(partition))
            extra = self._check_partition(partition, shown, expected.maybe)
            expected.values += extra
            expected.maybe.clear()
            assert journal.end_offset(partition) == expected.end_offset
            assert journal.start_offset(partition) <= expected.start_offset
        self._power_failed = False

    def _check_partition(
        self, partition: int, shown: list[tuple[int, bytes | None, bytes | None]], maybe: list[list[bytes]]
    ) -> list[bytes]:
        """Check the records of a state partition. Return the values that may, but need not, exist."""
        expected = self.expected[partition]
        first_offset = shown[0][0] if shown else expected.end_offset
        assert first_offset <= expected.start_offset or not shown, f"records are missing in {partition}"
        assert [offset for offset, _, _ in shown] == list(range(first_offset, first_offset + len(shown)))
        values = [value for _, _, value in shown]
        kept = expected.values[first_offset:]
        assert values[: len(kept)] == kept, f"acknowledged records of {partition} differ"
        extra = values[len(kept) :]
        assert extra == [] or extra in maybe, f"{partition} has unexpected records"
        return [value for value in extra if value is not None]
