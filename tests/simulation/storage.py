"""The real journal on a faulty disk (`tests.simulation.disk`), and the data that a crash loses.

A crash ends the process. With journal.sync=always, it may also end the whole machine, which loses unsynced
data.  Some crashes damage the disk. The journal must detect the damage when it is opened, and the simulation
then undoes the damage.
"""

from dataclasses import replace
from pathlib import Path
from random import Random

from coordinator.errors import LogDamaged
from coordinator.log.base import StateLog
from coordinator.log.journal import Journal
from tests.simulation.disk import SimFile, SimStorage
from tests.simulation.history import Violation
from tests.simulation.plan import JournalPlan


class JournalStorage:
    """A simulated disk with the real journal."""

    def __init__(self, plan: JournalPlan, rng: Random) -> None:
        self.disk = SimStorage(rng, replace(plan.disk_faults))
        self._plan = plan
        self._rng = rng
        # A flipped bit: the file, the position, the original byte, and the damaged byte.
        self._flipped: tuple[SimFile, int, int, int] | None = None

    def create_log(self, plan: JournalPlan) -> StateLog:
        """Create a journal for a new process."""
        return Journal(
            Path("simulated"),
            state_partitions=plan.state_partitions,
            segment_bytes=plan.segment_bytes,
            sync=plan.journal_sync,
            disk=self.disk.disk(),
        )

    def crash(self) -> None:
        """Kill the process or the machine; sometimes flip a bit."""
        if self._plan.journal_sync == "always" and self._rng.random() < 0.5:
            self.disk.cut_power()
        else:
            self.disk.kill()
        # Without syncs, damage at the end of the log cannot be distinguished from data that was never
        # written.
        if self._plan.journal_sync == "always" and self._rng.random() < self._plan.damage_rate:
            self._flip_bit()

    def _flip_bit(self) -> None:
        """Flip a bit of a nonzero byte, because a bit in the zeros after the data has no effect."""
        files = [name for name in sorted(self.disk.files) if any(self.disk.files[name].durable)]
        if files and self._flipped is None:
            name = self._rng.choice(files)
            file = self.disk.files[name]
            position = self._rng.choice([place for place, byte in enumerate(file.durable) if byte])
            before = file.durable[position]
            self.disk.flip_bit(name, position)
            self._flipped = (file, position, before, file.durable[position])

    def _restore_bit(self) -> None:
        """Flip the bit back, unless the byte was overwritten meanwhile."""
        if self._flipped is not None:
            file, position, before, after = self._flipped
            for content in (file.durable, file.shown):
                if content[position] == after:
                    content[position] = before
            self._flipped = None

    def on_log_opened(self) -> None:
        """Undo damage that the journal did not detect. The checkers report damage that had an effect."""
        self._restore_bit()

    def undo_damage(self, error: LogDamaged) -> None:
        """Undo the damage; raise Violation if there was none."""
        if self._flipped is None:
            raise Violation(f"the journal reports damage, but it was not damaged: {error}") from error
        self._restore_bit()

    def set_fault_plan(self, plan: JournalPlan) -> None:
        """Apply the faults of a plan from now on."""
        self.disk.faults = replace(plan.disk_faults)

    def set_full(self, full: bool) -> None:
        """Limit the disk to its used space, or remove the limit."""
        used = sum(len(file.shown) for file in self.disk.files.values())
        self.disk.faults.capacity_bytes = used if full else self._plan.disk_faults.capacity_bytes
