"""Run a migration from any source to any target.

The order of the steps makes a migration safe. Fold the source; read the target and check the plan without
changing anything; verify that the source is quiescent; claim the target, read it again and write; read the
target again and compare; verify that the source has not changed meanwhile.
"""

from collections.abc import Mapping
from typing import NamedTuple

from coordinator.operate.migration.fold import ComparableState, FoldedLog, MigrationRefused
from coordinator.operate.migration.plan import (
    DESTRUCTIVE,
    LookupResult,
    MigrationAction,
    MigrationDifference,
    MigrationPlan,
    MigrationTarget,
    find_differences,
    make_plan,
)
from coordinator.operate.migration.readers import LogReader, Progress
from protocol.state_records import SharePartitionKey

# A message names at most this many share-partitions.
NAMED_MAX = 10


class MigrationOptions(NamedTuple):
    """The options of a migration."""

    execute: bool = False
    """Write to the target. Otherwise the migration only reports what it would do."""
    replace: bool = False
    """Replace or delete state of the target that differs from the source."""
    take_over: bool = False
    """Fence the owner of an unreleased claim on the target."""
    leave_out_unknown_topics: bool = False
    """Omit the state of topics that do not exist in the target's cluster."""


class MigrationReport(NamedTuple):
    """The result of a migration or a dry run; `different` are share-partitions that differ afterwards."""

    folded: FoldedLog
    plan: MigrationPlan
    executed: bool
    notes: list[str]
    different: list[MigrationDifference]

    @property
    def is_successful(self) -> bool:
        """True for a dry run, and if source and target are equal."""
        return not self.different


async def migrate_states(
    source: LogReader, target: MigrationTarget, options: MigrationOptions, progress: Progress
) -> MigrationReport:
    """Migrate the state of all share-partitions from source to target.

    Raises MigrationRefused if state could be lost, LogError if a log cannot be used.  States that were
    written before an error stay; run the migration again to continue.
    """
    folded = await _fold_source(source, progress)
    await target.query_features()
    wanted = {key: target.storable_state(state) for key, state in folded.states.items()}
    notes = [*_describe_folded_log(folded), *target.describe_losses(folded.states)]
    lookup = await target.lookup(wanted, progress)

    def plan_migration(lookup: LookupResult) -> MigrationPlan:
        plan = make_plan(wanted, lookup)
        _check_options(plan, lookup, options)
        return plan

    plan = plan_migration(lookup)
    if left_out := plan.keys_with_action(MigrationAction.OMIT):
        notes.append(f"omitted, because the cluster does not have their topics: {_format_keys(left_out)}")
    if not options.execute:
        await source.check_unlocked()
        if not plan.is_done:
            await target.check_unlocked()
        return MigrationReport(folded, plan, False, notes, [])
    with source.exclude_writers():
        await _verify_source_quiesced(source, folded, progress, "Nothing was written.")
        failed: list[MigrationDifference] = []
        if not plan.is_done:
            failed = await target.apply_plan(folded.states, plan_migration, progress)
        different = await _compare_with_target(target, wanted, plan, failed, progress)
        await _verify_source_quiesced(
            source, folded, progress, "The target has the source's states before these changes."
        )
    return MigrationReport(folded, plan, True, notes, different)


async def _fold_source(reader: LogReader, progress: Progress) -> FoldedLog:
    folded = await reader.fold(progress)
    if folded is None:
        raise MigrationRefused("the source does not exist")
    if folded.unreadable_keys:
        raise MigrationRefused(
            f"a newer release wrote the state of {_format_keys(folded.unreadable_keys)}: "
            "migrate with that release, or delete this state"
        )
    return folded


def _describe_folded_log(folded: FoldedLog) -> list[str]:
    notes = []
    if folded.unknown_records:
        notes.append(f"{folded.unknown_records} records of unknown types in the source are not copied")
    if folded.misplaced:
        notes.append(
            f"not copied, because they are in a wrong state partition: {_format_keys(folded.misplaced)}"
        )
    if folded.owners:
        number, owner = next(iter(folded.owners.items()))
        notes.append(
            f"{len(folded.owners)} state partitions of the source have an owner, such as {owner} of number "
            f"{number}: check that no coordinator uses the source"
        )
    return notes


def _check_options(plan: MigrationPlan, lookup: LookupResult, options: MigrationOptions) -> None:
    if plan.is_done:
        return
    if lookup.owners and not options.take_over:
        number, owner = next(iter(lookup.owners.items()))
        raise MigrationRefused(
            f"{len(lookup.owners)} state partitions of the target have an owner, such as {owner} of number "
            f"{number}: stop this coordinator; if it crashed without a release, use --take-over"
        )
    destructive = plan.keys_with_action(*DESTRUCTIVE)
    if destructive and not options.replace:
        raise MigrationRefused(
            f"the target has state that differs from the source: {_format_keys(destructive)}; --replace "
            f"replaces this state, or deletes it if the source has none"
        )
    unknown = plan.keys_with_action(MigrationAction.OMIT)
    if unknown and not options.leave_out_unknown_topics:
        raise MigrationRefused(
            f"the target's cluster does not have the topics of {_format_keys(unknown)}; if these topics were "
            f"deleted, omit their state with --leave-out-unknown-topics"
        )


async def _compare_with_target(
    target: MigrationTarget,
    wanted: Mapping[SharePartitionKey, ComparableState],
    plan: MigrationPlan,
    failed: list[MigrationDifference],
    progress: Progress,
) -> list[MigrationDifference]:
    """Read the target again and return all differences; for a failed write, the difference is its error."""
    left_out = set(plan.keys_with_action(MigrationAction.OMIT))
    wanted = {key: state for key, state in wanted.items() if key not in left_out}
    lookup = await target.lookup(wanted, progress)
    # The target may have state of omitted share-partitions; this migration does not change it.
    held = {key: state for key, state in lookup.held.items() if key not in left_out}
    reasons = {difference.key: difference for difference in failed}
    return [reasons.get(difference.key, difference) for difference in find_differences(wanted, held)]


async def _verify_source_quiesced(
    reader: LogReader, folded: FoldedLog, progress: Progress, consequence: str
) -> None:
    """Raise MigrationRefused if the source's states have changed. Snapshots of the same state are ignored."""
    if await reader.end_offsets() == folded.ends:
        return
    again = await reader.fold(progress)
    changed = find_differences(
        folded.comparable_states(), again.comparable_states() if again is not None else {}
    )
    if changed:
        raise MigrationRefused(
            f"the source changes while it is read: "
            f"{_format_keys([difference.key for difference in changed])}. "
            f"Share groups are still active on it: stop their consumers, or connect the brokers to another "
            f"coordinator, and migrate again. {consequence}"
        )


def _format_keys(keys: "list[SharePartitionKey] | tuple[SharePartitionKey, ...]") -> str:
    names = ", ".join(str(key) for key in keys[:NAMED_MAX])
    return f"{len(keys)} share-partitions ({names}{', ...' if len(keys) > NAMED_MAX else ''})"
