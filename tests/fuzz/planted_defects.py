"""One defect for each fuzz target, planted in the decoder that the target checks.

A target that notices its defect can fail. `plant` sets an attribute, like `setattr`.
"""

from collections.abc import Callable, Iterator
from typing import Any

from coordinator.log.journal import layout
from coordinator.runtime import replay
from coordinator.security import passwords
from coordinator.shard import Shard, decisions
from protocol.errors import DecodeError
from protocol.frames import FrameReader
from protocol.record_batch import LogRecord
from protocol.state_batches import BATCH_BYTES
from tests.fuzz import targets

Plant = Callable[[Any, str, Any], None]


def _with_undocumented_error(decode: Callable[..., Any]) -> Callable[..., Any]:
    def decode_with_defect(*arguments: Any) -> Any:
        try:
            return decode(*arguments)
        except DecodeError as error:
            raise IndexError("planted") from error

    return decode_with_defect


def request(plant: Plant) -> None:
    """A malformed request raises an error that is not documented."""
    plant(targets, "decode_frame", _with_undocumented_error(targets.decode_frame))


def frames(plant: Plant) -> None:
    """If several frames arrive together, the first one is returned and the others are lost."""
    receive = FrameReader.receive_data
    plant(FrameReader, "receive_data", lambda self, data: receive(self, data)[:1])


def record_batch(plant: Plant) -> None:
    """A malformed state record raises an error that is not documented."""
    plant(targets, "decode_record", _with_undocumented_error(targets.decode_record))


def loading(plant: Plant) -> None:
    """The definition ignores tombstones, and the compiled loader applies them."""
    intact = replay.replay_record

    def replay_record(shard: Shard, record: LogRecord) -> bool:
        return record.value is None or intact(shard, record)

    plant(replay, "replay_record", replay_record)


def journal(plant: Plant) -> None:
    """The last entry of a commit is lost."""
    intact = layout.decode_entries

    def decode_entries(frame: layout.Frame) -> Iterator[layout.LoggedBatch]:
        return iter(list(intact(frame))[:-1])

    plant(layout, "decode_entries", decode_entries)


def sasl(plant: Plant) -> None:
    """A token that is not UTF-8 raises an error that is not documented."""
    intact = passwords._parse_plain_token
    plant(passwords, "_parse_plain_token", lambda token: intact(token.decode().encode()))


def writes(plant: Plant) -> None:
    """The definition loses the last state batch of a write, and the compiled parser keeps it."""
    intact = decisions.normalise
    plant(decisions, "normalise", lambda batches, start: intact(batches, start)[:-BATCH_BYTES])


DEFECTS: dict[str, Callable[[Plant], None]] = {
    defect.__name__: defect for defect in (request, frames, record_batch, loading, journal, sasl, writes)
}
