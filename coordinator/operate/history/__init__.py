"""The delivery history of a share-partition, read from its log in a separate process."""

from coordinator.operate.history.process import HistoryProcess, HistoryUnavailable, OpenLog
