"""Replay the corpus of each fuzz target, and check that each target can fail."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator import fastpath
from tests.fuzz.instrumented import COMPILED_TARGETS
from tests.fuzz.planted_defects import DEFECTS
from tests.fuzz.targets import TARGETS

CORPUS = Path(__file__).with_name("corpus")


@pytest.fixture(params=TARGETS)
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a target. Skip the test if its decoders are not installed."""
    target: str = request.param
    if target in COMPILED_TARGETS and (fastpath.loading is None or fastpath.compiled is None):
        pytest.skip("the compiled modules are not in use")
    return target


def corpus(name: str) -> Iterator[tuple[Path, bytes]]:
    for file in sorted((CORPUS / name).iterdir()):
        yield file, file.read_bytes()


def mutations(data: bytes) -> Iterator[bytes]:
    """Yield an input, and simple mutations like those of the fuzzer."""
    yield data
    yield data + b"\xff"
    yield data[:-1]
    for place in range(len(data)):
        yield data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def test_target_accepts_its_corpus(name: str) -> None:
    replayed = 0
    for file, data in corpus(name):
        try:
            TARGETS[name](data)
        except BaseException as error:
            error.add_note(f"python -m tests.fuzz {name} {file}")
            raise
        replayed += 1
    assert replayed


def test_target_detects_its_planted_defect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[name](monkeypatch.setattr)

    def is_noticed(data: bytes) -> bool:
        try:
            TARGETS[name](data)
        except Exception:
            return True
        return False

    assert any(is_noticed(mutated) for _, data in corpus(name) for mutated in mutations(data))


def test_each_target_has_a_corpus_and_a_planted_defect() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == {*TARGETS} == {*DEFECTS}
