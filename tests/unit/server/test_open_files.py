"""The number of accepted connections when the limit of open files is low."""

import resource

import pytest

from coordinator.process.open_files import (
    FILES_KEPT_BACK,
    HTTP_CONNECTIONS_MAX,
    connection_limit,
    http_connection_limit,
)


class FakeResourceLimits:
    """The resource limits of the process."""

    def __init__(self, soft: int, hard: int) -> None:
        self.limits = (soft, hard)

    def getrlimit(self, what: int) -> tuple[int, int]:
        assert what == resource.RLIMIT_NOFILE
        return self.limits

    def setrlimit(self, what: int, limits: tuple[int, int]) -> None:
        assert what == resource.RLIMIT_NOFILE
        if limits[0] > self.limits[1] >= 0:
            raise ValueError("not allowed to raise maximum limit")
        self.limits = limits


@pytest.mark.parametrize(
    ("soft", "hard", "accepted", "open_files"),
    [
        (1_024, 524_288, 2_000, 8 * HTTP_CONNECTIONS_MAX),
        (1_024, resource.RLIM_INFINITY, 2_000, 8 * HTTP_CONNECTIONS_MAX),
        (65_536, 65_536, 2_000, 65_536),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, 2_000, resource.RLIM_INFINITY),
        (256, 2_048, 2_048 - FILES_KEPT_BACK, 2_048),
        (256, 1_024, 512, 1_024),
        (64, 64, 32, 64),
    ],
)
def test_accepted_connections_leave_files_for_other_uses(
    soft: int,
    hard: int,
    accepted: int,
    open_files: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    system = FakeResourceLimits(soft, hard)
    monkeypatch.setattr(resource, "getrlimit", system.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", system.setrlimit)
    assert connection_limit(2_000) == accepted
    assert system.limits == (open_files, hard)
    # Some file descriptors are left even when all Kafka and HTTP connections are open.
    left = open_files - accepted - http_connection_limit()
    assert left >= min(128, open_files // 4) or open_files == resource.RLIM_INFINITY
    said = (
        f"max.connections=2000, but the system allows {open_files} open files (ulimit -n). At most {accepted}"
    )
    assert (said in caplog.text) == (accepted < 2_000)


@pytest.mark.parametrize(
    ("open_files", "accepted"),
    [
        (resource.RLIM_INFINITY, HTTP_CONNECTIONS_MAX),
        (1_048_576, HTTP_CONNECTIONS_MAX),
        (1_024, 128),
        (64, 8),
    ],
)
def test_http_connection_limit_is_a_part_of_the_open_file_limit(
    open_files: int, accepted: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", FakeResourceLimits(open_files, open_files).getrlimit)
    assert http_connection_limit() == accepted


def test_open_file_limit_is_raised_above_the_connection_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    system = FakeResourceLimits(1_024, 524_288)
    monkeypatch.setattr(resource, "getrlimit", system.getrlimit)
    monkeypatch.setattr(resource, "setrlimit", system.setrlimit)
    assert connection_limit(10_000) == 10_000
    assert system.limits[0] == 10_000 + FILES_KEPT_BACK
