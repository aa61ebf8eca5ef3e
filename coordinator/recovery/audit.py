"""The job `audit`: check whether a log is complete and whether its states can be restored.

One pass over the log makes all checks and rebuilds the states. Checks that need other data (the cluster, a
live coordinator, an earlier audit) are optional. The result lists the checks that were not made.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import pyarrow as pa

from coordinator.errors import LogDamaged
from coordinator.process.clock import Clock, SystemClock
from coordinator.recovery.checks.baseline import Baseline
from coordinator.recovery.checks.catalogue import CATALOGUE, SEVERITIES, Severity
from coordinator.recovery.checks.findings import (
    FINDINGS_OUTPUT,
    Finding,
    finding_from_row,
    findings_table,
)
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.partition_audit import AuditSettings, PartitionAudit
from coordinator.recovery.checks.partition_stats import PartitionStats, check_partition_stats, partition_stats
from coordinator.recovery.checks.writer_sequence import add_transaction_age
from coordinator.recovery.engines import Engine
from coordinator.recovery.external_checks import (
    DIFFERENT_OUTPUT,
    NOT_CHECKED_OUTPUT,
    TOPICS_OUTPUT,
    ExternalCheck,
)
from coordinator.recovery.folders import Folder, Location
from coordinator.recovery.job import LogReadResult, ResultsIncomplete, output_rows, read_log
from coordinator.recovery.manifest import LazyStates, make_manifest
from coordinator.recovery.rebuild import (
    delete_states_on_failure,
    open_result_folder,
    store_results,
    sum_totals,
    write_task,
)
from coordinator.recovery.schema import ALL, RANGES
from coordinator.recovery.share_partitions import count_state_partitions
from coordinator.recovery.sources.base import LogCut, ReadPlan, Source
from coordinator.recovery.state_tasks import (
    TOTALS_OUTPUT,
    StateTask,
    count_states,
    empty_partition_states,
    select_states,
)
from coordinator.recovery.tasks import NamedOutput
from coordinator.recovery.verdict import (
    CONCERNED_OUTPUT,
    GROUPS_OUTPUT,
    AuditContext,
    LogCopy,
    Verdict,
    classify_groups,
)

# The exit codes.
EXIT_CLEAN, EXIT_WARNINGS, EXIT_CRITICAL, EXIT_FAILED = 0, 1, 2, 3


# Optional checks, and the reason that the result gives if the input of a check is missing.
_NEEDS = {
    "R8": "the number of state partitions is not known: --state-partitions",
    "P5": "it requires the configs of the topic: --from kafka:TOPIC",
    "X1": "it requires a live coordinator: --live",
    "X2": "it requires the cluster: --bootstrap-servers",
    "X3": "it requires an earlier audit: --baseline",
    "X4": "only recovery rewrite makes this check",
    "X5": "it requires the cluster: --bootstrap-servers",
}
_UNREAD = "the log could not be read"


@dataclass(frozen=True)
class AuditOptions:
    """Options of an audit. If `state_partitions` (their number) is None, the source determines it."""

    cut: LogCut = field(default_factory=LogCut)
    limits: Limits = field(default_factory=Limits)
    state_partitions: int | None = None
    baseline: Baseline | None = None
    to: Location | None = None
    external: Sequence[ExternalCheck] = ()
    # An archive of the log to recover from.
    copy: LogCopy | None = None


@dataclass(frozen=True)
class AuditResult:
    """The result of an audit; `not_checked` has the reason for each check that was not made.

    `findings` has rows of `FINDINGS`. `stored` are the states, if they were written or requested.
    """

    findings: pa.Table
    stored: LazyStates
    ranges: pa.Table
    partitions: Sequence[PartitionStats]
    manifest: dict[str, Any]
    not_checked: Mapping[str, str]
    verdict: Verdict
    missed: Collection[str] = ()

    @property
    def states(self) -> pa.Table:
        """The states (rows of `STATES`), ordered by group, topic and partition."""
        return self.stored.table

    @property
    def counts(self) -> dict[Severity, int]:
        """The number of findings of each severity; findings of one check and share-partition count as one."""
        counted = Counter(self.findings.column("severity").to_pylist())
        return {severity: counted[severity.value] for severity in SEVERITIES}

    @property
    def exit_code(self) -> int:
        """The exit code of the command for this audit."""
        if self.counts[Severity.CRITICAL]:
            return EXIT_CRITICAL
        return EXIT_WARNINGS if self.counts[Severity.WARNING] or self.missed else EXIT_CLEAN

    @property
    def summary_line(self) -> str:
        """One line: the number of findings by severity, and the requested checks that failed."""
        severities = [each for each in (Severity.CRITICAL, Severity.WARNING) if self.counts[each]]
        found = ", ".join(f"{self.counts[each]} {each.value}" for each in severities)
        missed = f"; not checked: {', '.join(self.missed)}" if self.missed else ""
        return (found or "clean") + missed


def audit(
    engine: Engine,
    source: Source,
    options: AuditOptions,
    *,
    with_states: bool = True,
    clock: Clock | None = None,
) -> AuditResult:
    """Audit a log up to `options.cut`; write states, findings and a manifest to `options.to`, if given.

    Without `options.to`, this process gets the states, unless `with_states` is false.  Damage is a finding.
    If the log cannot be read at all, raises LogError, ConfigError or OSError.
    """
    clock = clock or SystemClock()
    folder = open_result_folder(options.to)
    for check in options.external:
        check.begin()
    comparisons = [task for check in options.external if (task := check.task()) is not None]
    if options.baseline is not None:
        comparisons.append(options.baseline.compare)
    tasks: list[StateTask] = [count_states]
    if folder is not None:
        tasks.append(write_task(folder))
    elif with_states:
        tasks.append(select_states)
    settings = AuditSettings(options.limits, options.state_partitions, (*tasks, *comparisons))
    try:
        with delete_states_on_failure(folder):
            observer = partial(PartitionAudit, settings)
            log = read_log(engine, source, observer, cut=options.cut, skip_damage=True)
    except LogDamaged as damage:
        # The source could not list its log ranges, so this damage is the only finding.
        number = ALL if damage.state_partition is None else damage.state_partition
        evidence = f"{damage}; records after it were not checked"
        found = Finding("P4", Severity.CRITICAL, number, evidence=evidence)
        return _make_result(engine, source, options, folder, None, [found], clock)
    if options.baseline is not None:
        log = _compare_pruned_partitions(log, options.baseline, comparisons)
    return _make_result(engine, source, options, folder, log, [], clock)


def _make_result(
    engine: Engine,
    source: Source,
    options: AuditOptions,
    folder: Folder | None,
    read: LogReadResult | None,
    found: list[Finding],
    clock: Clock,
) -> AuditResult:
    """Make the audit result; `read` is None if the log could not be read."""
    log = read or LogReadResult(ReadPlan((), {}, {}), ())
    external: list[NamedOutput] = []
    if read is not None:
        external = [output for check in options.external for output in check.finish(engine, log)]
    failed = {row["check"]: row["reason"] for row in output_rows(external, NOT_CHECKED_OUTPUT)}
    totals, ranges = log.rows(TOTALS_OUTPUT), log.ranges
    partitions = partition_stats(totals, ranges, log.plan.starts, log.plan.ends)
    found += _read_log_findings(log, options.limits)
    found += check_partition_stats(partitions, options.limits)
    found = [each for each in found if each.check not in failed]
    table = findings_table([*found, *map(finding_from_row, output_rows(external, FINDINGS_OUTPUT))])
    not_checked = _reasons_for_omitted_checks(read, options, failed)
    missed = [
        name for check in options.external if check.is_requested for name in check.checks if name in failed
    ]
    servers = log.plan.facts.get("bootstrap_servers", "")
    topics = {row["topic_id"]: row["name"] for row in log.rows(TOPICS_OUTPUT)}
    context = AuditContext(source.text, servers, options.copy, topics, read is None)
    verdict = _make_verdict(log, table.to_pylist(), output_rows(external, DIFFERENT_OUTPUT), context)
    run_before = None if options.baseline is None else options.baseline.run_id
    manifest = make_manifest(
        *("audit", engine, source, options.cut, log),
        now_ms=clock.now_ms(),
        states=sum_totals(totals, "states"),
        **_describe_findings(table, verdict),
        not_checked=not_checked,
        limits=options.limits._asdict(),
        state_batches=sum_totals(totals, "state_batches"),
        baseline=run_before,
    )
    keeps_baseline = read is None or _has_lost_state(found)
    manifest["next_baseline"] = run_before if keeps_baseline else manifest["run_id"]
    range_rows = pa.Table.from_pylist(ranges, RANGES)
    stored = store_results(folder, log, {"findings": table, "ranges": range_rows}, manifest)
    return AuditResult(table, stored, range_rows, partitions, manifest, not_checked, verdict, missed)


def _reasons_for_omitted_checks(
    log: LogReadResult | None, options: AuditOptions, external: Mapping[str, str]
) -> dict[str, str]:
    """Return the reason for each check that was not made."""
    if log is None:
        return {name: _NEEDS[name] if name == "X4" else _UNREAD for name in CATALOGUE if name != "P4"}
    checked = {name for check in options.external for name in check.checks if name not in external}
    if options.state_partitions or count_state_partitions(log.plan.starts) is not None:
        checked.add("R8")
    if options.baseline is not None:
        checked.add("X3")
    return {name: reason for name, reason in {**_NEEDS, **external}.items() if name not in checked}


def _compare_pruned_partitions(
    log: LogReadResult, baseline: Baseline, comparisons: Sequence[StateTask]
) -> LogReadResult:
    """Run the comparisons, in this process, for state partitions whose records were all pruned."""
    wanted = {*baseline.state_partitions} - {row["state_partition"] for row in log.ranges}
    outputs = [
        output
        for number in sorted(wanted)
        for task in comparisons
        for output in task(empty_partition_states(number, log.plan.starts))
    ]
    return replace(log, outputs=[*log.outputs, *outputs])


def _read_log_findings(log: LogReadResult, limits: Limits) -> list[Finding]:
    newest_ms = max((row["timestamp_ms_max"] for row in log.ranges), default=0)
    found = []
    for row in log.rows(FINDINGS_OUTPUT):
        finding: Finding | None = finding_from_row(row)
        if finding is not None and finding.check == "P6":
            finding = add_transaction_age(finding, newest_ms, limits)
        if finding is not None:
            found.append(finding)
    return found


def _describe_findings(table: pa.Table, verdict: Verdict) -> dict[str, Any]:
    """Return the manifest entries that summarise the findings and the verdict."""
    counts = Counter(table.column("severity").to_pylist())
    return {
        "findings": {severity.value: counts[severity.value] for severity in SEVERITIES},
        "checks": sorted(set(table.column("check").to_pylist())),
        "answer": verdict.headline,
        "groups": {status.name.lower(): count for status, count in verdict.counts.items()},
    }


def _make_verdict(
    log: LogReadResult,
    findings: Sequence[Mapping[str, Any]],
    external_states: Sequence[Mapping[str, Any]],
    context: AuditContext,
) -> Verdict:
    """Return the verdict; it needs the states that findings concern, and the number of other states.

    Raises ResultsIncomplete if these are not all states that were folded.
    """
    concerned = {_state_key(row): row for row in log.rows(CONCERNED_OUTPUT)}
    others = Counter[str]()
    for row in log.rows(GROUPS_OUTPUT):
        others[row["group_id"]] += row["states"]
    for each in external_states:
        if _state_key(each) not in concerned:
            concerned[_state_key(each)] = dict(each)
            others[each["group_id"]] -= 1
    read, wanted = len(concerned) + others.total(), sum_totals(log.rows(TOTALS_OUTPUT), "states")
    if read != wanted:
        raise ResultsIncomplete(f"{wanted} states were folded and {read} were read for the verdict")
    ordered = sorted(concerned.values(), key=lambda row: row["state_partition"])
    return classify_groups(findings, ordered, context._replace(others=+others))


def _has_lost_state(found: list[Finding]) -> bool:
    """Return whether state was lost since the baseline.

    An audit with lost state does not become the baseline.
    """
    return any(each.check == "X3" and each.severity is Severity.CRITICAL for each in found)


def _state_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("group_id", "topic_id", "partition", "state_partition"))
