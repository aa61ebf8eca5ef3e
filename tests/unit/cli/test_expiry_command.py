"""The command `expiry`: tables and JSON of abandoned state."""

from collections.abc import Iterator

import pytest

from coordinator.operate.expiry import ExpiryRules
from tests.unit.admin.admin_server import serve_admin
from tests.unit.admin.test_expiry_routes import AbandonedStateCluster
from tests.unit.cli.command_line import CommandLine

HEAD = ["GROUP", "TOPIC", "PARTITIONS", "REASON", "ABANDONED-SINCE", "EXPIRES-AT", "STATUS"]
SINCE = "2023-11-14T22:13:20.123Z"
OFF = (
    "share-coordinator: expiry is disabled (share.coordinator.group.state.retention.minutes=-1), and ages "
    "are counted from the first request of this list\n"
)


@pytest.fixture(scope="module")
def coordinator_url() -> Iterator[str]:
    setup = AbandonedStateCluster()
    with serve_admin(setup.records, make_expiry=setup.make_expiry) as coordinator:
        yield coordinator.url


@pytest.fixture(scope="module")
def url_without_expiry() -> Iterator[str]:
    setup = AbandonedStateCluster(ExpiryRules(None, 60))
    with serve_admin(setup.records, make_expiry=setup.make_expiry) as coordinator:
        yield coordinator.url


def test_expiry_prints_a_table_with_expiry_times(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    done = share_coordinator("expiry", "--url", coordinator_url)
    assert (done.exit_code, done.err) == (0, "")
    at = "2023-11-14T23:53:20.123Z"
    assert done.rows == [
        HEAD,
        ["g", "t", "0-1", "group_empty", SINCE, at, "later"],
        ["g", "u", "5", "group_empty", SINCE, at, "later"],
    ]


def test_expiry_prints_json(share_coordinator: CommandLine, coordinator_url: str) -> None:
    answer = share_coordinator("expiry", "--url", coordinator_url, "-o", "json").json
    assert (answer["enabled"], answer["retention_minutes"], answer["total"]) == (True, 100, 2)
    assert [item["partitions"] for item in answer["items"]] == [[0, 1], [5]]


def test_expiry_lists_abandoned_state_if_expiry_is_disabled(
    share_coordinator: CommandLine, url_without_expiry: str
) -> None:
    url = url_without_expiry
    done = share_coordinator("expiry", "--url", url)
    assert (done.exit_code, done.err) == (0, OFF)
    assert done.rows[1] == ["g", "t", "0-1", "group_empty", SINCE, "never", "later"]
    done = share_coordinator("expiry", "--url", url, "--retention-minutes", "10080")
    assert done.rows[1][5] == "2023-11-21T22:13:20.123Z"
    done = share_coordinator("expiry", "--url", url, "--retention-minutes", "1", "--execute")
    assert done.exit_code == 2
    assert "omitted with --execute" in done.err


def test_expiry_execute_fails_without_the_right_to_write(
    share_coordinator: CommandLine, coordinator_url: str
) -> None:
    done = share_coordinator("expiry", "--url", coordinator_url, "--execute")
    assert (done.exit_code, done.out) == (1, "")
    assert "http.writes" in done.err
