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
def target_name(request: pytest.FixtureRequest) -> str:
    """Return the name of a target. Skip the test if its decoders are not installed."""
    target: str = request.param
    if target in COMPILED_TARGETS and fastpath.compiled is None:
        pytest.skip("the compiled modules are not in use")
    return target


def read_corpus(name: str) -> Iterator[tuple[Path, bytes]]:
    for file in sorted((CORPUS / name).iterdir()):
        yield file, file.read_bytes()


def mutate_input(data: bytes) -> Iterator[bytes]:
    """Yield an input, and simple mutations like those of the fuzzer."""
    yield data
    yield data + b"\xff"
    yield data[:-1]
    for index in range(len(data)):
        yield data[:index] + bytes([data[index] ^ 0xFF]) + data[index + 1 :]


def test_target_accepts_its_corpus(target_name: str) -> None:
    replayed = 0
    for file, data in read_corpus(target_name):
        try:
            TARGETS[target_name](data)
        except BaseException as error:
            error.add_note(f"python -m tests.fuzz {target_name} {file}")
            raise
        replayed += 1
    assert replayed


def test_target_detects_its_planted_defect(target_name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    DEFECTS[target_name](monkeypatch.setattr)

    def is_detected(data: bytes) -> bool:
        try:
            TARGETS[target_name](data)
        except Exception:
            return True
        return False

    assert any(is_detected(mutated) for _, data in read_corpus(target_name) for mutated in mutate_input(data))


def test_each_target_has_a_corpus_and_a_planted_defect() -> None:
    assert {folder.name for folder in CORPUS.iterdir()} == {*TARGETS} == {*DEFECTS}
