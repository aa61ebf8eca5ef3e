"""Plant a defect in the decoder of each fuzz target, to prove that the target can detect defects.

The argument `plant` of each function sets an attribute, like `setattr`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.log.journal import layout
from coordinator.security import passwords
from coordinator.serve.runtime import replay
from coordinator.serve.server.error_responses import CloseConnection
from coordinator.shard import Shard, decisions
from protocol.errors import DecodeError
from protocol.frames import FrameReader
from protocol.record_batch import LogRecord
from protocol.state_batches import BATCH_BYTES
from tests.fuzz import targets

Plant = Callable[[Any, str, Any], None]


def _plant_undocumented_error(decode: Callable[..., Any]) -> Callable[..., Any]:
    def decode_with_defect(*arguments: Any) -> Any:
        try:
            return decode(*arguments)
        except (CloseConnection, DecodeError) as error:
            raise IndexError("planted") from error

    return decode_with_defect


def plant_in_request(plant: Plant) -> None:
    """Raise an undocumented error for a malformed request."""
    plant(targets, "decode_frame", _plant_undocumented_error(targets.decode_frame))


def plant_in_frames(plant: Plant) -> None:
    """Return only the first of several frames that arrive together."""
    receive = FrameReader.receive_data
    plant(FrameReader, "receive_data", lambda self, data: receive(self, data)[:1])


def plant_in_record_batch(plant: Plant) -> None:
    """Raise an undocumented error for a malformed state record."""
    plant(targets, "decode_record", _plant_undocumented_error(targets.decode_record))


def plant_in_loading(plant: Plant) -> None:
    """Ignore tombstones in the Python loader. The compiled loader applies tombstones."""
    intact = replay.replay_record

    def replay_record(shard: Shard, record: LogRecord) -> bool:
        return record.value is None or intact(shard, record)

    plant(replay, "replay_record", replay_record)


def plant_in_journal(plant: Plant) -> None:
    """Omit the last entry of a commit."""
    intact = layout.decode_entries

    def decode_entries(frame: layout.Frame) -> Iterator[layout.LoggedBatch]:
        return iter(list(intact(frame))[:-1])

    plant(layout, "decode_entries", decode_entries)


def plant_in_sasl(plant: Plant) -> None:
    """Raise an undocumented error for a token that is not UTF-8."""
    intact = passwords._parse_plain_token
    plant(passwords, "_parse_plain_token", lambda token: intact(token.decode().encode()))


def plant_in_writes(plant: Plant) -> None:
    """Omit the last state batch of a write in the Python code. The compiled code keeps the batch."""
    intact = decisions.normalise
    plant(decisions, "normalise", lambda batches, start: intact(batches, start)[:-BATCH_BYTES])


DEFECTS: dict[str, Callable[[Plant], None]] = {
    defect.__name__.removeprefix("plant_in_"): defect
    for defect in (
        plant_in_request,
        plant_in_frames,
        plant_in_record_batch,
        plant_in_loading,
        plant_in_journal,
        plant_in_sasl,
        plant_in_writes,
    )
}
