"""FindCoordinator answers when several replicas share the shards."""

from zlib import crc32

import pytest

from coordinator.cluster.ownership import NOBODY, Assignment, Replica
from coordinator.config import INT32_MAX, HostPort
from coordinator.serve.server import CoordinatorDirectory
from coordinator.serve.server.find_coordinator import NODE_IDS_PER_REPLICA, join_encoded_parts
from protocol.errors import ErrorCode
from protocol.messages.find_coordinator import Coordinator, FindCoordinatorRequest, encode_response
from protocol.routing import state_partition
from tests.builders import KEY

SHARDS = 10
KEYS = [KEY._replace(partition=partition) for partition in range(200)]
FIRST = 1_000_000


def make_directory() -> CoordinatorDirectory:
    return CoordinatorDirectory(
        HostPort("localhost", 9095), node_id_first=FIRST, node_ids=4, state_partitions=SHARDS
    )


def make_replica(number: int, port: int = 9095, connections: int = 4) -> Replica:
    return Replica(f"instance {number}", f"kafka-{number}:{port}", connections=connections)


def find_all_shards(directory: CoordinatorDirectory) -> dict[int, Coordinator]:
    """Return the result for each shard; assert that all its share-partitions have the same result."""
    request = FindCoordinatorRequest(key_type=2, coordinator_keys=[str(key) for key in KEYS])
    answers: dict[int, Coordinator] = {}
    for key, answer in zip(KEYS, directory.find(request, 6).coordinators, strict=True):
        shard = state_partition(key, SHARDS)
        assert answer.key == str(key)
        answer.key = ""
        assert answers.setdefault(shard, answer) == answer
    assert len(answers) == SHARDS
    return answers


def test_owner_of_each_shard_is_returned() -> None:
    assignment = Assignment(3, (make_replica(1), make_replica(2)), (0, 1) * (SHARDS // 2))
    directory = make_directory()
    route_version = directory.route_version
    directory.set_assignment(assignment)
    assert directory.route_version > route_version
    for shard, answer in find_all_shards(directory).items():
        assert (answer.host, answer.port, answer.error_code) == (f"kafka-{shard % 2 + 1}", 9095, 0)
        assert FIRST <= answer.node_id <= INT32_MAX


def test_replicas_with_equal_assignments_give_equal_answers() -> None:
    directory, other = make_directory(), make_directory()
    directory.set_assignment(
        Assignment(1, (make_replica(1), make_replica(2), make_replica(3)), (2,) * SHARDS)
    )
    last = Assignment(9, (make_replica(3), make_replica(1)), (0, 1) * (SHARDS // 2))
    for each in (directory, other):
        each.set_assignment(last)
    assert find_all_shards(directory) == find_all_shards(other)


def test_node_id_always_means_the_same_address() -> None:
    addresses: dict[int, tuple[str, int]] = {}
    directory = make_directory()
    for generation in range(50):
        replicas = tuple(make_replica(number, connections=64) for number in range(generation % 7, 12))
        owners = tuple((generation + shard) % len(replicas) for shard in range(SHARDS))
        directory.set_assignment(Assignment(generation, replicas, owners))
        for answer in find_all_shards(directory).values():
            assert addresses.setdefault(answer.node_id, (answer.host, answer.port)) == (
                answer.host,
                answer.port,
            )


def test_replica_with_a_taken_address_hash_gets_the_next_free_node_ids() -> None:
    # The node ids have six ranges. The addresses have the hashes 0, 5 and 5; after range 5 comes range 0.
    first = INT32_MAX - 6 * NODE_IDS_PER_REPLICA
    directory = CoordinatorDirectory(
        HostPort("localhost", 9095), node_id_first=first, node_ids=4, state_partitions=SHARDS
    )
    replicas = tuple(make_replica(number, connections=64) for number in range(3))
    assert [crc32(each.wire.encode()) % 6 for each in replicas] == [0, 5, 5]
    directory.set_assignment(Assignment(1, replicas, tuple(shard % 3 for shard in range(SHARDS))))
    hosts = {answer.node_id: answer.host for answer in find_all_shards(directory).values()}
    assert len(hosts) == SHARDS, "no two shards of different replicas share an id"
    ranges = {((node_id - first) // NODE_IDS_PER_REPLICA, host) for node_id, host in hosts.items()}
    assert ranges == {(0, "kafka-0"), (5, "kafka-1"), (1, "kafka-2")}


def test_shard_without_a_known_owner_returns_coordinator_not_available() -> None:
    directory = make_directory()
    directory.set_assignment(Assignment(1, (make_replica(1),), (NOBODY,) * SHARDS))
    unknown = find_all_shards(directory)
    directory.set_assignment(None)
    for answer in (*unknown.values(), *find_all_shards(directory).values()):
        assert answer.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert (answer.node_id, answer.host, answer.port) == (-1, "", -1)


@pytest.mark.parametrize(("port", "is_valid"), [(0, False), (1, True), (65535, True)])
def test_owner_with_port_0_returns_coordinator_not_available(port: int, is_valid: bool) -> None:
    directory = make_directory()
    directory.set_assignment(Assignment(1, (make_replica(1, port=port), make_replica(2)), (0,) * SHARDS))
    error_code = ErrorCode.NONE if is_valid else ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert {answer.error_code for answer in find_all_shards(directory).values()} == {error_code}


@pytest.mark.parametrize(("connections", "used"), [(0, 1), (1, 1), (3, 3), (64, 64), (100, 64)])
def test_owner_has_a_node_id_for_each_connection(connections: int, used: int) -> None:
    directory = CoordinatorDirectory(
        HostPort("localhost", 9095), node_id_first=FIRST, node_ids=4, state_partitions=200
    )
    directory.set_assignment(Assignment(1, (make_replica(1, connections=connections),), (0,) * 200))
    found = {route.node_id for route in directory._routes if route is not None}
    assert found == set(range(min(found), min(found) + used))


LONG_KEYS = ["x" * 16_384] * 5


@pytest.mark.parametrize("version", range(7))
@pytest.mark.parametrize(
    ("keys", "sizes"),
    [
        ([], []),
        (KEYS[:1], [1]),
        (KEYS[:127], [127]),
        (KEYS, [200]),
        ([*KEYS, "no key", *KEYS[:2]], [200, 3]),
        # A step ends when its keys exceed 32 Ki characters.
        (LONG_KEYS, [3, 2]),
    ],
)
def test_response_encoded_in_steps_equals_the_response_encoded_at_once(
    keys: list[object], sizes: list[int], version: int
) -> None:
    """Only versions with several keys have steps; only version 6 has keys of share groups."""
    directory = make_directory()
    names = [str(key) for key in keys] if version >= 4 else []
    request = FindCoordinatorRequest(key="", key_type=2, coordinator_keys=names)
    whole = directory.find(request, version)
    codes = [answer.error_code for answer in whole.coordinators] if version >= 4 else [whole.error_code]
    parts = list(directory.find_in_steps(request, version))
    header = b"\0" if version >= 3 else b""
    error_code = next((code for code in codes if code), 0)
    assert join_encoded_parts(parts, version) == (header + encode_response(whole, version), error_code)
    assert len(parts) == (len(sizes) + 1 if version >= 4 else 1)
    wrong = [key for key in keys if isinstance(key, str)] if version == 6 else keys
    assert codes.count(ErrorCode.INVALID_REQUEST) == (len(wrong) if version >= 4 else 1)
