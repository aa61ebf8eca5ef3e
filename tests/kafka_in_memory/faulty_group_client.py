"""A consumer-group client with faults and delays, for groups in memory and on real brokers."""

import asyncio
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import Any

from coordinator.cluster.kafka.broker_results import NoResponse
from coordinator.cluster.kafka.group_client import KafkaGroupClient
from coordinator.cluster.kafka.group_results import MetadataSnapshot
from tests.simulation.loop import PROCESS, Process


class FaultyGroupClient:
    """A `KafkaGroupClient` of a process with a name.

    While `cut` is set, its connections are closed, and all requests fail. `reply_s` delays each response.
    While `joins_pass` or `syncs_pass` is cleared, responses to JoinGroup or SyncGroup do not arrive.
    `blocked` has pairs of process name and node id of a broker in memory that cannot communicate.
    """

    def __init__(
        self, client: KafkaGroupClient, name: str = "member", blocked: set[tuple[str, int]] | None = None
    ) -> None:
        self.cut = False
        self.reply_s = 0.0
        self.joins_pass, self.syncs_pass = asyncio.Event(), asyncio.Event()
        self.joins_pass.set()
        self.syncs_pass.set()
        self._process = Process(name)
        self._client = client
        self._blocked = set() if blocked is None else blocked

    @property
    def unreachable_brokers(self) -> set[int]:
        """The brokers that this process cannot reach."""
        return {node for name, node in self._blocked if name == self._process.name}

    @unreachable_brokers.setter
    def unreachable_brokers(self, nodes: Collection[int]) -> None:
        name = self._process.name
        self._blocked -= {(name, node) for node in self.unreachable_brokers}
        self._blocked |= {(name, node) for node in nodes}

    def __getattr__(self, api: str) -> Any:
        return partial(self._request, api)

    async def _request(self, api: str, *args: Any) -> Any:
        await self._check_connected(sent=False)
        token = PROCESS.set(self._process)
        try:
            result = await getattr(self._client, api)(*args)
        finally:
            PROCESS.reset(token)
        if api in ("join", "sync"):
            await (self.joins_pass if api == "join" else self.syncs_pass).wait()
        await asyncio.sleep(self.reply_s)
        await self._check_connected(sent=True)
        return result

    async def _check_connected(self, *, sent: bool) -> None:
        if self.cut:
            await self._client.close()
            raise NoResponse("cut", sent=sent)

    async def leaders_by_partition(self) -> Mapping[int, int]:
        return {} if self.cut else await self._request("leaders_by_partition")

    async def probe_leaders(
        self, choose: Callable[[Mapping[int, int]], Collection[int]]
    ) -> MetadataSnapshot | None:
        """Return the partition leaders and the brokers that do not answer, or None if no broker answers."""
        return None if self.cut else await self._request("probe_leaders", choose)

    async def close(self) -> None:
        """Close all connections."""
        await self._client.close()
