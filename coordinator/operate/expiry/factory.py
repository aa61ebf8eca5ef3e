"""Make the expiry of abandoned state from the settings."""

import logging
from collections.abc import Callable

from coordinator.config import Config
from coordinator.metrics import Metrics
from coordinator.operate.expiry.cluster_thread import ClusterThread
from coordinator.operate.expiry.expiry import Expiry
from coordinator.operate.expiry.observation_store import ObservationStore
from coordinator.operate.expiry.rules import ExpiryRules
from coordinator.process.clock import Clock
from coordinator.process.optional_dependencies import KAFKA_EXTRA
from coordinator.serve.runtime import Runtime

_logger = logging.getLogger(__name__)

_FILE = "expiry.json"
_CLIENT_ID = "share-coordinator-expiry"


def make_expiry(
    config: Config, runtime: Runtime, metrics: Metrics, *, clock: Clock, may_act: Callable[[], bool]
) -> Expiry | None:
    """Return the expiry, or None if there is no Kafka cluster to query.

    `clock` must not jump. `may_act` returns whether this coordinator's lease is fresh.
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
        may_act=may_act,
        file=ObservationStore(config.data_dir / _FILE),
        watch_all=config.ownership == "group",
    )
