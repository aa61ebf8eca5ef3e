"""Check the end of a share-partition's history: K1, K9, K11, and R8."""

import numpy as np

from coordinator.recovery.checks.adjacent_records import make_finding_adder
from coordinator.recovery.checks.catalogue import Severity
from coordinator.recovery.checks.findings import Finding, Findings
from coordinator.recovery.checks.generations import flag_long_update_sequences
from coordinator.recovery.checks.limits import Limits
from coordinator.recovery.checks.record_histories import RUN, TOMBSTONE, Histories
from coordinator.recovery.deduplication import identity_to_key
from protocol.routing import state_partition as routed_to

_C, _I = Severity.CRITICAL, Severity.INFO


def check_log_ends(histories: Histories, limits: Limits, *, log_start: int, found: Findings) -> None:
    """Check the shortened histories of a whole state partition, whose log starts at `log_start`."""
    flag = make_finding_adder(histories, found)
    reset, kind = histories.is_reset, histories["kind"]
    updates = histories["updates"]
    key = histories.key
    has_reset = np.zeros(len(histories.identities), np.bool_)
    has_reset[key[reset]] = True
    is_first = np.append(True, key[1:] != key[:-1])[: len(key)]
    head = is_first & (kind == RUN)
    flag(
        "K1",
        _C,
        head & ~has_reset[key],
        lambda row: f"{updates[row]} updates and no snapshot",
        "first_at",
    )
    flag("K1b", _I, head & has_reset[key], lambda row: f"{updates[row]} updates", "first_at")
    flag_long_update_sequences(histories, (kind == RUN) & (updates > limits.updates_max + 1), flag)
    if not log_start:
        never = is_first & (kind == TOMBSTONE)
        flag("K11", _I, never, lambda row: "the log has no record before it", "first_at")


def check_routing(histories: Histories, state_partitions: int, found: Findings) -> None:
    """Check that share-partitions are in the state partition that their hash selects (R8)."""
    first = np.flatnonzero(np.append(True, histories.key[1:] != histories.key[:-1])[: len(histories)])
    for row in first.tolist():
        identity = histories.identities[int(histories.key[row])]
        right = routed_to(identity_to_key(identity), state_partitions)
        if right != found.state_partition:
            found.add(
                Finding(
                    "R8",
                    _C,
                    found.state_partition,
                    identity,
                    int(histories["first_at"][row]),
                    int(histories["last_at"][row]),
                    evidence=f"its place is state partition {right} of {state_partitions}",
                    timestamp_ms=int(histories["first_ms"][row]),
                )
            )
