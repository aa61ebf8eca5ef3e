"""What goes where: a request that reaches any coordinator is carried out by those that own its parts."""

from coordinator.client import Connection
from coordinator.forwarding import FORWARDED_CLIENT_ID
from coordinator.service import DELETE, INITIALIZE, READ, SUMMARY, WRITE
from protocol.errors import ErrorCode
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from tests.builders import ACKNOWLEDGED, ARCHIVED, TOPIC_ID, initialize, read, unpacked, write
from tests.unit.forwarding.coordinator_group import GROUP, ForwardingGroup, partition_of, play

NONE = int(ErrorCode.NONE)


def test_a_request_is_split_by_owner_and_answered_in_its_order() -> None:
    async def scene(it: ForwardingGroup) -> None:
        asked = it.nodes[0]
        # Two share-partitions of each shard, in an order of no meaning.
        partitions = [partition_of(shard, which) for which in (0, 1) for shard in (5, 0, 3, 1, 4, 2)]
        await asked.ask(INITIALIZE, *(initialize(partition=partition) for partition in partitions))
        results = await asked.ask(
            WRITE, *(write((p, p + 4, ACKNOWLEDGED, 1), partition=p) for p in partitions)
        )
        assert [(result.partition, result.error_code) for result in results] == [
            (p, NONE) for p in partitions
        ]
        # One request to each of the two other owners, whatever it is about.
        assert asked.forwarded("InitializeShareGroupState") == 2
        assert asked.forwarded("WriteShareGroupState") == 2
        for other in it.nodes[1:]:
            assert [other.relay.requests(api_key) for api_key in (83, 85)] == [1, 1]
            assert all(
                (seen.client_id or "").startswith(FORWARDED_CLIENT_ID + "instance-0")
                for seen in other.relay.seen
            )
        # It is in the state of the owners, and whoever is asked tells it.
        for one in it.nodes:
            states = await one.ask(READ, *(read(partition=p) for p in partitions))
            assert [unpacked(state.state_batches) for state in states] == [
                [(p, p + 4, ACKNOWLEDGED, 1)] for p in partitions
            ]
        assert [one.forwarded("WriteShareGroupState") for one in it.nodes] == [2, 0, 0]

    play(scene)


def test_what_is_ours_goes_nowhere() -> None:
    async def scene(it: ForwardingGroup) -> None:
        own = partition_of(0)
        assert await it.nodes[0].codes(INITIALIZE, initialize(partition=own)) == [NONE]
        assert await it.nodes[0].codes(READ, read(partition=own)) == [NONE]
        assert [one.relay.seen for one in it.nodes] == [[], [], []]

    play(scene)


def test_a_share_partition_that_is_named_twice_stays_one_unit() -> None:
    async def scene(it: ForwardingGroup) -> None:
        asked, theirs = it.nodes[0], partition_of(1)
        await asked.ask(INITIALIZE, initialize(partition=theirs))
        refused = write((0, 4, ACKNOWLEDGED, 1), leader_epoch=-1, partition=theirs)
        fine = write((5, 9, ACKNOWLEDGED, 1), partition=theirs)
        # All or nothing: the second is refused with the first.
        assert await asked.codes(WRITE, refused, fine) == [ErrorCode.INVALID_REQUEST]
        assert await asked.codes(WRITE, fine, write((0, 4, ARCHIVED, 1), partition=theirs)) == [NONE]
        (state,) = await asked.ask(READ, read(partition=theirs))
        assert unpacked(state.state_batches) == [(0, 4, ARCHIVED, 1), (5, 9, ACKNOWLEDGED, 1)]
        assert asked.forwarded("WriteShareGroupState") == 1
        assert asked.forwarded("WriteShareGroupState", "INVALID_REQUEST") == 1

    play(scene)


def test_all_five_apis_are_forwarded() -> None:
    async def scene(it: ForwardingGroup) -> None:
        asked, theirs = it.nodes[2], partition_of(0)
        assert await asked.codes(INITIALIZE, initialize(3, 10, partition=theirs)) == [NONE]
        part = write(
            (10, 14, ACKNOWLEDGED, 1), start_offset=10, state_epoch=3, complete_count=5, partition=theirs
        )
        assert await asked.codes(WRITE, part) == [NONE]
        (summary,) = await asked.ask(SUMMARY, summary_api.PartitionData(theirs, 0))
        assert (summary.state_epoch, summary.start_offset, summary.delivery_complete_count) == (3, 10, 5)
        assert await asked.codes(READ, read(partition=theirs)) == [NONE]
        assert await asked.codes(DELETE, delete_api.PartitionData(theirs)) == [NONE]
        # What the owner refuses comes as it is.
        assert await asked.codes(READ, read(partition=theirs)) == [ErrorCode.INVALID_REQUEST]

    play(scene)


def test_the_newest_version_is_used_that_the_owner_serves() -> None:
    async def scene(it: ForwardingGroup) -> None:
        asked, theirs = it.nodes[0], partition_of(1)
        it.nodes[1].relay.versions_max = {write_api.API_KEY: 0, summary_api.API_KEY: 0}
        await asked.ask(INITIALIZE, initialize(partition=theirs))
        assert await asked.codes(
            WRITE, write((0, 4, ACKNOWLEDGED, 1), complete_count=5, partition=theirs)
        ) == [NONE]
        # What the older version cannot say is left out, as a broker does it: unknown.
        (summary,) = await asked.ask(SUMMARY, summary_api.PartitionData(theirs, 0))
        assert (summary.error_code, summary.delivery_complete_count) == (NONE, -1)
        versions = {seen.api_key: seen.version for seen in it.nodes[1].relay.seen}
        assert (versions[write_api.API_KEY], versions[summary_api.API_KEY]) == (0, 0)

    play(scene)


def test_without_forwarding_the_wrong_coordinator_says_that_it_is_wrong() -> None:
    async def scene(it: ForwardingGroup) -> None:
        asked = it.nodes[0]
        asked.forwarder.active = False
        codes = await asked.codes(
            INITIALIZE, initialize(partition=partition_of(0)), initialize(partition=partition_of(1))
        )
        assert codes == [NONE, ErrorCode.NOT_COORDINATOR]
        assert it.nodes[1].relay.seen == []

    play(scene)


def test_a_request_is_forwarded_once() -> None:
    """Two that each believe that the other is the owner do not send a request back and forth."""

    async def scene(it: ForwardingGroup) -> None:
        theirs = partition_of(0)
        first, second, _ = it.nodes
        first.apply_assignment(it.assignment(1, 1, 1, 1, 1, 1))
        second.apply_assignment(it.assignment(0, 0, 0, 0, 0, 0))
        asked = first.ask(READ, read(partition=theirs))
        await it.until(asked.done)
        assert [result.error_code for result in await asked] == [ErrorCode.NOT_COORDINATOR]
        assert second.relay.requests(84) > 10
        assert first.relay.seen == []
        assert second.forwarder.held == 0

    play(scene)


def test_what_a_broker_sends_is_forwarded_and_what_a_coordinator_sends_is_not() -> None:
    async def scene(it: ForwardingGroup) -> None:
        theirs = partition_of(1)
        await it.nodes[0].ask(INITIALIZE, initialize(partition=theirs))
        request = read_api.ReadShareGroupStateRequest(
            GROUP, [read_api.ReadStateData(TOPIC_ID, [read(partition=theirs)])]
        )
        for client_id, code in (
            ("Persister-client-1", ErrorCode.NONE),
            ("", ErrorCode.NONE),
            (FORWARDED_CLIENT_ID + "somebody", ErrorCode.NOT_COORDINATOR),
        ):
            connection = await Connection.open("coordinator-0", 9095, client_id=client_id)
            response = await connection.request(request)
            assert response.results[0].partitions[0].error_code == code
            await connection.close()
        assert it.nodes[0].forwarded("ReadShareGroupState") == 2

    play(scene)
