"""Format the result of an audit as text for a terminal or as JSON, with the verdict first."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any, NamedTuple

from coordinator.printable import escape_json_unprintable, escape_unprintable
from coordinator.recovery.audit import AuditResult
from coordinator.recovery.checks.catalogue import CATALOGUE, Check, Severity
from coordinator.recovery.checks.partition_stats import PartitionStats
from coordinator.recovery.manifest import iso_time
from coordinator.recovery.schema import NONE
from coordinator.recovery.verdict import GroupVerdict, RecoveryStatus

_WIDTH = 100
_INDENT = " " * 11

# Maximum number of findings that are listed for one check; all are counted, and the JSON lists all.
EXAMPLES_MAX = 20
# The same limit for warnings and information; it is lower, so that critical findings stay visible.
_MINOR_EXAMPLES_MAX = 5
# Maximum number of share groups with problems that the text lists; the JSON lists all.
_GROUPS_MAX = 20


class FindingSection(NamedTuple):
    """The findings of one check with one severity."""

    check: Check
    severity: Severity
    rows: Sequence[Mapping[str, Any]]

    @property
    def count_text(self) -> str:
        """The number of findings, and the number of concerned share-partitions if it is different."""
        total, places = sum(row["count"] for row in self.rows), len(self.rows)
        return f"({places})" if total == places else f"({total} in {places})"

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """The findings that the report lists; all other findings are only counted."""
        return self.rows[: EXAMPLES_MAX if self.severity is Severity.CRITICAL else _MINOR_EXAMPLES_MAX]


def finding_sections(run: AuditResult) -> list[FindingSection]:
    """Group the findings by severity and check, the most severe section first."""
    by_check: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in run.findings.to_pylist():
        by_check.setdefault((row["severity"], row["check"]), []).append(row)
    return [
        FindingSection(check, severity, by_check[severity.value, check.id])
        for severity in Severity
        for check in CATALOGUE.values()
        if (severity.value, check.id) in by_check
    ]


def _passed_checks(run: AuditResult) -> list[str]:
    found = set(run.findings.column("check").to_pylist())
    return [name for name in CATALOGUE if name not in found and name not in run.not_checked]


def as_json(run: AuditResult) -> str:
    """Return the audit report as JSON, with all findings and their meaning."""
    found = {
        "verdict": run.summary_line,
        "exit_code": run.exit_code,
        "answer": run.verdict.headline,
        "groups": [
            {
                "group_id": group.group_id,
                "status": group.status.name.lower(),
                "share_partitions": group.share_partitions,
                "since_ms": group.since_ms,
                "checks": group.checks,
                "recover_from": group.recover_from,
                "command": group.command,
                "affected": [
                    {
                        **vars(each),
                        "status": each.status.name.lower(),
                        "topic": run.verdict.topics.get(each.topic_id),
                    }
                    for each in group.affected
                ],
            }
            for group in run.verdict.groups
        ],
        "missed": list(run.missed),
        "counts": {severity.value: count for severity, count in run.counts.items()},
        "findings": [
            {
                **row,
                "title": section.check.title,
                "meaning": section.check.meaning,
                "advice": section.check.advice,
            }
            for section in finding_sections(run)
            for row in section.rows
        ],
        "passed": _passed_checks(run),
        "not_checked": dict(run.not_checked),
        "partitions": [
            {**each._asdict(), "prunable": each.prunable_offsets, "replay_s": round(each.replay_s, 3)}
            for each in run.partitions
        ],
        "manifest": run.manifest,
        "checks": {name: check._asdict() for name, check in CATALOGUE.items()},
    }
    return escape_json_unprintable(json.dumps(found, indent=2, ensure_ascii=False)) + "\n"


def as_text(run: AuditResult) -> str:
    """Return the audit report for a terminal: verdict, facts, findings, and checks that were not made."""
    return "".join(f"{line}\n" for line in _iterate_report_lines(run))


def _iterate_report_lines(run: AuditResult) -> Iterator[str]:
    sections = finding_sections(run)
    verdict = run.summary_line.upper() if sections else run.summary_line
    yield escape_unprintable(f"Recovery audit of {run.manifest['source']}: {verdict}")
    for label, text in (*_describe_source(run), ("recovery", run.verdict.headline)):
        yield from _wrap_fact(label, text)
    damaged = [group for group in run.verdict.groups if group.status is not RecoveryStatus.WHOLE]
    for group in damaged[:_GROUPS_MAX]:
        status = f"{group.group_id} {group.status.name}"
        yield from _wrap_fact("group", f"{status}: {_group_text(group, run.verdict.topics)}")
        # The command is on one line, so that it can be copied.
        yield f"{_INDENT}{group.command}"
    for section in sections:
        yield ""
        yield from _iterate_section_lines(section)
    yield ""
    passed = ", ".join(_passed_checks(run))
    if passed and (run.manifest["damages"] or _is_log_partly_unread(sections)):
        passed = f"in what could be read: {passed}"
    yield from _wrap_fact("passed", passed or "nothing")
    for check, reason in run.not_checked.items():
        yield from _wrap_fact("not run", f"{check}: {reason}")


def _iterate_section_lines(section: FindingSection) -> Iterator[str]:
    check = section.check
    yield f"{section.severity.value.upper():<9}{check.id:<4} {check.title} {section.count_text}"
    lines = [f"{format_place(row)}: {row['evidence']}" for row in section.examples]
    if (more := len(section.rows) - len(section.examples)) > 0:
        counted = Counter(row["group_id"] for row in section.rows if row["group_id"] is not None)
        counts = ", ".join(f"{group_id} {count}" for group_id, count in counted.most_common(EXAMPLES_MAX))
        lines.append(f"... and {more} more" + (f"; by group: {counts}" if counts else ""))
    for line in (*lines, f"means: {check.meaning}", f"to do: {check.advice}"):
        yield from _wrap_line(line, " " * 9)


def _is_log_partly_unread(sections: Sequence[FindingSection]) -> bool:
    """Return whether the rest of the log could not be read: a critical finding P4 without a log offset."""
    return any(
        section.check.id == "P4" and section.severity is Severity.CRITICAL and row["log_offset"] == NONE
        for section in sections
        for row in section.rows
    )


def _describe_source(run: AuditResult) -> Iterator[tuple[str, str]]:
    """Yield label and text of each fact about the log and about reading it."""
    manifest, totals = run.manifest, run.manifest["totals"]
    cut = manifest["as_of_time"] or (
        "the end of the log" if manifest["as_of_offsets"] is None else f"offsets {manifest['as_of_offsets']}"
    )
    yield "run", f"{manifest['run_id']}, engine {manifest['engine']}"
    yield "up to", str(cut)
    partitions = f"{len(manifest['partitions'])} state partitions"
    yield "read", f"{totals['records']:,} records, {totals['bytes']:,} bytes, {partitions}"
    yield (
        "state",
        f"{manifest['states']:,} share-partitions, {manifest['state_batches']:,} state batches",
    )
    if run.partitions:
        yield "pruning", _describe_pruning(run.partitions)
        slowest = max(run.partitions, key=lambda each: each.records)
        where = f"for state partition {slowest.state_partition}, without reading"
        yield "loading", f"about {slowest.replay_s:.3f} s {where}"
    if manifest["pruned_during_read"]:
        yield "pruned", f"while it was read: {len(manifest['pruned_during_read'])} state partitions"
    if manifest["baseline"]:
        yield "compared", f"with the audit {manifest['baseline']}"
    for note in manifest["notes"]:
        yield "note", note


def _describe_pruning(partitions: Sequence[PartitionStats]) -> str:
    """Describe how many log offsets can be pruned, and which share-partition prevents pruning more."""
    holding = max(partitions, key=lambda each: each.unprunable_offsets)
    held = f"{sum(each.unprunable_offsets for each in partitions):,} are held"
    if holding.pinned_by:
        since = iso_time(holding.pinned_since_ms)
        held += f", most in state partition {holding.state_partition} by {holding.pinned_by} since {since}"
    return f"{sum(each.prunable_offsets for each in partitions):,} log offsets can be pruned, {held}"


def format_place(row: Mapping[str, Any]) -> str:
    """Format share-partition, state partition and log offsets of a finding."""
    parts = []
    if row["group_id"] is not None:
        parts.append(f"{row['group_id']} {row['topic_id']} {row['partition']}")
    if row["state_partition"] >= 0:
        parts.append(f"state partition {row['state_partition']}")
    if row["log_offset"] >= 0:
        first, last = row["log_offset"], row["last_log_offset"]
        parts.append(f"offset {first}" if first == last else f"offsets {first} to {last}")
    if not parts:
        parts.append("the log")
    if row["count"] > 1:
        parts.append(f"{row['count']} times")
    return ", ".join(parts)


def _group_text(group: GroupVerdict, topics: Mapping[str, str]) -> str:
    first = group.affected[0]
    shown = f"{topics.get(first.topic_id, first.topic_id)} {first.partition}"
    more = f" and {len(group.affected) - 1} more" if len(group.affected) > 1 else ""
    parts = [f"{len(group.affected)} of {group.share_partitions} share-partitions ({shown}{more})"]
    if group.since_ms >= 0:
        parts.append(f"since {iso_time(group.since_ms)}")
    parts.append(", ".join(group.checks))
    if first.start_offset >= 0:
        last = f" to {first.last_offset}" if first.last_offset >= 0 else ""
        parts.append(f"records from {first.start_offset}{last}")
    if group.recover_from:
        parts.append(f"recoverable from {group.recover_from}")
    return "; ".join(parts)


def _wrap_fact(label: str, text: str) -> list[str]:
    return _wrap_line(text, f"{label:<10} ")


def _wrap_line(text: str, first_indent: str) -> list[str]:
    return wrap(
        escape_unprintable(text),
        _WIDTH,
        initial_indent=first_indent,
        subsequent_indent=_INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
