"""Record the operations that the real forwarder sends more than once."""

from typing import Any

from coordinator.metrics import Metrics
from coordinator.serve.forwarding import Forwarder
from coordinator.serve.runtime import Runtime
from tests.simulation.history import NO_OWNER, NOT_OURS, History
from tests.simulation.parts import RPCS

_KINDS = {rpc.api_key: kind for kind, rpc in RPCS.items()}


class RecordedForwarder(Forwarder):
    """A forwarder that records repeated operations: an earlier attempt may take effect, too."""

    def __init__(self, runtime: Runtime, *, instance: str, metrics: Metrics, history: History) -> None:
        super().__init__(runtime, instance=instance, metrics=metrics)
        self._history = history

    def hold_operation(self, call: Any, operation: Any, why: Any) -> None:
        """Hold an operation. It may be executed twice if its owner did not respond, or ended during it."""
        super().hold_operation(call, operation, why)
        was_not_executed = why.message == NO_OWNER or why.message.endswith(NOT_OURS)
        if operation.call is not None and not was_not_executed:
            kind = _KINDS[call.api_key]
            self._history.record_repetition(self._loop.time(), kind, operation.key, operation.unit)
