"""Test rules of the model that `tests/property/test_shard_machine.py` does not compare with a real shard."""

from typing import Any

import pytest

from protocol.errors import ErrorCode
from tests.builders import make_initialize, make_read, make_write
from tests.simulation.history import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from tests.simulation.model import AnswerFields, State, apply_operation
from tests.simulation.rpc_parts import DeletePart, SummaryPart

INITIAL, _ = apply_operation(None, INITIALIZE, [make_initialize(state_epoch=1)])
VALID = make_write((0, 0, 2, 1), state_epoch=1)
INVERTED = make_write((1, 0, 2, 1), state_epoch=1)


def test_entries_of_one_share_partition_are_applied_completely_or_not_at_all() -> None:
    refused = AnswerFields(ErrorCode.INVALID_REQUEST)
    assert apply_operation(INITIAL, WRITE, [VALID, INVERTED]) == (INITIAL, refused)
    written = State(1, 0, 0, 0, 0, ((0, 1, 2),))
    assert apply_operation(INITIAL, WRITE, [VALID, VALID]) == (written, AnswerFields(0))


@pytest.mark.parametrize(
    ("kind", "part", "code"),
    [
        (READ, make_read(0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (READ, make_read(-1), ErrorCode.INVALID_REQUEST),
        (SUMMARY, SummaryPart(0, 0), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (DELETE, DeletePart(0), ErrorCode.NONE),
    ],
)
def test_unknown_topic_is_checked_after_other_errors(kind: str, part: Any, code: int) -> None:
    assert apply_operation(INITIAL, kind, [part], topic_known=False)[1] == AnswerFields(code)
