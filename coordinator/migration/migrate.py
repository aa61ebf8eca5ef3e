"""A migration from beginning to end, over any source and target.

The order is what makes it safe: fold the source; look at the target, changing nothing, and refuse; see that
the source stands still; take the target, look again, write; read the target anew and compare; see that the
source still stands where it was read.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import NamedTuple, Protocol

from coordinator.migration.errors import MigrationRefused
from coordinator.migration.fold import ComparableState, FoldedLog
from coordinator.migration.plan import (
    DESTRUCTIVE,
    Action,
    MigrationDifference,
    MigrationPlan,
    differences,
    make_plan,
)
from coordinator.migration.readers import LogReader, Progress
from coordinator.migration.target import LookupResult, Target
from protocol.state_records import SharePartitionKey

# So many share-partitions are named where something is said about many.
NAMED_MAX = 10


class Options(NamedTuple):
    """What is allowed beyond the harmless."""

    execute: bool = False
    """Write. Without it the migration only says what it would do."""
    replace: bool = False
    """Take away what the target holds and the source does not, or otherwise."""
    take_over: bool = False
    """Depose whoever has claimed the target and did not let go of it."""
    leave_out_unknown_topics: bool = False
    """Do not bring the state of topics that the target's cluster does not know."""


class Report(NamedTuple):
    """What was done, or would be; `notes` are for people, `different` are those that are not the same."""

    folded: FoldedLog
    plan: MigrationPlan
    executed: bool
    notes: list[str]
    different: list[MigrationDifference]

    @property
    def is_good(self) -> bool:
        """True if nothing is different, or nothing was asked to be done yet."""
        return not self.different


class Source(Protocol):
    """A log that state is brought from."""

    @property
    def reader(self) -> LogReader:
        """How it is read."""
        ...

    def held(self) -> AbstractAsyncContextManager[None]:
        """Keep others from writing to it meanwhile, as far as that can be done without changing it."""
        ...


class TopicSource:
    """A topic; nobody can be kept from writing to it, so it is seen whether anybody did."""

    def __init__(self, reader: LogReader) -> None:
        self.reader = reader

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Do nothing."""
        yield


async def migrate(source: Source, target: Target, options: Options, progress: Progress) -> Report:
    """Bring the state of all share-partitions from source to target.

    Raises MigrationRefused when something speaks against it, LogError when a log cannot be used.  What was
    written before that stays; run again, the migration goes on from there.
    """
    folded = await _fold(source.reader, progress)
    await target.begin()
    wanted = {key: target.as_stored(state) for key, state in folded.states.items()}
    notes = [*_notes(folded), *target.notes(folded.states)]
    lookup = await target.lookup(wanted, progress)

    def plan_for(lookup: LookupResult) -> MigrationPlan:
        plan = make_plan(wanted, lookup.held, lookup.unknown_topics)
        _refuse(plan, lookup, options)
        return plan

    plan = plan_for(lookup)
    if left_out := plan.keys(Action.OMIT):
        notes.append(f"left out, because the cluster does not know their topic: {_names(left_out)}")
    if not options.execute:
        await source.reader.check_unlocked()
        if not plan.is_done:
            await target.check_unlocked()
        return Report(folded, plan, False, notes, [])
    async with source.held():
        await _verify_source_quiesced(source.reader, folded, progress, "Nothing was written.")
        failed: list[MigrationDifference] = []
        if not plan.is_done:
            failed = await target.apply_plan(folded.states, plan_for, progress)
        different = await _compare(target, wanted, plan, failed, progress)
        await _verify_source_quiesced(
            source.reader, folded, progress, "The target holds what the source held before that."
        )
    return Report(folded, plan, True, notes, different)


async def _fold(reader: LogReader, progress: Progress) -> FoldedLog:
    folded = await reader.fold(progress)
    if folded is None:
        raise MigrationRefused("there is nothing at the source")
    if folded.unreadable:
        raise MigrationRefused(
            f"a newer release wrote the state of {_names(folded.unreadable)}: migrate with that, or delete it"
        )
    return folded


def _notes(folded: FoldedLog) -> list[str]:
    notes = []
    if folded.unknown_records:
        notes.append(f"{folded.unknown_records} records of the source are of a type that holds no state")
    if folded.misplaced:
        notes.append(
            f"left behind, because they are where no coordinator looks for them: {_names(folded.misplaced)}"
        )
    if folded.owners:
        number, owner = next(iter(folded.owners.items()))
        notes.append(
            f"{len(folded.owners)} state partitions of the source are owned, number {number} by {owner}: "
            f"make sure that no coordinator is at work there"
        )
    return notes


def _refuse(plan: MigrationPlan, lookup: LookupResult, options: Options) -> None:
    """Raise MigrationRefused if the plan takes away what nobody said may go."""
    if plan.is_done:
        return
    if lookup.owners and not options.take_over:
        number, owner = next(iter(lookup.owners.items()))
        raise MigrationRefused(
            f"{len(lookup.owners)} state partitions of the target are owned, number {number} by {owner}: "
            f"stop the coordinator there; if it died without letting go, --take-over"
        )
    destructive = plan.keys(*DESTRUCTIVE)
    if destructive and not options.replace:
        raise MigrationRefused(
            f"the target holds state that is not the source's: {_names(destructive)}; with --replace it is "
            f"replaced by the source's, or deleted where the source has none"
        )
    unknown = plan.keys(Action.OMIT)
    if unknown and not options.leave_out_unknown_topics:
        raise MigrationRefused(
            f"the target's cluster does not know the topic of {_names(unknown)}; if these topics were "
            f"deleted, --leave-out-unknown-topics"
        )


async def _compare(
    target: Target,
    wanted: Mapping[SharePartitionKey, ComparableState],
    plan: MigrationPlan,
    failed: list[MigrationDifference],
    progress: Progress,
) -> list[MigrationDifference]:
    """Look at the target anew; what could not be written is different for the reason that it was given."""
    left_out = set(plan.keys(Action.OMIT))
    wanted = {key: state for key, state in wanted.items() if key not in left_out}
    lookup = await target.lookup(wanted, progress)
    # The target may hold it from earlier: it is none of this migration's business.
    held = {key: state for key, state in lookup.held.items() if key not in left_out}
    reasons = {difference.key: difference for difference in failed}
    return [reasons.get(difference.key, difference) for difference in differences(wanted, held)]


async def _verify_source_quiesced(
    reader: LogReader, folded: FoldedLog, progress: Progress, consequence: str
) -> None:
    """Raise MigrationRefused if the source holds another state by now; a mere snapshot does not count."""
    if await reader.ends() == folded.ends:
        return
    again = await reader.fold(progress)
    changed = differences(folded.held(), again.held() if again is not None else {})
    if changed:
        raise MigrationRefused(
            f"the source changes while it is read: {_names([difference.key for difference in changed])}. "
            f"Share groups are still active on it: stop their consumers, or lead the brokers away from it, "
            f"and migrate again. {consequence}"
        )


def _names(keys: "list[SharePartitionKey] | tuple[SharePartitionKey, ...]") -> str:
    names = ", ".join(str(key) for key in keys[:NAMED_MAX])
    return f"{len(keys)} share-partitions ({names}{', ...' if len(keys) > NAMED_MAX else ''})"
