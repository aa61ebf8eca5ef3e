"""The error of a migration that is refused."""

from coordinator.errors import CoordinatorError


class MigrationRefused(CoordinatorError):
    """The migration could lose state. The message is one line for the operator with the remedy."""
