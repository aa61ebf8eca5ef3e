"""Transcripts: sessions of a shard, command and answer, which are also the documentation of its behaviour.

Each `*.txt` holds comments (`#`), commands, and below `----` what happened. `pytest tests/transcripts
--rewrite` writes down what happens now: read the difference, and commit it only if you know why.
"""

from pathlib import Path

import pytest

from tests.transcripts.session import Session

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
SEPARATOR = "----"


def blocks(text: str) -> list[tuple[str, str, str]]:
    """Cut a transcript into (comment lines, command, expected)."""
    found = []
    for block in text.strip().split("\n\n"):
        before, _, expected = f"{block}\n".partition(f"{SEPARATOR}\n")
        *comments, command = before.strip().split("\n")
        found.append(("\n".join(comments), command, expected.strip()))
    return found


def played(text: str) -> str:
    """Return the transcript as it goes now."""
    session = Session()
    written = []
    for comments, command, _ in blocks(text):
        happened = session.run(command)
        head = f"{comments}\n{command}" if comments else command
        written.append(f"{head}\n{SEPARATOR}\n{happened}".rstrip())
    return "\n\n".join(written) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text(encoding="utf-8")
    now = played(text)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
        return
    assert now == text


def test_there_are_transcripts() -> None:
    assert len(TRANSCRIPTS) >= 4
