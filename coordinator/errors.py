"""The exceptions of the coordinator.

::

    CoordinatorError
    ├── ConfigError             a setting that cannot be used
    ├── ListenError             an address that cannot be bound
    ├── OperationFailed         a requested operation that was not executed, and the reason
    └── LogError                an operation on the state log failed
        ├── LogUnavailable      nothing was written and nothing will be: a retry is safe
        │   └── LogRefused      the log's storage refuses this process: an operator must act
        ├── LogOutcomeUnknown   the records may or may not be in the log: reload first
        ├── LogFenced           another process owns the state partition: resign
        ├── LogDamaged          stored records cannot be read back: an operator must act
        └── LogLocked           another process has locked the log

An invalid request raises none of these exceptions; its response has an error code.  If requests fail because
of an exception, clients get its ``error_code``.
"""

import os
from pathlib import Path
from typing import Any, ClassVar

from coordinator.printable import escape_unprintable
from protocol.errors import ErrorCode


class CoordinatorError(Exception):
    """The base class of all exceptions that the coordinator raises deliberately."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __reduce__(self) -> tuple[Any, ...]:
        """Support pickling: the arguments of most exceptions differ from their text."""
        return _restore_exception, (type(self), self.args, self.__dict__)


def _restore_exception(
    kind: type[CoordinatorError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> CoordinatorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


def error_text(error: BaseException) -> str:
    """Return the message of an error, or the name of its class if the message is empty."""
    return str(error) or type(error).__name__


class ConfigError(CoordinatorError):
    """A setting that cannot be used; the text is one line for the operator.

    ``allowed`` describes the allowed values ("a number from 1 to 500"). A ``value`` of None is not shown; the
    empty text is a missing value.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        given = setting if value is None else f"{setting}={value}"
        problem = f"{setting} is missing" if value == "" else f"{given} cannot be used"
        text = f"{problem}: it must be {allowed}"
        # The value may contain line breaks and control characters.
        super().__init__(escape_unprintable(text))
        self.setting = setting
        self.value = value
        self.allowed = allowed


class OperationFailed(CoordinatorError):
    """A requested operation failed or was executed in part; the text is a sentence with the reason."""


class LogError(CoordinatorError):
    """An operation on the state log failed; the subclass states what is known about the outcome."""


class LogUnavailable(LogError):
    """The log does not contain the append and never will, not even after a restart. A retry is safe."""

    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class LogRefused(LogUnavailable):
    """The log's storage refuses this process, for example because of a password or a permission."""


class LogOutcomeUnknown(LogError):
    """The append may or may not be in the log; the state must be loaded again from the log first.

    If a later append to the same log succeeds without these records before it, these records will never
    appear.
    """

    error_code = ErrorCode.NOT_COORDINATOR


class LogFenced(LogError):
    """The log has a higher owner epoch, so this process no longer owns the state partition."""

    error_code = ErrorCode.NOT_COORDINATOR


class LogDamaged(LogError):
    """Acknowledged bytes cannot be read; continuing without them would lose state silently.

    ``state_partition`` is the damaged state partition, None if it is unknown or there are several.
    """

    def __init__(
        self, file: Path | str, position: int, found: str, advice: str, state_partition: int | None = None
    ) -> None:
        super().__init__(f"{file} is damaged at byte {position}: {found}; {advice}")
        self.file = str(file)
        self.position = position
        self.found = found
        self.advice = advice
        self.state_partition = state_partition


class LogLocked(LogError):
    """Another process has locked the log; ``owner_pid`` is its process id, or None if it is unknown."""

    def __init__(self, file: Path | str, owner_pid: int | None) -> None:
        owner = f"process {owner_pid}" if owner_pid is not None else "another process"
        super().__init__(f"{file} is held by {owner}: two coordinators cannot share one journal directory")
        self.file = str(file)
        self.owner_pid = owner_pid


class ListenError(CoordinatorError):
    """An address that cannot be bound; the text is one line for the operator."""

    def __init__(self, setting: str, address: str, cause: Exception) -> None:
        number = getattr(cause, "errno", None)
        reason = os.strerror(number) if number is not None and number > 0 else str(cause)
        super().__init__(f"{setting}={address} cannot be listened on: {reason}")
        self.setting = setting
        self.address = address
