"""Write audit reports as text or JSON.

Both formats show the same `content`, verdict first, and list the checks that were not run.
"""

from pathlib import Path

from coordinator.errors import ConfigError
from coordinator.recovery.audit import AuditResult
from coordinator.recovery.durable_files import write_durably
from coordinator.recovery.report.content import ReportContent, as_json, make_content
from coordinator.recovery.report.text import as_text

__all__ = [
    "ReportContent",
    "as_json",
    "as_text",
    "check_report",
    "make_content",
    "write_report",
]

_KINDS = (".json", ".txt")


def check_report(path: Path) -> None:
    """Refuse a file name without a known report format. Raises ConfigError."""
    if path.suffix not in _KINDS:
        raise ConfigError("--report", path, "a file name that ends in .json or .txt")


def write_report(path: Path, run: AuditResult) -> None:
    """Write a report in the format of the file name. Raises ConfigError and OSError."""
    check_report(path)
    content = make_content(run)
    written = as_json(content) if path.suffix == ".json" else as_text(content)
    write_durably(path, written.encode())
