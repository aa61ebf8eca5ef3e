"""Record the operations that the real forwarder sends more than once."""

from typing import Any

from coordinator.metrics import Metrics
from coordinator.serve.forwarding import Forwarder
from coordinator.serve.runtime import Runtime
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from tests.simulation.history import DELETE, INITIALIZE, OWNER_SILENT, READ, SUMMARY, WRITE, History

_KINDS = {
    initialize_api.API_KEY: INITIALIZE,
    read_api.API_KEY: READ,
    write_api.API_KEY: WRITE,
    delete_api.API_KEY: DELETE,
    summary_api.API_KEY: SUMMARY,
}


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
