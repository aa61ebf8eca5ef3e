"""What outlives the coordinator's process, for each kind of log, and how much of it a death leaves.

Half of the runs misbehave at the log port (`tests.simulation.log`), the others have the real journal on a
disk that misbehaves (`tests.simulation.disk`).  There a death is that of the process or of the whole
machine, which forgets what was not synced; the second only where the journal promises to survive it.  Some
deaths leave damage behind: then the journal must say so when it is opened, and somebody puts the folder
back as it was.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

from coordinator.errors import LogDamaged
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from tests.simulation.disk import SimFile, SimStorage
from tests.simulation.history import Violation
from tests.simulation.log import FaultyLog, LogStorage
from tests.simulation.plan import Plan
from tests.simulation.process import Storage


class PortStorage:
    """Storage behind the log port itself."""

    def __init__(self, plan: Plan, rng: Random) -> None:
        self._log_storage = LogStorage(plan.state_partitions)
        self._faults = plan.log_faults
        self._rng = rng
        self._log: FaultyLog | None = None

    def attach(self, plan: Plan) -> StateLog:
        """Make the log for a new process."""
        self._log = FaultyLog(self._log_storage, self._rng, self._faults)
        return self._log

    def crash(self) -> None:
        """Lose nothing that was written; appends that were not are dropped with the process's callbacks."""

    def change(self, plan: Plan) -> None:
        """Have the faults of a plan from now on."""
        self._faults = plan.log_faults
        if self._log is not None:
            self._log.faults = plan.log_faults

    def fill(self, full: bool) -> None:
        """Take no bytes more, or take them again: the log's own faults do so."""

    def opened(self) -> None:
        """Go on."""

    def restore(self, error: LogDamaged) -> None:
        """Raise Violation: nothing is damaged here."""
        raise Violation(f"a log that was not damaged is called so: {error}") from error


class JournalStorage:
    """A disk with the real journal on it."""

    def __init__(self, plan: Plan, rng: Random) -> None:
        self.disk = SimStorage(rng, replace(plan.disk_faults))
        self._plan = plan
        self._rng = rng
        # A flipped bit: the file, the position, the byte as it was, and as it is now.
        self._flipped: tuple[SimFile, int, int, int] | None = None

    def attach(self, plan: Plan) -> StateLog:
        """Make a journal for a new process."""
        return Journal(
            Path("simulated"),
            state_partitions=plan.state_partitions,
            segment_bytes=plan.segment_bytes,
            sync=plan.journal_sync,
            disk=self.disk.disk(),
        )

    def crash(self) -> None:
        """Let the process die, or the machine; and flip a bit now and then."""
        if self._plan.journal_sync == "always" and self._rng.random() < 0.5:
            self.disk.cut_power()
        else:
            self.disk.kill()
        # Without syncs, what is broken at the end of the log may as well be what was never written.
        if self._plan.journal_sync == "always" and self._rng.random() < self._plan.damage_rate:
            self._damage()

    def _damage(self) -> None:
        """Flip a bit that is not in a stretch of zeros, where nobody would miss it."""
        files = [name for name in sorted(self.disk.files) if any(self.disk.files[name].durable)]
        if files and self._flipped is None:
            name = self._rng.choice(files)
            file = self.disk.files[name]
            position = self._rng.choice([place for place, byte in enumerate(file.durable) if byte])
            before = file.durable[position]
            self.disk.flip(name, position)
            self._flipped = (file, position, before, file.durable[position])

    def _mend(self) -> None:
        """Flip the bit back, unless something else was written there meanwhile."""
        if self._flipped is not None:
            file, position, before, after = self._flipped
            for content in (file.durable, file.shown):
                if content[position] == after:
                    content[position] = before
            self._flipped = None

    def opened(self) -> None:
        """Take a damage that the journal did not mind for harmless: the judges know if it was not."""
        self._mend()

    def restore(self, error: LogDamaged) -> None:
        """Put the folder back as it was before the damage; raise Violation if there was none."""
        if self._flipped is None:
            raise Violation(f"a journal that was not damaged is called so: {error}") from error
        self._mend()

    def change(self, plan: Plan) -> None:
        """Have the faults of a plan from now on."""
        self.disk.faults = replace(plan.disk_faults)

    def fill(self, full: bool) -> None:
        """Have no room for more files, or have room again."""
        used = sum(len(file.shown) for file in self.disk.files.values())
        self.disk.faults.capacity_bytes = used if full else self._plan.disk_faults.capacity_bytes


def make_storage(plan: Plan, rng: Random) -> Storage:
    """Make the storage that a plan names."""
    return PortStorage(plan, rng) if plan.log == "port" else JournalStorage(plan, rng)
