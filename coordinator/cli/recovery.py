"""Register the commands of `recovery`."""

from coordinator.cli import recovery_archive, recovery_audit, recovery_diff, recovery_rewrite  # noqa: F401
from coordinator.cli.recovery_commands import recovery_app as recovery_app
