"""Remove abandoned state periodically, and forecast what will be removed.

Expiry runs in the background: it has connections of its own to Kafka, processes the state in slices, and
removes a bounded amount in each round. If a round fails, the next round tries again.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from coordinator.config import Config
from coordinator.errors import CoordinatorError
from coordinator.metrics import Metrics
from coordinator.operate.expiry.cluster_thread import ClusterThread
from coordinator.operate.expiry.observations import ObservationGaps
from coordinator.operate.expiry.observer import (
    SLICE,
    ClusterObservation,
    GroupAdmin,
    GroupObserver,
    ObservationStore,
)
from coordinator.operate.expiry.remover import RemovalResult, StateRemover, topic_label
from coordinator.operate.expiry.rules import AbandonedState, ExpiryRules, ExpiryStatus, find_abandoned_state
from coordinator.process.clock import Clock
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.serve.runtime import Runtime

_logger = logging.getLogger(__name__)

# Maximum age of an observation for a forecast.
_OBSERVATION_AGE_MAX_S = 2.0
# If two observations are more than this number of intervals apart, the history of a group has a gap.
_GAP_INTERVALS = 3
# How many times in a retention time a coordinator also observes the groups of other owners. When a shard
# moves, its state expires late, but by at most 1/20 of the retention time.
_FULL_OBSERVATIONS_PER_RETENTION = 20
_MINUTE_MS = 60_000
# `ExpiryRules.leftover_ms` as a number of intervals.
_LEFTOVER_INTERVALS = 6


class ExpiryForecast(NamedTuple):
    """The abandoned state and when it expires. If `enabled` is False, no state is removed."""

    enabled: bool
    rules: ExpiryRules
    read_ms: int
    last_round_ms: int | None
    items: list[AbandonedState]
    # Groups whose coordinators did not answer.
    unanswered_groups: int
    warning: str | None


class ExpiryRoundResult(NamedTuple):
    """The result of a round of expiry."""

    removals: list[RemovalResult]
    # Number of due items that were not processed in this round.
    left_over: int


class Expiry:
    """Finds abandoned state and, if a retention time is set, removes it.

    All methods must be called on one event loop.
    """

    def __init__(
        self,
        runtime: Runtime,
        groups: GroupAdmin,
        rules: ExpiryRules,
        *,
        interval_s: float,
        clock: Clock,
        metrics: Metrics,
        has_fresh_lease: Callable[[], bool] = lambda: True,
        file: ObservationStore | None = None,
        has_other_owners: bool = False,
    ) -> None:
        """`has_fresh_lease` returns whether Kafka has recently confirmed this process as an owner."""
        interval_ms = round(interval_s * 1000)
        self._full_interval_ms = max(
            interval_ms, (rules.retention_minutes or 0) * _MINUTE_MS // _FULL_OBSERVATIONS_PER_RETENTION
        )
        gaps = ObservationGaps(_GAP_INTERVALS * interval_ms, _GAP_INTERVALS * self._full_interval_ms)
        self.rules = rules._replace(gap_ms=gaps.unchanged_ms, leftover_ms=_LEFTOVER_INTERVALS * interval_ms)
        self._groups = groups
        self._interval_s = interval_s
        self._clock = clock
        self._metrics = metrics
        self._has_fresh_lease = has_fresh_lease
        self._observer = GroupObserver(
            runtime,
            groups,
            clock=clock,
            gaps=gaps,
            file=file if self.enabled else None,
            has_other_owners=has_other_owners,
        )
        self._remover = StateRemover(runtime, groups, has_fresh_lease)
        self._round_lock = asyncio.Lock()
        self._observation: ClusterObservation | None = None
        self._observed_s = float("-inf")
        self._fully_observed_ms: int | None = None
        self._last_round_ms: int | None = None
        self._task: asyncio.Task[None] | None = None
        self._last_failure: str | None = None

    @property
    def enabled(self) -> bool:
        """True if a retention time is set, so that expired state is removed periodically."""
        return self.rules.retention_minutes is not None

    def start(self) -> None:
        """Start the periodic rounds if expiry is enabled."""
        if self.enabled:
            self._task = asyncio.create_task(self._run_rounds(), name="expiry")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        await self._groups.close()

    async def forecast(self, retention_minutes: int | None = None) -> ExpiryForecast:
        """Return the abandoned state, for the given retention time or the configured one.

        Raises CoordinatorError if Kafka does not answer.
        """
        observation = self._observation
        if observation is None or not self._round_lock.locked():
            # While a round is in progress, use the observation at its start instead of waiting.
            async with self._round_lock:
                observation = self._observation
                age_s = asyncio.get_running_loop().time() - self._observed_s
                if observation is None or age_s > _OBSERVATION_AGE_MAX_S:
                    observation = await self._observe_cluster()
        rules = self.rules
        if retention_minutes is not None:
            rules = rules._replace(retention_minutes=retention_minutes)
        items = await _find_abandoned_in_slices(observation, rules)
        items.sort(key=_sort_key)
        unanswered = {part.group_id for part in observation.held}.intersection(observation.seen.unanswered)
        return ExpiryForecast(
            self.enabled,
            rules,
            observation.now_ms,
            self._last_round_ms,
            items,
            len(unanswered),
            observation.warning,
        )

    async def run_round(self, *, all_groups: bool = True) -> ExpiryRoundResult:
        """Observe the cluster and remove due state. Raises CoordinatorError if Kafka does not answer.

        Without `all_groups`, observe the groups of other owners only if their last observation is too old.
        """
        async with self._round_lock:
            observation = await self._observe_cluster(all_groups=all_groups or self._is_full_round_due())
            due = [
                each
                for each in await _find_abandoned_in_slices(observation, self.rules)
                if each.status is ExpiryStatus.DUE
            ]
            removals: list[RemovalResult] = []
            # The next forecast must not show the removed state.
            self._observed_s = float("-inf")
            if self.enabled and self._has_fresh_lease():
                async for removal in self._remover.remove_due_state(due):
                    removals.append(removal)
                    self._log_removal(removal)
            self._last_round_ms = observation.now_ms
            self._metrics.expiry_round_ms = observation.now_ms
            return ExpiryRoundResult(removals, len(due) - len(removals))

    async def _run_rounds(self) -> None:
        while True:
            try:
                await self.run_round(all_groups=False)
            except CoordinatorError as error:
                self._metrics.count("expiry_failures")
                if self._last_failure is None:
                    _logger.warning("Expiry failed, retrying in %g s: %s", self._interval_s, error)
                self._last_failure = str(error)
            except Exception:
                self._metrics.count("expiry_failures")
                _logger.exception("Internal error in expiry. Retrying in %g s.", self._interval_s)
            else:
                if self._last_failure is not None:
                    _logger.info("Expiry works again.")
                self._last_failure = None
            await asyncio.sleep(self._interval_s)

    def _is_full_round_due(self) -> bool:
        """Return whether this round must also observe the groups of other owners."""
        before_next_ms = round(500 * self._interval_s)
        return (
            self._fully_observed_ms is None
            or self._clock.now_ms() - self._fully_observed_ms >= self._full_interval_ms - before_next_ms
        )

    async def _observe_cluster(self, *, all_groups: bool = True) -> ClusterObservation:
        observation = await self._observer.observe(all_groups=all_groups)
        if all_groups:
            self._fully_observed_ms = observation.now_ms
        self._observation, self._observed_s = observation, asyncio.get_running_loop().time()
        return observation

    def _log_removal(self, removal: RemovalResult) -> None:
        each = removal.abandoned
        if removal.failed:
            self._metrics.count("expiry_failures")
        if removal.share_partitions:
            self._metrics.count("expired_share_partitions", each.reason, removal.share_partitions)
        if removal.refused:
            _logger.info("%s does not expire now: %s", topic_label(each), removal.refused)
            return
        _logger.info(
            "%s expired (%s): %d share-partitions", topic_label(each), each.reason, removal.share_partitions
        )


async def _find_abandoned_in_slices(
    observation: ClusterObservation, rules: ExpiryRules
) -> list[AbandonedState]:
    """Return the abandoned state; yield to the event loop after each slice."""
    found: list[AbandonedState] = []
    for at in range(0, len(observation.held), SLICE):
        found += find_abandoned_state(
            observation.held[at : at + SLICE], observation.seen, rules, observation.now_ms
        )
        await asyncio.sleep(0)
    return found


def _sort_key(each: AbandonedState) -> tuple[int, str, str, bytes]:
    """Sort by expiration time, then by group and topic."""
    return each.expires_ms or each.since_ms, each.group_id, each.topic or "", each.topic_id


_FILE = "expiry.json"
_CLIENT_ID = "share-coordinator-expiry"


def make_expiry(
    config: Config, runtime: Runtime, metrics: Metrics, *, clock: Clock, has_fresh_lease: Callable[[], bool]
) -> Expiry | None:
    """Return the expiry, or None if there is no Kafka cluster to query.

    `clock` must not jump. For `has_fresh_lease`, see `Expiry`.
    """
    if not config.bootstrap_servers:
        if config.can_state_expire:
            _logger.warning(
                "State does not expire: without bootstrap.servers it is not known which groups are empty."
            )
        return None
    try:
        from coordinator.cluster.kafka.share_groups import ShareGroups
        from coordinator.security.client_security import make_client_security
    except ModuleNotFoundError:
        if config.can_state_expire:
            _logger.warning("State does not expire because aiokafka is not installed: %s", KAFKA_EXTRA)
        return None
    servers, security = config.bootstrap_servers, make_client_security(config)
    return Expiry(
        runtime,
        ClusterThread(lambda: ShareGroups(servers, security=security, client_id=_CLIENT_ID)),
        ExpiryRules(
            config.state_retention_minutes if config.can_state_expire else None,
            config.state_missing_grace_minutes,
        ),
        interval_s=config.state_retention_check_interval_ms / 1000,
        clock=clock,
        metrics=metrics,
        has_fresh_lease=has_fresh_lease,
        file=ObservationStore(config.data_dir / _FILE),
        has_other_owners=config.ownership == "group",
    )
