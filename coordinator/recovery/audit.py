"""The job `audit`: check whether a log is complete and whether its states can be restored.

One pass over the log makes all checks and rebuilds the states. Checks that need other data (the cluster, a
live coordinator, an earlier audit) are optional. The result lists the checks that were not made.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import pyarrow as pa

from coordinator.errors import LogDamaged
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.catalogue import CATALOGUE, SEVERITIES, Severity
from coordinator.recovery.checks.findings import (
    FINDINGS_OUTPUT,
    PARTIAL_FINDINGS,
    Finding,
    drop_gaps_inside_damage,
    finding_from_row,
    findings_table,
    merge_findings,
)
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.partition_stats import (
    DISTRIBUTIONS_OUTPUT,
    PartitionStats,
    check_partition_stats,
    partition_stats,
)
from coordinator.recovery.checks.range_audit import audit_range, join_audit, make_damage_finding
from coordinator.recovery.checks.writer_sequence import WRITERS_OUTPUT, check_writer_sequence
from coordinator.recovery.deduplication import count_state_partitions
from coordinator.recovery.engines.base import Engine, PhaseOutputs
from coordinator.recovery.engines.counts import ResultsIncomplete, output_rows
from coordinator.recovery.final_states import STATES_OUTPUT, TOTALS_OUTPUT, owner_epochs
from coordinator.recovery.folders import Location, open_folder
from coordinator.recovery.job import LogReadResult, read_log
from coordinator.recovery.manifest import StoredStates, check_empty_folder, make_manifest, write_results
from coordinator.recovery.progress import JobPhases
from coordinator.recovery.rebuild import damaged_states, stored_states_of_outputs, sum_totals, write_states
from coordinator.recovery.schema import RANGES
from coordinator.recovery.sources.base import RANGE_RECORDS, LogCut, ReadPlan, Source
from coordinator.recovery.state_checks import StateTask, compare_states, join_with_misplaced_states
from coordinator.recovery.tasks import JoinTask, NamedOutput
from coordinator.recovery.verdict import (
    AFFECTED_OUTPUT,
    AuditContext,
    LogCopy,
    Verdict,
    classify_groups,
    states_for_verdict,
)

# The exit codes.
EXIT_CLEAN, EXIT_WARNINGS, EXIT_CRITICAL, EXIT_FAILED = 0, 1, 2, 3


class ExternalFindings(NamedTuple):
    """Findings of checks that compare the log with another system, and which of these checks were made.

    `not_checked` maps a check that could not be made to the reason. `missed` has those of these checks that
    the user requested; if there are any, the audit is not clean. `topics` maps topic ids as text to topic
    names.
    """

    findings: Sequence[Finding] = ()
    checked: Collection[str] = ()
    not_checked: Mapping[str, str] = {}
    missed: Collection[str] = ()
    topics: Mapping[str, str] = {}


@dataclass(frozen=True)
class LogContents:
    """The content of the log without its states, for checks that compare the log with another system."""

    engine: Engine
    log: LogReadResult
    # Rows of `STATE_TOTALS`.
    totals: Sequence[Mapping[str, Any]]


class ExternalCheck(Protocol):
    """A check that needs data besides the log."""

    def begin(self) -> None:
        """Read the data of the other system that must be older than the log. Raises LogError."""
        ...

    def task(self, contents: LogContents) -> StateTask | None:
        """Return the comparison of the states of each state partition, if there is one. Raises LogError."""
        ...

    def result(self, outputs: Sequence[NamedOutput]) -> ExternalFindings:
        """Return the findings that the tasks did not yield; `outputs` are the outputs of all tasks.

        Raises LogError.
        """
        ...


# Optional checks, and the reason that the result gives if the input of a check is missing.
_NEEDS = {
    "R8": "the number of state partitions is not known: --state-partitions",
    "P5": "it requires the configs of the topic: --from kafka:TOPIC",
    "X1": "it requires a live coordinator: --live",
    "X2": "it requires the cluster: --bootstrap-servers",
    "X3": "it requires an earlier audit: --baseline",
    "X4": "only recovery rewrite makes this check",
    "X5": "it requires the cluster: --bootstrap-servers",
    "X6": "it requires the size of a sample: --sample",
}


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit. If `state_partitions` is None, the source determines it."""

    cut: LogCut = field(default_factory=LogCut)
    limits: Limits = field(default_factory=Limits)
    state_partitions: int | None = None
    baseline: Baseline | None = None
    to: Location | None = None
    range_records: int = RANGE_RECORDS
    external: Sequence[ExternalCheck] = ()
    # An archive of the log to recover from.
    copy: LogCopy | None = None


@dataclass(frozen=True)
class AuditResult:
    """The result; `findings` are rows of `FINDINGS`, `not_checked` has the reason for each check.

    `stored` are the states; without a directory for results, they exist until the engine is closed.
    """

    findings: pa.Table
    stored: StoredStates
    # Rows of `DISTRIBUTIONS` of all state partitions.
    distributions: Sequence[Mapping[str, Any]]
    ranges: pa.Table
    partitions: Sequence[PartitionStats]
    manifest: dict[str, Any]
    not_checked: Mapping[str, str]
    answer: Verdict
    missed: Collection[str] = ()

    @property
    def states(self) -> pa.Table:
        """The states (rows of `STATES`) by group, topic and partition."""
        return self.stored.table

    @property
    def counts(self) -> dict[Severity, int]:
        """The number of findings of each severity; findings of one check and share-partition count as one."""
        counted = Counter(self.findings.column("severity").to_pylist())
        return {severity: counted[severity.value] for severity in SEVERITIES}

    @property
    def exit_code(self) -> int:
        """The exit code of the command for this audit."""
        return max(exit_code_for(self.counts), EXIT_WARNINGS if self.missed else EXIT_CLEAN)

    @property
    def verdict(self) -> str:
        """The number of findings and the missed checks as one line."""
        missed = f"; not checked: {', '.join(self.missed)}" if self.missed else ""
        return counts_text(self.counts) + missed


def exit_code_for(counts: Mapping[Severity, int]) -> int:
    """Return the exit code for a number of findings."""
    if counts[Severity.CRITICAL]:
        return EXIT_CRITICAL
    return EXIT_WARNINGS if counts[Severity.WARNING] else EXIT_CLEAN


def counts_text(counts: Mapping[Severity, int]) -> str:
    """Return the number of findings as text."""
    shown = [
        f"{counts[severity]} {severity.value}"
        for severity in (Severity.CRITICAL, Severity.WARNING)
        if counts[severity]
    ]
    return ", ".join(shown) if shown else "clean"


def audit(
    engine: Engine,
    source: Source,
    options: AuditOptions,
    *,
    phases: JobPhases | None = None,
    clock: Clock | None = None,
) -> AuditResult:
    """Audit a log up to `options.cut`; write states, findings and a manifest to `options.to`, if given.

    Damage is a finding. If the log cannot be read at all, raises LogError, ConfigError or OSError.
    """
    phases, clock = phases or JobPhases(), clock or SystemClock()
    if options.to is not None:
        check_empty_folder(open_folder(options.to))
    for check in options.external:
        check.begin()
    read = partial(audit_range, options.limits)
    try:
        log = read_log(
            engine,
            source,
            read,
            cut=options.cut,
            phases=phases,
            range_records=options.range_records,
        )
    except LogDamaged as damage:
        # The source could not list its log ranges, so this damage is the only finding.
        log = LogReadResult(ReadPlan((), {}, {}), engine.gather(source, (), read, lambda more: None), [])
        _, found = make_damage_finding(damage)
        return _make_result(engine, source, options, log, found, phases, clock, unread=True)
    return _make_result(engine, source, options, log, [], phases, clock)


def _make_result(
    engine: Engine,
    source: Source,
    options: AuditOptions,
    log: LogReadResult,
    found: list[Finding],
    phases: JobPhases,
    clock: Clock,
    *,
    unread: bool = False,
) -> AuditResult:
    not_checked = dict(_NEEDS)
    if unread:
        not_checked = {name: "the log could not be read" for name in CATALOGUE if name != "P4"}
        not_checked["X4"] = _NEEDS["X4"]
    joined = _join_ranges(log, options, not_checked, phases)
    totals = output_rows(joined, TOTALS_OUTPUT)
    stored = stored_states_of_outputs(joined)
    found = [*found, *drop_gaps_inside_damage(merge_findings(_check_log(log, joined, options)))]
    partitions = partition_stats(totals, log.ranges, log.plan.starts, log.plan.ends)
    found += check_partition_stats(partitions, options.limits)
    ranges = pa.Table.from_pylist(log.ranges, RANGES)
    missed: list[str] = []
    topics: dict[str, str] = {}
    if not unread:
        inside = LogContents(engine, log, totals)
        found += _run_external_checks(options, inside, joined, not_checked, missed, topics, phases)
    table = findings_table(found)
    servers = log.plan.facts.get("bootstrap_servers", "")
    context = AuditContext(source.text, servers, options.copy, topics, unread)
    answer = _verdict(joined, table.to_pylist(), totals, context)
    run_before = None if options.baseline is None else options.baseline.run_id
    manifest = make_manifest(
        *("audit", engine, source, options.cut, log),
        now_ms=clock.now_ms(),
        states=sum_totals(totals, "states"),
        **_describe_findings(table, answer),
        not_checked=not_checked,
        limits=options.limits._asdict(),
        state_batches=sum_totals(totals, "state_batches"),
        baseline=run_before,
    )
    manifest["next_baseline"] = run_before if unread or _has_lost_state(found) else manifest["run_id"]
    if options.to is not None:
        folder = open_folder(options.to)
        write_states(joined, totals, folder)
        stored = StoredStates.from_results(folder)
        written = {STATES_OUTPUT: manifest["states"]}
        write_results(folder, {"findings": table, "ranges": ranges}, manifest, written)
    return AuditResult(
        table,
        stored,
        output_rows(joined, DISTRIBUTIONS_OUTPUT),
        ranges,
        partitions,
        manifest,
        not_checked,
        answer,
        missed,
    )


def _describe_findings(table: pa.Table, answer: Verdict) -> dict[str, Any]:
    """Return the manifest entries that summarise the findings and the verdict."""
    counts = Counter(table.column("severity").to_pylist())
    return {
        "findings": {severity.value: counts[severity.value] for severity in SEVERITIES},
        "checks": sorted(set(table.column("check").to_pylist())),
        "answer": answer.headline,
        "groups": {status.name.lower(): count for status, count in answer.counts.items()},
    }


def _verdict(
    joined: PhaseOutputs,
    findings: Sequence[Mapping[str, Any]],
    totals: Sequence[Mapping[str, Any]],
    context: AuditContext,
) -> Verdict:
    """Return the verdict, from the states that findings concern and the number of other states.

    Raises ResultsIncomplete if states are missing in both.
    """
    affected: list[dict[str, Any]] = []
    others: Counter[str] = Counter()
    for name, _, rows in joined.map_outputs(STATES_OUTPUT, states_for_verdict(findings)):
        if name == AFFECTED_OUTPUT:
            affected += rows.to_pylist()
        else:
            others.update({row["group_id"]: row["states"] for row in rows.to_pylist()})
    read, wanted = len(affected) + others.total(), sum_totals(totals, "states")
    if read != wanted:
        raise ResultsIncomplete(f"{wanted} states were joined and {read} were read for the verdict")
    affected.sort(key=lambda row: row["state_partition"])
    return classify_groups(findings, affected, context._replace(others=others))


def _has_lost_state(found: list[Finding]) -> bool:
    """Return whether state was lost. Such an audit does not become the baseline, so the alert stays."""
    return any(each.check == "X3" and each.severity is Severity.CRITICAL for each in found)


def _run_external_checks(
    options: AuditOptions,
    inside: LogContents,
    joined: PhaseOutputs,
    not_checked: dict[str, str],
    missed: list[str],
    topics: dict[str, str],
    phases: JobPhases,
) -> Iterable[Finding]:
    """Return the findings of the external checks; update `not_checked`, `missed` and `topics`."""
    tasks = [task for check in options.external if (task := check.task(inside)) is not None]
    wanted: Collection[int] = ()
    if options.baseline is not None:
        tasks.append(options.baseline.comparison_task(inside.log.plan.starts))
        wanted = options.baseline.state_partitions
        not_checked.pop("X3")
    present = {row["state_partition"] for row in inside.totals}
    outputs = compare_states(joined, tasks, phases, present=present, wanted=wanted) if tasks else []
    rows = [row for each in outputs if each.name == FINDINGS_OUTPUT for row in each.rows.to_pylist()]
    found = [finding_from_row(row) for row in rows]
    for check in options.external:
        external = check.result(outputs)
        found = [each for each in found if each.check not in external.not_checked]
        found += external.findings
        not_checked |= external.not_checked
        missed += external.missed
        topics |= external.topics
        for name in external.checked:
            not_checked.pop(name, None)
    return found


def _join_ranges(
    log: LogReadResult, options: AuditOptions, not_checked: dict[str, str], phases: JobPhases
) -> PhaseOutputs:
    """Check the histories of each state partition; if check R8 is made, remove it from `not_checked`."""
    state_partitions = options.state_partitions or count_state_partitions(log.plan.starts)
    if state_partitions is not None:
        not_checked.pop("R8", None)
    known = owner_epochs(log.ranges)
    join: JoinTask = partial(join_audit, known, options.limits, state_partitions, dict(log.plan.starts))
    if options.external:
        join = partial(join_with_misplaced_states, count_state_partitions(log.plan.starts), join)
    partitions = len({row["state_partition"] for row in log.ranges})
    with phases.phase("check", partitions, "partitions") as advance:
        return log.gathered.join_partitions(join, advance)


def _check_log(log: LogReadResult, joined: PhaseOutputs, options: AuditOptions) -> Iterable[Finding]:
    """Yield the findings of the checks that need only the log."""
    for damage, names in log.damages_with_share_partitions(damaged_states(log, joined)):
        for identity in names or (None,):
            place = (damage["state_partition"], identity, damage["first"], damage["last"])
            yield Finding("P4", Severity.CRITICAL, *place, evidence=damage["what"])
    for row in joined.table(FINDINGS_OUTPUT, PARTIAL_FINDINGS).to_pylist():
        yield finding_from_row(row)
    yield from check_writer_sequence(
        output_rows(log.gathered, WRITERS_OUTPUT), log.plan.starts, options.limits
    )
    for row in log.ranges:
        if row["unread_bytes"]:
            evidence = (
                f"{row['unread_bytes']} bytes after the last valid batch: an interrupted or current write"
            )
            at = row["range_end"]
            yield Finding("P4", Severity.INFO, row["state_partition"], None, at, at, evidence=evidence)
