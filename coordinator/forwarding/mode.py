"""Whether to forward: as the setting says, or as brokers find their coordinators in this cluster.

Brokers of a cluster that has Kafka's own topic of share-group state ask nobody who the coordinator is: they
go to the leaders of that topic, and so to whatever coordinator is in front of these.  What was not forwarded
there would never reach its owner.  Source: PersisterStateManager of Kafka.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Literal

from coordinator.errors import LogError
from coordinator.forwarding.forwarder import Forwarder

_logger = logging.getLogger(__name__)

KAFKA_STATE_TOPIC = "__share_group_state"

CHECK_INTERVAL_S = 60.0
# As long as nobody has said anything.
FIRST_CHECKS_INTERVAL_S = 2.0


class ForwardingMode:
    """Switches a forwarder on and off, and closes it in the end. `start` once, `stop` once.

    `topic_exists` tells whether the cluster has a topic, and whether we are allowed to know: None if not. It
    raises LogError while no broker answers.  Until it is known that the topic does not exist, auto forwards:
    that is right in both cases, and costs a hop where it is not needed.
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
        """Begin to look, if that decides anything."""
        if self._setting == "auto":
            self._check_task = asyncio.create_task(self._check_periodically(), name="forwarding mode")

    async def stop(self) -> None:
        """Look no more, and close the forwarder."""
        if self._check_task is not None:
            self._check_task.cancel()
            await asyncio.gather(self._check_task, return_exceptions=True)
        await self.forwarder.close()

    async def _check_periodically(self) -> None:
        while True:
            try:
                self._apply_result(await self._topic_exists())
            except LogError as error:
                # Whatever was so before is so still.
                _logger.debug("whether %s exists cannot be asked: %s", KAFKA_STATE_TOPIC, error)
            except Exception:
                _logger.exception("looking whether %s exists failed; it goes on", KAFKA_STATE_TOPIC)
            await asyncio.sleep(CHECK_INTERVAL_S if self._last_result else FIRST_CHECKS_INTERVAL_S)

    def _apply_result(self, exists: bool | None) -> None:
        active = exists is not False
        if self._last_result and active == self.forwarder.active:
            return
        self._last_result = True
        self.forwarder.active = active
        if exists is None:
            _logger.warning(
                "we are not allowed to know whether %s exists: requests are forwarded as if it did; "
                "set forwarding to always or never",
                KAFKA_STATE_TOPIC,
            )
        elif exists:
            _logger.info(
                "%s exists: brokers go by its leaders, and requests are forwarded", KAFKA_STATE_TOPIC
            )
        else:
            _logger.info(
                "%s does not exist: brokers ask who the coordinator is, and nothing is forwarded",
                KAFKA_STATE_TOPIC,
            )
