"""What an audit has found, for people and programs: text, Markdown, JSON, and one page of HTML.

All of them show the same `content`, the verdict first, and say what was not checked.
"""

from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.recovery.audit import AuditResult
from coordinator.recovery.durable_files import write_durably
from coordinator.recovery.report.content import Content, as_json, make_content
from coordinator.recovery.report.text import as_markdown, as_text

__all__ = ["Content", "as_json", "as_markdown", "as_text", "check_report", "make_content", "write_report"]

_KINDS = (".html", ".json", ".md", ".txt")


def check_report(path: Path) -> None:
    """Refuse a file whose name does not say which kind of report it is. Raises ConfigError."""
    if path.suffix not in _KINDS:
        raise ConfigError("--report", path, "a file name that ends in .html, .json, .md or .txt")


def write_report(path: Path, run: AuditResult) -> None:
    """Write a report, as the end of the file's name says. Raises ConfigError and OSError."""
    check_report(path)
    content = make_content(run)
    match path.suffix:
        case ".html":
            # Plots take a library that nothing else here needs.
            from coordinator.recovery.report.html import as_html

            written = as_html(content)
        case ".json":
            written = as_json(content)
        case ".md":
            written = as_markdown(content)
        case _:
            written = as_text(content)
    write_durably(path, written.encode())
