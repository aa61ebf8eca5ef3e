"""Render a report as terminal text."""

from collections.abc import Iterator
from textwrap import fill

from coordinator.printable import escape_unprintable
from coordinator.recovery.report.content import FindingSection, ReportContent, format_place

_WIDTH = 100


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
