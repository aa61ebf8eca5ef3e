"""Print the demo as text, with a row of offsets for each state."""

from typing import TextIO

from rich.console import Console
from rich.text import Text

from coordinator.cli.demo.story import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    RECORDS,
    DemoCall,
    DemoStep,
)
from coordinator.client import ReadState, SharePartitionKey, StateBatch
from protocol.state_records import topic_id_text

_STATE_NAMES = {
    AVAILABLE: "AVAILABLE",
    ACQUIRED: "ACQUIRED",
    ACKNOWLEDGED: "ACKNOWLEDGED",
    ARCHIVING: "ARCHIVING",
    ARCHIVED: "ARCHIVED",
}

_CELL_CHARS = 4
_LABEL_CHARS = 12


class OffsetRow:
    """Draws the records of the demo as one row of cells with their delivery states."""

    def __init__(self, *, unicode: bool) -> None:
        self._below, self._unsettled = ("─", "·") if unicode else ("-", ".")
        self._marks = {
            AVAILABLE: ("↺" if unicode else "r", "bold yellow", "released: will be delivered again"),
            ACKNOWLEDGED: ("✓" if unicode else "a", "bold green", "accepted"),
            ARCHIVED: ("✗" if unicode else "x", "bold red", "rejected: not delivered again"),
        }

    def legend(self) -> list[Text]:
        """Return the meaning of the signs, one line each."""
        lines = [
            Text(mark, style).append(f" {meaning}", "none") for mark, style, meaning in self._marks.values()
        ]
        lines.append(Text(f"{self._unsettled} no stored state: not delivered, or in its first delivery"))
        lines.append(Text(f"{self._below} below the start offset: complete"))
        return lines

    def draw(self, state: ReadState) -> list[Text]:
        """Return the rows: offsets, signs, deliveries."""
        offsets, marks, deliveries = (
            Text(label.ljust(_LABEL_CHARS)) for label in ("offset", "state", "deliveries")
        )
        for offset in range(RECORDS):
            batch = _find_batch(state, offset)
            offsets.append(str(offset).rjust(_CELL_CHARS), "dim")
            if offset < state.start_offset:
                marks.append(self._below.rjust(_CELL_CHARS), "dim")
            elif batch is None:
                marks.append(self._unsettled.rjust(_CELL_CHARS))
            else:
                mark, style, _ = self._marks.get(batch.delivery_state, ("?", "bold", ""))
                marks.append(mark.rjust(_CELL_CHARS), style)
            deliveries.append((str(batch.delivery_count) if batch else "").rjust(_CELL_CHARS), "dim")
        deliveries.rstrip()
        return [offsets, marks, deliveries]


class TextOutput:
    """Prints each step for people: a paragraph, the requests and the offset row.

    Colours and Unicode signs are used if the terminal supports them.
    """

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream, highlight=False, markup=False, emoji=False)
        self._offset_row = OffsetRow(unicode=_can_encode("─·↺✓✗→", stream))
        self._arrow = "→" if _can_encode("→", stream) else "->"
        self._number = 0

    def show_share_partition(self, bootstrap: str, key: SharePartitionKey) -> None:
        """Print the coordinator and the share-partition, and explain the offset row."""
        self._print_indented(
            Text(
                "In a share group, many consumers process the records of one partition, each record "
                "independently. The broker that leads the partition tracks every record, and the share "
                "coordinator stores this state. This demo acts as that broker.\n"
            ),
            0,
        )
        self._print_indented(
            Text(
                f"Coordinator {bootstrap}, share group {key.group_id}, "
                f"topic id {topic_id_text(key.topic_id)}, partition {key.partition}."
            ),
            0,
        )
        self._console.print()
        for line in self._offset_row.legend():
            self._print_indented(line)

    def show_step(self, step: DemoStep) -> None:
        """Show one step."""
        self._number += 1
        self._console.print()
        self._console.print(Text(f"{self._number}. {step.title}", "bold"))
        self._print_indented(Text(step.text))
        for call in step.calls:
            self._print_indented(Text(f"{call.name}({_format_arguments(call)})", "cyan"))
            style = "bold red" if call.error else "green"
            self._print_indented(Text(f"{self._arrow} ").append(_format_outcome(call), style), 4)
        if step.state is None:
            return
        self._print_indented(
            Text(
                f"The coordinator holds: state epoch {step.state.state_epoch}, "
                f"start offset {step.state.start_offset}"
            )
        )
        for row in self._offset_row.draw(step.state):
            self._print_indented(row, 4)

    def _print_indented(self, text: Text, columns: int = 2) -> None:
        for line in text.wrap(self._console, self._console.width - columns):
            line.rstrip()
            self._console.print(Text(" " * columns).append_text(line), no_wrap=True)


def _can_encode(characters: str, stream: TextIO) -> bool:
    """Return whether a stream's encoding has these characters."""
    try:
        characters.encode(stream.encoding or "utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _find_batch(state: ReadState, offset: int) -> StateBatch | None:
    for batch in state.batches:
        if batch.first_offset <= offset <= batch.last_offset:
            return batch
    return None


def _format_arguments(call: DemoCall) -> str:
    return ", ".join(
        f"{name}=[{', '.join(map(_describe_batch, value))}]" if name == "batches" else f"{name}={value}"
        for name, value in call.request.items()
    )


def _describe_batch(batch: StateBatch) -> str:
    """Format a batch: offsets, state, deliveries."""
    offsets = f"{batch.first_offset}-{batch.last_offset}"
    if batch.first_offset == batch.last_offset:
        offsets = str(batch.first_offset)
    return f"{offsets}:{_STATE_NAMES.get(batch.delivery_state, batch.delivery_state)}:{batch.delivery_count}"


def _format_outcome(call: DemoCall) -> str:
    if call.error is not None:
        return f"refused, {call.error.error_code.name}: {call.error.message}"
    took = f"({call.took_ms:.1f} ms)"
    if call.answer is None:
        return f"done {took}"
    values = ", ".join(
        f"{name} {'[' + ', '.join(map(_describe_batch, value)) + ']' if name == 'batches' else value}"
        for name, value in call.answer._asdict().items()
    )
    return f"{values} {took}"
