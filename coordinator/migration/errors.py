"""Why a migration does not go on."""

from coordinator.errors import CoordinatorError


class MigrationRefused(CoordinatorError):
    """Going on could lose state; the text is one line for the operator, and says what to do."""
