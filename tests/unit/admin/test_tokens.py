"""The token file and the throttle of failed logins."""

import re
from hashlib import sha256
from pathlib import Path

import pytest

from coordinator.errors import ConfigError
from coordinator.operate.admin.login_throttle import FAILED_LOGIN_EXPIRY_S, FAILED_LOGINS_MAX, LoginThrottle
from coordinator.operate.admin.tokens import TokenFile

READING, WRITING = "reading-0123456789", "writing-0123456789"


def write_token_file(folder: Path, text: str) -> Path:
    """Write a token file, or replace it atomically; return its path."""
    path, fresh = folder / "tokens", folder / "tokens.new"
    fresh.write_text(text)
    return fresh.replace(path)


def test_token_has_a_name_and_a_scope(tmp_path: Path) -> None:
    digest = sha256(WRITING.encode()).hexdigest()
    tokens = TokenFile(
        str(
            write_token_file(
                tmp_path, f"# who may\n\nprometheus read {READING}\n  alice\twrite sha256:{digest}\n"
            )
        )
    )
    reading, writing = tokens.find_token(READING), tokens.find_token(WRITING)
    assert reading is not None
    assert writing is not None
    assert (reading.name, reading.may_write) == ("prometheus", False)
    assert (writing.name, writing.may_write) == ("alice", True)
    for wrong in ("", READING[:-1], READING + "x", digest, f"sha256:{digest}", "é", "\udcff"):
        assert tokens.find_token(wrong) is None


def test_sample_tokens_in_the_docs_are_refused(tmp_path: Path) -> None:
    pages = [
        Path(__file__).parents[3] / page
        for page in ("docs/operations.md", "coordinator/operate/admin/tokens.py")
    ]
    line = re.compile(r"^ *(\w+ +(?:read|write) +\S+)$", re.MULTILINE)
    samples = [sample for page in pages for sample in line.findall(page.read_text("utf-8"))]
    assert len(samples) == 4
    for sample in samples:
        with pytest.raises(ConfigError, match="that of line 1 is neither"):
            TokenFile(str(write_token_file(tmp_path, sample)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "a file with a token: a line of NAME, read or write, and TOKEN"),
        ("# nothing\n", "a file with a token"),
        (READING, "a file of lines of NAME, read or write, and TOKEN; line 1 is none"),
        (f"a admin {READING}", "line 1 is none"),
        (
            f"a read {READING}\nb read short",
            "at least 16 characters, or of sha256: and 64 digits; that of line 2",
        ),
        ("a read sha256:12", "that of line 1 is neither"),
        (f"a read {READING}\na read {WRITING}", "a file without the same name twice"),
        (f"a read {READING}\nb read {READING}", "a file without the same token twice"),
        ("é read x", "a file of ASCII characters"),
        ("#" * (1 << 20) + "\n", "a file of at most 1048576 bytes"),
    ],
)
def test_invalid_token_file_is_refused_without_showing_tokens(tmp_path: Path, text: str, said: str) -> None:
    path = write_token_file(tmp_path, text)
    with pytest.raises(ConfigError) as refused:
        TokenFile(str(path))
    assert str(refused.value).startswith(f"http.token.file={path} cannot be used: it must be ")
    assert said in str(refused.value)
    assert READING not in str(refused.value)


def test_missing_token_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"a readable file \(no such file or directory\)"):
        TokenFile(str(tmp_path / "none"))


class ManualClock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_failed_logins_delay_the_client_address(tmp_path: Path) -> None:
    clock = ManualClock()
    throttle = LoginThrottle(clock)
    for _ in range(FAILED_LOGINS_MAX):
        assert throttle.wait_s("10.0.0.1") == 0
        throttle.record_failure("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") == pytest.approx(FAILED_LOGIN_EXPIRY_S)
    assert throttle.wait_s("10.0.0.2") == 0
    clock.now_s += FAILED_LOGIN_EXPIRY_S
    assert throttle.wait_s("10.0.0.1") == 0
    throttle.record_failure("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") > 0
    clock.now_s += FAILED_LOGIN_EXPIRY_S * FAILED_LOGINS_MAX
    for _ in range(FAILED_LOGINS_MAX - 1):
        throttle.record_failure("10.0.0.1")
    assert throttle.wait_s("10.0.0.1") == 0


def test_known_good_token_is_kept_per_address_until_forgotten() -> None:
    throttle = LoginThrottle(ManualClock())
    throttle.record_success("10.0.0.1", b"digest")
    assert throttle.is_known_good("10.0.0.1", b"digest")
    assert not throttle.is_known_good("10.0.0.2", b"digest")
    throttle.forget_known_good()
    assert not throttle.is_known_good("10.0.0.1", b"digest")


def test_login_throttle_has_bounded_memory() -> None:
    throttle = LoginThrottle(ManualClock())
    for number in range(20_000):
        throttle.record_failure(str(number))
        throttle.record_success(str(number), b"digest")
    assert len(throttle._expiry_s) == len(throttle._known_good) == 10_000
