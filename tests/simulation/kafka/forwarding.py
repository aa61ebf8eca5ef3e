"""Record the operations that the real forwarder sends more than once."""

from typing import Any

from coordinator.metrics import Metrics
from coordinator.serve.forwarding import Forwarder
from coordinator.serve.runtime import Runtime
from tests.simulation.clients import RPCS
from tests.simulation.history import OWNER_SILENT, History

_KINDS = {rpc.api.API_KEY: kind for kind, rpc in RPCS.items()}


class RecordedForwarder(Forwarder):
    """A forwarder that records repeated operations: an earlier attempt may take effect, too."""

    def __init__(self, runtime: Runtime, *, instance: str, metrics: Metrics, history: History) -> None:
        super().__init__(runtime, instance=instance, metrics=metrics)
        self._history = history

    def hold(self, call: Any, operation: Any, why: Any) -> None:
        """Hold an operation. If its owner did not respond, it may be executed twice."""
        super().hold(call, operation, why)
        if operation.call is not None and why.message == OWNER_SILENT:
            kind = _KINDS[call.api_key]
            self._history.repeat(self._loop.time(), kind, operation.key, operation.unit)
