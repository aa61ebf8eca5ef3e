"""Test that with the flags of `make sanitize`, memory errors and undefined behaviour end the process."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz.instrumented import FLAGS, instrumented_environment

SOURCE = Path(__file__).with_name("planted_overflow.c")


@pytest.mark.slow
@pytest.mark.needs("gcc")
@pytest.mark.parametrize(
    ("function", "report"),
    [("read_after_end", "AddressSanitizer: heap-buffer-overflow"), ("overflow", "signed integer overflow")],
)
def test_planted_memory_error_ends_the_process(function: str, report: str, tmp_path: Path) -> None:
    library = tmp_path / "planted.so"
    subprocess.run(["gcc", *FLAGS, str(SOURCE), "-o", str(library)], check=True)
    ended = subprocess.run(
        [sys.executable, "-c", f"import ctypes; ctypes.CDLL({str(library)!r}).{function}(16)"],
        env=instrumented_environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode
    assert report in ended.stderr
