"""Print the demo as text, with a row of offsets for each state."""

from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from rich.console import Console
from rich.text import Text

from coordinator.cli.demo.story import (
    ACKNOWLEDGED,
    ARCHIVED,
    AVAILABLE,
    RECORDS,
    DemoResponse,
    DemoStep,
)
from coordinator.client import ReadState, SharePartitionKey, StateBatch
from protocol.state_records import topic_id_text

# The names of the delivery states, by Kafka's number.
_STATE_NAMES = ("AVAILABLE", "ACQUIRED", "ACKNOWLEDGED", "ARCHIVING", "ARCHIVED")

_CELL_CHARS = 4
_LABEL_CHARS = 12


class _Sign(NamedTuple):
    """The sign of a record in the row of offsets, and its replacement on an ASCII terminal."""

    unicode: str
    ascii: str
    style: str
    meaning: str


_SIGNS = {
    AVAILABLE: _Sign("↺", "r", "bold yellow", "released: will be delivered again"),
    ACKNOWLEDGED: _Sign("✓", "a", "bold green", "accepted"),
    ARCHIVED: _Sign("✗", "x", "bold red", "rejected: not delivered again"),
}
_NO_STATE = _Sign("·", ".", "none", "no stored state: not delivered, or in its first delivery")
_BELOW_START = _Sign("─", "-", "dim", "below the start offset: complete")
_UNKNOWN_STATE = _Sign("?", "?", "bold", "")


class TextOutput:
    """Prints each step for people: a paragraph, the requests, and a row of offsets with delivery states.

    Colours and Unicode signs are used if the terminal supports them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._unicode = _can_encode("─·↺✓✗→", stream)
        self._number = 0

    def show_share_partition(self, bootstrap: str, key: SharePartitionKey) -> None:
        """Print the coordinator and the share-partition, and explain the row of offsets."""
        self._print(
            "In a share group, many consumers process the records of one partition, each record "
            "independently. The broker that leads the partition tracks every record, and the share "
            "coordinator stores this state. This demo acts as that broker.\n",
            indent=0,
        )
        self._print(
            f"Coordinator {bootstrap}, share group {key.group_id}, "
            f"topic id {topic_id_text(key.topic_id)}, partition {key.partition}.",
            indent=0,
        )
        self._console.print()
        for sign in (*_SIGNS.values(), _NO_STATE, _BELOW_START):
            self._print(Text(self._character(sign), sign.style).append(f" {sign.meaning}", "none"))

    def show_step(self, step: DemoStep, responses: Sequence[DemoResponse], state: ReadState | None) -> None:
        """Print a step, its responses, and the state after it; None if the state was deleted."""
        self._number += 1
        self._console.print()
        self._print(Text(f"{self._number}. {step.title}", "bold"), indent=0)
        self._print(step.text)
        for response in responses:
            arguments = ", ".join(_format_fields(response.request.arguments, "="))
            self._print(Text(f"{response.request.name}({arguments})", "cyan"))
            style = "bold red" if response.error else "green"
            arrow = "→" if self._unicode else "->"
            self._print(Text(f"{arrow} ").append(_format_outcome(response), style), indent=4)
        if state is None:
            return
        self._print(
            f"The coordinator holds: state epoch {state.state_epoch}, start offset {state.start_offset}"
        )
        for row in self._offset_rows(state):
            self._print(row, indent=4)

    def _offset_rows(self, state: ReadState) -> list[Text]:
        offsets, signs, deliveries = (
            Text(label.ljust(_LABEL_CHARS)) for label in ("offset", "state", "deliveries")
        )
        for offset in range(RECORDS):
            batch = _find_batch(state, offset)
            if offset < state.start_offset:
                sign = _BELOW_START
            elif batch is None:
                sign = _NO_STATE
            else:
                sign = _SIGNS.get(batch.delivery_state, _UNKNOWN_STATE)
            offsets.append(str(offset).rjust(_CELL_CHARS), "dim")
            signs.append(self._character(sign).rjust(_CELL_CHARS), sign.style)
            deliveries.append((str(batch.delivery_count) if batch else "").rjust(_CELL_CHARS), "dim")
        deliveries.rstrip()
        return [offsets, signs, deliveries]

    def _character(self, sign: _Sign) -> str:
        return sign.unicode if self._unicode else sign.ascii

    def _print(self, text: Text | str, *, indent: int = 2) -> None:
        text = Text(text) if isinstance(text, str) else text
        for line in text.wrap(self._console, self._console.width - indent):
            line.rstrip()
            self._console.print(Text(" " * indent).append_text(line), no_wrap=True)


def _can_encode(characters: str, stream: TextIO) -> bool:
    """Return whether a stream's encoding has these characters."""
    try:
        characters.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _find_batch(state: ReadState, offset: int) -> StateBatch | None:
    return next((each for each in state.batches if each.first_offset <= offset <= each.last_offset), None)


def _format_outcome(response: DemoResponse) -> str:
    if response.error is not None:
        return f"refused, {response.error.error_code.name}: {response.error.message}"
    values = "done" if response.values is None else ", ".join(_format_fields(response.values._asdict(), " "))
    return f"{values} ({response.took_ms:.1f} ms)"


def _format_fields(fields: dict[str, Any], separator: str) -> list[str]:
    return [
        f"{name}{separator}[{', '.join(map(_format_batch, value))}]"
        if name == "batches"
        else f"{name}{separator}{value}"
        for name, value in fields.items()
    ]


def _format_batch(batch: StateBatch) -> str:
    """Format a batch: offsets, state, deliveries."""
    offsets = str(batch.first_offset)
    if batch.first_offset != batch.last_offset:
        offsets += f"-{batch.last_offset}"
    number = batch.delivery_state
    state = _STATE_NAMES[number] if number < len(_STATE_NAMES) else number
    return f"{offsets}:{state}:{batch.delivery_count}"
