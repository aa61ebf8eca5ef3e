"""What a report says, before it looks like anything."""

import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coordinator.recovery.audit import Audited
from coordinator.recovery.checks.catalogue import CATALOGUE, Check, Severity
from coordinator.recovery.schema import NONE
from coordinator.recovery.sources.base import ALL
from coordinator.visible import written_in_json

# Share-partitions that are named for one check; all are counted, and all are in the JSON.
EXAMPLES_MAX = 20

_ANSWERED_BY = ("K1", "K10")


@dataclass(frozen=True)
class Section:
    """The findings of one check with one severity."""

    check: Check
    severity: Severity
    rows: Sequence[Mapping[str, Any]]

    @property
    def total(self) -> int:
        """How many there are, with each of one share-partition."""
        return sum(row["count"] for row in self.rows)

    @property
    def examples(self) -> Sequence[Mapping[str, Any]]:
        """The first of them."""
        return self.rows[:EXAMPLES_MAX]


@dataclass(frozen=True)
class Content:
    """A report: facts are label and text; sections are the gravest first."""

    run: Audited
    title: str
    verdict: str
    answer: str
    facts: Sequence[tuple[str, str]]
    sections: Sequence[Section]
    passed: Sequence[str]
    following: Sequence[str]

    @property
    def passed_text(self) -> str:
        """The checks that found nothing, and in how much of the log if that was not all of it."""
        if not self.passed:
            return "nothing"
        in_part = any(is_unread(row) for section in self.sections for row in section.rows)
        return ("in what could be read: " if in_part else "") + ", ".join(self.passed)


def content_of(run: Audited) -> Content:
    """Return what there is to say about an audit."""
    manifest = run.manifest
    found = run.findings.to_pylist()
    sections = []
    for severity in Severity:
        for check in CATALOGUE.values():
            rows = [row for row in found if row["check"] == check.id and row["severity"] == severity.value]
            if rows:
                sections.append(Section(check, severity, rows))
    found_by = {section.check.id for section in sections}
    return Content(
        run=run,
        title=f"Recovery audit of {manifest['source']}",
        verdict=run.verdict,
        answer=_answer(run, found),
        facts=_facts(run),
        sections=sections,
        passed=[name for name in CATALOGUE if name not in found_by and name not in run.not_checked],
        following=_following(run, sections),
    )


def _answer(run: Audited, found: Sequence[Mapping[str, Any]]) -> str:
    """Answer what a reader wants to know first."""
    if not len(run.states) and "P2" in run.not_checked:
        return "the log could not be read"
    critical = [row for row in found if row["severity"] == Severity.CRITICAL.value]
    broken = {
        (row["group_id"], row["topic_id"], row["partition"])
        for row in critical
        if row["check"] in _ANSWERED_BY
    }
    with_holes = {row["state_partition"] for row in critical if row["check"] == "P2"}
    unread = {row["state_partition"] for row in found if is_unread(row)}
    why_not = []
    if broken:
        why_not.append(f"{len(broken)} have not")
    if unread:
        why_not.append(f"{_state_partitions(unread)} could not be read to the end")
    if with_holes:
        why_not.append(f"records are missing in {_state_partitions(with_holes)}")
    answer = f"NO, {'; '.join(why_not)}" if why_not else "yes"
    return f"every share-partition has its snapshot and all updates behind it: {answer}"


def _state_partitions(numbers: Collection[int]) -> str:
    """Name them; the source as a whole is number ALL."""
    if ALL in numbers:
        return "the log"
    return f"{len(numbers)} state partition{'' if len(numbers) == 1 else 's'}"


def is_unread(row: Mapping[str, Any]) -> bool:
    """Say whether a finding is that the log could not be read from there on: it is of no log offset."""
    return bool(
        row["check"] == "P4" and row["severity"] == Severity.CRITICAL.value and row["log_offset"] == NONE
    )


def _facts(run: Audited) -> list[tuple[str, str]]:
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
    if manifest["pruned_during_read"]:
        facts.append(("pruned", f"while it was read: {len(manifest['pruned_during_read'])} state partitions"))
    if manifest["baseline"]:
        facts.append(("compared", f"with the audit {manifest['baseline']}"))
    facts += [("note", note) for note in manifest["notes"]]
    return facts


def place_of(row: Mapping[str, Any], named: Callable[[str], str] = str) -> str:
    """Say where a finding is: share-partition, state partition, log offsets. `named` sets names apart."""
    parts = []
    if row["group_id"] is not None:
        parts.append(" ".join(map(named, (row["group_id"], row["topic_id"], str(row["partition"])))))
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


def _following(run: Audited, sections: Sequence[Section]) -> list[str]:
    """Give commands that show more."""
    source = run.manifest["source"]
    for section in sections:
        if section.severity is Severity.INFO:
            break
        for row in section.rows:
            if row["group_id"] is not None:
                named = (row["group_id"], row["topic_id"], str(row["partition"]))
                return [shlex.join(("share-coordinator", "recovery", "explain", *named, "--from", source))]
    return []


def as_json(content: Content) -> str:
    """Return the report for programs: every finding, with what it means."""
    run = content.run
    found = {
        "verdict": content.verdict,
        "exit_code": run.exit_code,
        "answer": content.answer,
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
    return written_in_json(json.dumps(found, indent=2, ensure_ascii=False)) + "\n"
