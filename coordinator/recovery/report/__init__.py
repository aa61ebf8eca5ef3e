"""Write audit reports: text, JSON, and one HTML page.

All formats show the same `content`, verdict first, and list the checks that were not run.
"""

from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.recovery.audit import AuditResult
from coordinator.recovery.folders import Folder
from coordinator.recovery.report.content import ReportContent, as_json, make_content
from coordinator.recovery.report.text import as_text

__all__ = [
    "ReportContent",
    "as_json",
    "as_text",
    "check_report_path",
    "make_content",
    "write_report",
]

_KINDS = (".html", ".json", ".txt")


def check_report_path(path: Path) -> None:
    """Refuse a file name without a known report format. Raises ConfigError."""
    if path.suffix not in _KINDS:
        raise ConfigError("--report", path, "a file name that ends in .html, .json or .txt")


def write_report(path: Path, run: AuditResult) -> None:
    """Write a report in the format of the file name. Raises ConfigError and OSError."""
    check_report_path(path)
    content = make_content(run)
    match path.suffix:
        case ".html":
            # Import this module only here, because its plots require an additional library.
            from coordinator.recovery.report.html import as_html

            written = as_html(content)
        case ".json":
            written = as_json(content)
        case _:
            written = as_text(content)
    Folder(str(path.parent)).write(path.name, written.encode())
