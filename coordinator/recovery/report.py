"""Report an audit as terminal text or as JSON, the verdict first; checks that were not made are listed."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, NamedTuple

from coordinator.printable import escape_json_unprintable, escape_unprintable
from coordinator.recovery.audit import AuditResult
from coordinator.recovery.checks.catalogue import CATALOGUE, Check, Severity
from coordinator.recovery.checks.partition_stats import PartitionStats
from coordinator.recovery.manifest import iso_time
from coordinator.recovery.schema import NONE
from coordinator.recovery.verdict import GroupVerdict, RecoveryStatus, SharePartitionVerdict, Verdict

_WIDTH = 100

# Maximum number of findings that are listed for one check; all are counted, and the JSON lists all.
EXAMPLES_MAX = 20

# A lower limit for warnings and information, so that critical findings stay visible.
_MINOR_EXAMPLES_MAX = 5
# Maximum number of listed groups that are not whole; the JSON lists all.
_GROUPS_MAX = 20


@dataclass(frozen=True)
class FindingSection:
    """The findings of one check with one severity."""

    check: Check
    severity: Severity
    rows: Sequence[Mapping[str, Any]]

    @property
    def total(self) -> int:
        """The number of findings; several findings about one share-partition are counted separately."""
        return sum(row["count"] for row in self.rows)

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """The first findings."""
        return self.rows[: EXAMPLES_MAX if self.severity is Severity.CRITICAL else _MINOR_EXAMPLES_MAX]

    @property
    def groups_with_findings(self) -> Sequence[tuple[str, int]]:
        """The groups with findings, most findings first."""
        counted = Counter(row["group_id"] for row in self.rows if row["group_id"] is not None)
        return counted.most_common(EXAMPLES_MAX)


class GroupReport(NamedTuple):
    """The lines of a report about a group that is not whole."""

    group_id: str
    status: str
    what: str
    command: str


@dataclass(frozen=True)
class ReportContent:
    """The content of a report: `facts` are pairs of label and text; the most severe sections are first."""

    run: AuditResult
    title: str
    verdict: str
    answer: str
    groups: Sequence[GroupReport]
    facts: Sequence[tuple[str, str]]
    sections: Sequence[FindingSection]
    passed: Sequence[str]

    @property
    def passed_text(self) -> str:
        """The checks without findings, and the part of the log that they cover."""
        if not self.passed:
            return "nothing"
        in_part = self.run.manifest["damages"] or any(
            is_unread(row) for section in self.sections for row in section.rows
        )
        return ("in what could be read: " if in_part else "") + ", ".join(self.passed)


def make_content(run: AuditResult) -> ReportContent:
    """Return the content of an audit's report."""
    manifest = run.manifest
    found = run.findings.to_pylist()
    sections = []
    for severity in Severity:
        for check in CATALOGUE.values():
            rows = [row for row in found if row["check"] == check.id and row["severity"] == severity.value]
            if rows:
                sections.append(FindingSection(check, severity, rows))
    found_by = {section.check.id for section in sections}
    return ReportContent(
        run=run,
        title=f"Recovery audit of {manifest['source']}",
        verdict=run.verdict,
        answer=run.answer.headline,
        groups=_damaged_groups(run.answer),
        facts=_describe_source(run),
        sections=sections,
        passed=[name for name in CATALOGUE if name not in found_by and name not in run.not_checked],
    )


def is_unread(row: Mapping[str, Any]) -> bool:
    """Return whether a finding reports that the rest of the log could not be read.

    Such a finding has no log offset.
    """
    return bool(
        row["check"] == "P4" and row["severity"] == Severity.CRITICAL.value and row["log_offset"] == NONE
    )


def _describe_source(run: AuditResult) -> list[tuple[str, str]]:
    manifest, totals = run.manifest, run.manifest["totals"]
    cut = manifest["as_of_time"] or (
        "the end of the log" if manifest["as_of_offsets"] is None else f"offsets {manifest['as_of_offsets']}"
    )
    facts = [
        ("run", f"{manifest['run_id']}, engine {manifest['engine']}"),
        ("up to", str(cut)),
        (
            "read",
            f"{totals['records']:,} records, {totals['bytes']:,} bytes, {len(manifest['partitions'])} state "
            f"partitions",
        ),
        (
            "state",
            f"{manifest['states']:,} share-partitions, {manifest['state_batches']:,} state batches",
        ),
    ]
    facts += _describe_pruning(run.partitions)
    if manifest["pruned_during_read"]:
        facts.append(("pruned", f"while it was read: {len(manifest['pruned_during_read'])} state partitions"))
    if manifest["baseline"]:
        facts.append(("compared", f"with the audit {manifest['baseline']}"))
    facts += [("note", note) for note in manifest["notes"]]
    return facts


def _describe_pruning(partitions: Sequence[PartitionStats]) -> list[tuple[str, str]]:
    """Return what can be pruned, what prevents more, and how long a coordinator takes to load the log."""
    if not partitions:
        return []
    holding = max(partitions, key=lambda each: each.unprunable)
    slowest = max(partitions, key=lambda each: each.records)
    held = f"{sum(each.unprunable for each in partitions):,} are held"
    if holding.pinned_by:
        since = iso_time(holding.pinned_since_ms)
        held += f", most in state partition {holding.state_partition} by {holding.pinned_by} since {since}"
    return [
        (
            "pruning",
            f"{sum(each.prunable for each in partitions):,} log offsets can be pruned, {held}",
        ),
        (
            "loading",
            f"about {slowest.replay_s:.3f} s for state partition {slowest.state_partition}, without reading",
        ),
    ]


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


def _damaged_groups(verdict: Verdict) -> list[GroupReport]:
    """Return the groups that are not whole, worst first."""
    wrong = [group for group in verdict.groups if group.status is not RecoveryStatus.WHOLE]
    return [
        GroupReport(
            group.group_id, group.status.name.lower(), _group_text(group, verdict.topics), group.command
        )
        for group in wrong[:_GROUPS_MAX]
    ]


def _group_text(group: GroupVerdict, topics: Mapping[str, str]) -> str:
    first = group.affected[0]
    shown = f"{topics.get(first.topic_id, first.topic_id)} {first.partition}"
    more = f" and {len(group.affected) - 1} more" if len(group.affected) > 1 else ""
    parts = [f"{len(group.affected)} of {group.share_partitions} share-partitions ({shown}{more})"]
    if group.since_ms >= 0:
        parts.append(f"since {iso_time(group.since_ms)}")
    parts.append(", ".join(group.checks))
    if first.start_offset >= 0:
        parts.append(f"records from {_format_offsets(first)}")
    if group.recover_from:
        parts.append(f"recoverable from {group.recover_from}")
    return "; ".join(parts)


def _format_offsets(each: SharePartitionVerdict) -> str:
    return f"{each.start_offset}" + (f" to {each.last_offset}" if each.last_offset >= 0 else "")


def as_json(content: ReportContent) -> str:
    """Return the report as JSON: all findings with their meaning."""
    run = content.run
    found = {
        "verdict": content.verdict,
        "exit_code": run.exit_code,
        "answer": content.answer,
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
                        "topic": run.answer.topics.get(each.topic_id),
                    }
                    for each in group.affected
                ],
            }
            for group in run.answer.groups
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
            for section in content.sections
            for row in section.rows
        ],
        "passed": list(content.passed),
        "not_checked": dict(run.not_checked),
        "partitions": [
            {**each._asdict(), "prunable": each.prunable, "replay_s": round(each.replay_s, 3)}
            for each in run.partitions
        ],
        "manifest": run.manifest,
        "checks": {name: check._asdict() for name, check in CATALOGUE.items()},
    }
    return escape_json_unprintable(json.dumps(found, indent=2, ensure_ascii=False)) + "\n"


def as_text(content: ReportContent) -> str:
    """Return the report for a terminal: verdict, facts, findings, what was not checked."""
    lines = "\n".join(_text_lines(content)).split("\n")
    return "".join(f"{escape_unprintable(line)}\n" for line in lines)


def _text_lines(content: ReportContent) -> Iterator[str]:
    yield f"{content.title}: {content.verdict.upper() if content.sections else content.verdict}"
    for label, said in content.facts:
        yield _format_fact(label, said)
    yield _format_fact("recovery", content.answer)
    for group in content.groups:
        yield _format_fact("group", f"{group.group_id} {group.status.upper()}: {group.what}")
        # The command is on one line, so that it can be copied.
        yield f"{'':<10} {group.command}"
    for section in content.sections:
        yield ""
        severity = section.severity.value.upper()
        yield f"{severity:<9}{section.check.id:<4} {section.check.title}{_format_count(section)}"
        for row in section.examples:
            yield _indent_text(f"{format_place(row)}: {row['evidence']}")
        if len(section.rows) > len(section.examples):
            yield _indent_text(
                f"... and {len(section.rows) - len(section.examples)} more{_counts_by_group(section)}"
            )
        yield _indent_text(f"means: {section.check.meaning}")
        yield _indent_text(f"to do: {section.check.advice}")
    yield ""
    yield _format_fact("passed", content.passed_text)
    for check, why in content.run.not_checked.items():
        yield _format_fact("not run", f"{check}: {why}")


def _counts_by_group(section: FindingSection) -> str:
    counts = ", ".join(f"{group_id} {count}" for group_id, count in section.groups_with_findings)
    return f"; by group: {counts}" if counts else ""


def _format_count(section: FindingSection) -> str:
    places = len(section.rows)
    return f" ({places})" if section.total == places else f" ({section.total} in {places})"


def _format_fact(label: str, said: str) -> str:
    return fill(
        said,
        _WIDTH,
        initial_indent=f"{label:<10} ",
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _indent_text(said: str) -> str:
    return fill(
        said,
        _WIDTH,
        initial_indent=" " * 9,
        subsequent_indent=" " * 11,
        break_long_words=False,
        break_on_hyphens=False,
    )
