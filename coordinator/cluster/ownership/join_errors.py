"""Translate Kafka's error codes to the reason why a replica is not a member, and the next step."""

from typing import NamedTuple

from protocol.errors import ErrorCode

# Errors of normal operation, after which the member rejoins, possibly with a new member id.
_EXPECTED_ERRORS = {
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.FENCED_INSTANCE_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.MEMBER_ID_REQUIRED,
}
# The member id is no longer valid.
LOST_MEMBER_ID = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}
# The group coordinator has moved, or is not available yet.
FIND_COORDINATOR_AGAIN = {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
_TRANSIENT = {*FIND_COORDINATOR_AGAIN, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}

_MESSAGES: dict[int, str] = {
    ErrorCode.GROUP_AUTHORIZATION_FAILED: "Kafka refuses this replica in group {group} "
    "(GROUP_AUTHORIZATION_FAILED): it needs READ on the group.",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "Group {group} has members that are not share coordinators "
    "(INCONSISTENT_GROUP_PROTOCOL): another group id is needed.",
    ErrorCode.INVALID_GROUP_ID: "Kafka does not accept {group} as the id of a group (INVALID_GROUP_ID).",
    ErrorCode.INVALID_SESSION_TIMEOUT: "Kafka does not accept the session timeout "
    "(INVALID_SESSION_TIMEOUT): it must lie between the brokers' group.min.session.timeout.ms and "
    "group.max.session.timeout.ms.",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "Group {group} has as many members as brokers allow "
    "(GROUP_MAX_SIZE_REACHED, group.max.size).",
    **dict.fromkeys(_TRANSIENT, "The coordinator of group {group} is not available yet."),
}


class MembershipError(NamedTuple):
    """The reason why this process is not a member of its group.

    Errors of the same `kind` are logged once. `is_transient` is True for errors that normally end soon.
    """

    kind: str
    sentence: str
    is_transient: bool = False


class JoinFailure(Exception):
    """A failed attempt to join. `membership_error` is None if the failure is normal and is not reported."""

    def __init__(self, membership_error: MembershipError | None) -> None:
        super().__init__(membership_error.sentence if membership_error else "the group has moved on")
        self.membership_error = membership_error


def make_join_failure(code: int, group: str) -> JoinFailure:
    """Return the exception for an error code in a response of the coordinator of Kafka group `group`."""
    if code in _EXPECTED_ERRORS:
        return JoinFailure(None)
    sentence = _MESSAGES.get(code, "Kafka refuses this replica in group {group}: error {code}.")
    kind = "transient" if code in _TRANSIENT else f"error {code}"
    return JoinFailure(
        MembershipError(kind, sentence.format(group=group, code=code), is_transient=code in _TRANSIENT)
    )
