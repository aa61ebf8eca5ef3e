"""Signals of share groups: lag, stuck and poison records, lost records, rates; and the resulting events."""

from coordinator.observe.signals.changes import RecordChange, compute_change
from coordinator.observe.signals.detectors import GroupSignals, Problem, SignalLimits
from coordinator.observe.signals.monitor import SignalMonitor
