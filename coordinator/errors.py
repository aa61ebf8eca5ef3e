"""Every exception of the coordinator, in one tree.

::

    CoordinatorError
    ├── ConfigError             a setting that cannot be used
    ├── ListenError             an address that cannot be listened on
    ├── OperationFailed         what a person asked for, and the reason why it was not done
    └── LogError                the state log could not do what was asked
        ├── LogUnavailable      nothing was written and nothing will show up: try again
        │   └── LogRefused      whoever keeps the log is there and says no: a human must act
        ├── LogOutcomeUnknown   it may or may not be in the log: reload before going on
        ├── LogFenced           somebody else owns the state partition now: resign
        ├── LogDamaged          what was stored cannot be read back: a human must act
        └── LogLocked           another process holds the log

A client's mistake is an error code in its answer, never one of these.  ``error_code`` of an exception is what
a waiting client is told when the exception is the reason that its request failed.
"""

import os
from pathlib import Path
from typing import Any, ClassVar

from coordinator.printable import escape_unprintable
from protocol.errors import ErrorCode


class CoordinatorError(Exception):
    """The root: whoever catches it catches all that the coordinator raises on purpose."""

    error_code: ClassVar[ErrorCode] = ErrorCode.UNKNOWN_SERVER_ERROR

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel between processes whole: most are made of other arguments than their text."""
        return _remade, (type(self), self.args, self.__dict__)


def _remade(
    kind: type[CoordinatorError], args: tuple[Any, ...], attributes: dict[str, Any]
) -> CoordinatorError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(attributes)
    return error


class ConfigError(CoordinatorError):
    """A setting that cannot be used; the text is one line for the operator.

    ``allowed`` says in words what would be accepted ("a number from 1 to 500"). ``value`` None is not shown.
    """

    def __init__(self, setting: str, value: object, allowed: str) -> None:
        given = setting if value is None else f"{setting}={value}"
        text = f"{given} cannot be used: it must be {allowed}"
        # A value may hold line ends, and whatever else does something to a terminal.
        super().__init__(escape_unprintable(text))
        self.setting = setting
        self.value = value
        self.allowed = allowed


class OperationFailed(CoordinatorError):
    """What a person asked for was not done, or not all of it; the text says why in a sentence."""


class LogError(CoordinatorError):
    """The state log could not do what was asked; the subclass says what is known about the outcome."""


class LogUnavailable(LogError):
    """Nothing of the append is in the log, nor will it appear after a restart: trying again is safe."""

    error_code = ErrorCode.COORDINATOR_NOT_AVAILABLE


class LogRefused(LogUnavailable):
    """Whoever keeps the log refuses us, and would do so again: a password, a right, a setting is wrong."""


class LogOutcomeUnknown(LogError):
    """The append may or may not be in the log; whoever holds state must read the log again before going on.

    A later successful append to the same log settles the question: what it does not follow is gone for good.
    """

    error_code = ErrorCode.NOT_COORDINATOR


class LogFenced(LogError):
    """A higher owner epoch was found in the log: this process does not own the state partition any more."""

    error_code = ErrorCode.NOT_COORDINATOR


class LogDamaged(LogError):
    """Acknowledged bytes cannot be read back; starting over them would lose state silently.

    ``state_partition`` is the one that they are of, None where that is not known or it is more than one.
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
    """Another process holds the log; ``owner_pid`` is None when it did not leave its number."""

    def __init__(self, file: Path | str, owner_pid: int | None) -> None:
        owner = f"process {owner_pid}" if owner_pid is not None else "another process"
        super().__init__(f"{file} is held by {owner}: two coordinators cannot share one journal directory")
        self.file = str(file)
        self.owner_pid = owner_pid


class ListenError(CoordinatorError):
    """An address that cannot be listened on; the text is one line for the operator."""

    def __init__(self, setting: str, address: str, cause: Exception) -> None:
        number = getattr(cause, "errno", None)
        reason = os.strerror(number) if number is not None and number > 0 else str(cause)
        super().__init__(f"{setting}={address} cannot be listened on: {reason}")
        self.setting = setting
        self.address = address
