"""Test transcripts: text files with commands to a shard and its responses, which document its behaviour.

Each `*.txt` has comments (`#`), commands, and the expected results below `----`. `pytest tests/transcripts
--rewrite` replaces the expected results with the current results. Review the difference before you commit it.
"""

from pathlib import Path

import pytest

from tests.transcripts.session import Session

TRANSCRIPTS = sorted(Path(__file__).parent.glob("*.txt"))
SEPARATOR = "----"


def split_blocks(text: str) -> list[tuple[str, str, str]]:
    """Split a transcript into (comment lines, command, expected)."""
    found = []
    for block in text.strip().split("\n\n"):
        before, _, expected = f"{block}\n".partition(f"{SEPARATOR}\n")
        *comments, command = before.strip().split("\n")
        found.append(("\n".join(comments), command, expected.strip()))
    return found


def replay_transcript(text: str) -> str:
    """Return the transcript with the current results."""
    session = Session()
    written = []
    for comments, command, _ in split_blocks(text):
        result = session.run_command(command)
        head = f"{comments}\n{command}" if comments else command
        written.append(f"{head}\n{SEPARATOR}\n{result}".rstrip())
    return "\n\n".join(written) + "\n"


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript_is_reproduced(path: Path, pytestconfig: pytest.Config) -> None:
    text = path.read_text(encoding="utf-8")
    now = replay_transcript(text)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
        return
    assert now == text


def test_transcripts_exist() -> None:
    assert len(TRANSCRIPTS) >= 4
