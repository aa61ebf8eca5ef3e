"""Mutants of the journal: each function plants one defect, which the simulation must detect.

See `mutants`.
"""

from typing import Any

from coordinator.log.journal import Journal, layout, recovery, segments
from coordinator.log.journal.scan import JournalTail, SegmentScan
from tests.simulation.mutants import Patch, list_mutants


def acknowledges_writes_without_fdatasync(patch: Patch) -> None:
    """Acknowledge writes without fdatasync, although journal.sync=always."""
    init = Journal.__init__

    def without_sync(self: Any, *args: Any, **named: Any) -> None:
        init(self, *args, **(named | {"sync": "os"}))

    patch.setattr(Journal, "__init__", without_sync)


def serves_recovered_commits_before_their_sync(patch: Patch) -> None:
    """Serve the commits that were found at the start without a sync.

    These commits may be lost if the power fails after clients have read them.
    """

    async def do_nothing(*args: Any) -> None:
        pass

    patch.setattr(recovery, "_make_durable", do_nothing)


def treats_failed_commit_as_successful(patch: Patch) -> None:
    """Acknowledge writes whose write or fdatasync failed."""
    original_flush = Journal.flush

    def flush(self: Any) -> None:
        disk, write = self._disk, self._disk.write

        def write_without_error(*args: Any) -> Any:
            *request, done = args
            return write(*request, lambda error: done(None))

        disk.write = write_without_error
        try:
            original_flush(self)
        finally:
            disk.write = write

    patch.setattr(Journal, "flush", flush)


def ignores_checksums(patch: Patch) -> None:
    """Do not check the checksums of the journal and of the record batches in it."""
    patch.setattr(layout, "crc32c", lambda *args: 0)
    patch.setattr("protocol.record_batch.crc32c", lambda *args: 0)


def truncates_damage_like_a_torn_tail(patch: Patch) -> None:
    """Truncate the last segment at damaged data, as after a torn write.

    A correct journal refuses to start, because acknowledged records follow the damage.
    """

    def find_torn_tail(self: Any, data: Any, later: Any) -> JournalTail:
        name, _ = self._with_header[len(self.segments) - 1]
        return JournalTail(name, self.segments[-1].end, False, 0)

    patch.setattr(SegmentScan, "find_tail", find_torn_tail)


def removes_needed_segments(patch: Patch) -> None:
    """Remove all segments except the current one, although they contain needed records."""
    patch.setattr(segments.JournalSegments, "first_needed_segment", lambda self, starts: self.used[-1])


def writes_after_a_commit_of_unknown_outcome(patch: Patch) -> None:
    """After a failed commit, append the next commit to the same segment.

    A failed sync may leave a gap in the segment, so that later commits are lost at the next start.
    """

    def _on_commit_failed(self: Any, group: Any, error: Any) -> None:
        segment = self._segments.current
        segment.end += layout.frame_bytes(sum(len(append.entry) for append in group))
        self._refuse_appends("commits fail", error)
        self._failure = None

    patch.setattr(Journal, "_on_commit_failed", _on_commit_failed)


def reads_appends_of_unknown_outcome(patch: Patch) -> None:
    """When a shard is loaded, also read the frame after the end offset, although its commit failed."""
    read = Journal.read

    async def read_past_end(self: Any, state_partitions: Any) -> Any:
        async for chunk in read(self, state_partitions):
            yield chunk
        segment = self._segments.current
        data_after_end = await self._disk.read(segment.name, segment.end, segment.size_bytes - segment.end)
        frame = layout.decode_frame_at(memoryview(data_after_end), 0, segment.number, segment.end)
        if frame is not None:
            yield [
                logged
                for logged in layout.decode_entries(frame)
                if logged.state_partition in state_partitions
            ]

    patch.setattr(Journal, "read", read_past_end)


def reports_unknown_outcome_as_success(patch: Patch) -> None:
    """Acknowledge appends that fail because the journal accepts no writes."""
    refuse = Journal._refuse_appends

    def _refuse_appends(self: Any, what: str, error: Any) -> None:
        pending, self._pending = self._pending, []
        for append in pending:
            self._end_offsets[append.state_partition] = append.end_offset
            append.done(append.base_offset, None)
        refuse(self, what, error)

    patch.setattr(Journal, "_refuse_appends", _refuse_appends)


def never_probes_the_disk_again(patch: Patch) -> None:
    """Refuse writes for ever after two failed commits, although the disk works again."""
    patch.setattr(Journal, "_retry_roll", lambda self: None)


JOURNAL_MUTANTS = list_mutants(globals())
