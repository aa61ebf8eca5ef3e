"""Decide whether to forward: by the setting, or by whether the cluster has Kafka's share-group state topic.

If `__share_group_state` exists, brokers do not look up the coordinator. Brokers then send share-state
requests to the leaders of the partitions of `__share_group_state`. The proxy in front of such a
broker (relay or HAProxy) passes these requests to its coordinator, which may not own the shard. The
coordinator that gets the requests must then forward them to the owner. Source: PersisterStateManager of
Kafka.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from coordinator.errors import LogError
from coordinator.serve.forwarding.forwarder import Forwarder

_logger = logging.getLogger(__name__)

KAFKA_STATE_TOPIC = "__share_group_state"

CHECK_INTERVAL_S = 60.0
# The interval between checks until the first check succeeds.
FIRST_CHECKS_INTERVAL_S = 2.0


class ForwardingMode:
    """Switches a forwarder on and off, and closes it on `stop`. `start` and `stop` are called once each.

    `topic_exists` returns whether the topic exists, or None if this client is not authorized to describe it.
    `topic_exists` raises LogError while no broker answers. With "auto", requests are forwarded until the
    topic is known not to exist. Forwarding is correct in both cases; if forwarding is not needed, it costs
    one extra hop.
    """

    def __init__(
        self,
        forwarder: Forwarder,
        setting: Literal["auto", "always", "never"],
        topic_exists: Callable[[], Awaitable[bool | None]],
    ) -> None:
        self.forwarder = forwarder
        self._setting = setting
        self._topic_exists = topic_exists
        self._last_result = False
        self._check_task: asyncio.Task[None] | None = None
        forwarder.active = setting != "never"

    def start(self) -> None:
        """Start the periodic check if the setting is "auto"."""
        if self._setting == "auto":
            self._check_task = asyncio.create_task(self._check_topic_periodically(), name="forwarding mode")

    async def stop(self) -> None:
        if self._check_task is not None:
            self._check_task.cancel()
            await asyncio.gather(self._check_task, return_exceptions=True)
        await self.forwarder.close()

    async def _check_topic_periodically(self) -> None:
        while True:
            try:
                self._apply_topic_check(await self._topic_exists())
            except LogError as error:
                # Keep the last result.
                _logger.debug("Cannot check whether %s exists: %s", KAFKA_STATE_TOPIC, error)
            except Exception:
                _logger.exception(
                    "Internal error while checking whether %s exists; checking again later.",
                    KAFKA_STATE_TOPIC,
                )
            await asyncio.sleep(CHECK_INTERVAL_S if self._last_result else FIRST_CHECKS_INTERVAL_S)

    def _apply_topic_check(self, exists: bool | None) -> None:
        active = exists is not False
        if self._last_result and active == self.forwarder.active:
            return
        self._last_result = True
        self.forwarder.active = active
        if exists is None:
            _logger.warning(
                "Not authorized to describe topic %s; forwarding requests as if it existed. "
                "Set forwarding=always or forwarding=never.",
                KAFKA_STATE_TOPIC,
            )
        elif exists:
            _logger.info(
                "Topic %s exists, so brokers send requests to its leaders; forwarding is on.",
                KAFKA_STATE_TOPIC,
            )
        else:
            _logger.info(
                "Topic %s does not exist, so brokers look up the coordinator; forwarding is off.",
                KAFKA_STATE_TOPIC,
            )
