"""Register the commands of `recovery`."""

from coordinator.cli import (
    recovery_archive,
    recovery_audit,
    recovery_diff,
    recovery_rewrite,
)
from coordinator.cli.recovery_commands import recovery_app

__all__ = [
    "recovery_app",
    "recovery_archive",
    "recovery_audit",
    "recovery_diff",
    "recovery_rewrite",
]
