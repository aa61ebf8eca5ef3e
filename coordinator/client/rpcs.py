"""The five RPCs as data: their classes, and functions to split requests and merge responses.

A request has a tree of topics and partitions, and a coordinator may own only some of them.  A request is
therefore converted to a flat mapping from share-partition to its parts, and back.  If a request names a
share-partition several times, it has several parts.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from protocol.messages import APIS
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_records import SharePartitionKey

# The parts of a request by share-partition: instances of the PartitionData classes.
Parts = Mapping[SharePartitionKey, list[Any]]


class Rpc(NamedTuple):
    """The classes of one RPC; their fields have the same names in all five RPCs."""

    name: str
    api_key: int
    request: Any
    topic: Any
    response: Any
    topic_result: Any
    partition_result: Any
    # True if the RPC refuses a share-partition without state with INVALID_REQUEST.
    needs_state: bool = False


def _make_rpc(module: Any, *, needs_state: bool = False) -> Rpc:
    """Return the classes in a module: for ReadShareGroupState, those of its topics begin with ReadState."""
    name = APIS[module.API_KEY].name
    topic = name.replace("ShareGroup", "")
    classes = (f"{name}Request", f"{topic}Data", f"{name}Response", f"{topic}Result", "PartitionResult")
    return Rpc._make((name, module.API_KEY, *[getattr(module, each) for each in classes], needs_state))


INITIALIZE = _make_rpc(initialize_api)
READ = _make_rpc(read_api, needs_state=True)
WRITE = _make_rpc(write_api, needs_state=True)
DELETE = _make_rpc(delete_api)
SUMMARY = _make_rpc(summary_api)

RPC_BY_API_KEY = {rpc.api_key: rpc for rpc in (INITIALIZE, READ, WRITE, DELETE, SUMMARY)}
RPC_BY_REQUEST: dict[type, Rpc] = {rpc.request: rpc for rpc in RPC_BY_API_KEY.values()}


def parts_by_key(request: Any) -> dict[SharePartitionKey, list[Any]]:
    """Return the parts of a request by share-partition, in the order of their first occurrence."""
    parts: dict[SharePartitionKey, list[Any]] = {}
    for topic in request.topics:
        for part in topic.partitions:
            key = SharePartitionKey(request.group_id, topic.topic_id, part.partition)
            parts.setdefault(key, []).append(part)
    return parts


def make_request(rpc: Rpc, group_id: str, parts: Parts) -> Any:
    """Create a request from parts, with one entry for each topic."""
    topics: dict[bytes, list[Any]] = {}
    for key, named in parts.items():
        topics.setdefault(key.topic_id, []).extend(named)
    return rpc.request(group_id, [rpc.topic(topic_id, named) for topic_id, named in topics.items()])


def results_by_key(group_id: str, response: Any) -> dict[SharePartitionKey, Any]:
    """Return the results of a response by share-partition; for duplicates, return the first result."""
    results: dict[SharePartitionKey, Any] = {}
    for topic in response.results:
        for result in topic.partitions:
            results.setdefault(SharePartitionKey(group_id, topic.topic_id, result.partition), result)
    return results


def make_response(rpc: Rpc, results: Iterable[tuple[SharePartitionKey, Any]]) -> Any:
    """Create a response from results, with one entry for each topic."""
    topics: dict[bytes, list[Any]] = {}
    for key, result in results:
        topics.setdefault(key.topic_id, []).append(result)
    return rpc.response([rpc.topic_result(topic_id, named) for topic_id, named in topics.items()])
