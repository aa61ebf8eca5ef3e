"""The delivery history of a share-partition, read from its log in a separate process."""

from coordinator.operate.history.process import HistoryProcess, HistoryUnavailable, OpenLog
from coordinator.operate.history.request import HistoryRequest

__all__ = ["HistoryProcess", "HistoryRequest", "HistoryUnavailable", "OpenLog"]
