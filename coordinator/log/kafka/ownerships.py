"""The ownerships of one process: which partitions it owns, and whether appends and reads are allowed."""

from collections.abc import Callable

from coordinator.cluster.kafka.broker_results import ProducerId
from coordinator.cluster.kafka.metadata import NO_TOPIC_ID
from coordinator.errors import LogError, LogFenced, LogOutcomeUnknown, LogRefused, LogUnavailable
from coordinator.log.claims import FencingFilter
from coordinator.log.kafka.appends import fenced_error
from coordinator.log.kafka.ownership import OwnerInLastRecord, Ownership
from protocol.state_records import topic_id_text


class Ownerships:
    """The newest ownership of each state partition, and the previous one."""

    def __init__(self, partitions: int, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._owned: dict[int, Ownership] = {}
        self._previous: dict[int, Ownership] = {}
        # The highest known owner epoch of each state partition.
        self._owner_epochs = [0] * partitions

    def get(self, state_partition: int) -> Ownership | None:
        """Return the ownership of a state partition, which may be unverified or lost; None without one."""
        return self._owned.get(state_partition)

    def add(self, ownership: Ownership) -> None:
        self._owned[ownership.state_partition] = ownership

    def drop(self, state_partition: int) -> None:
        """Drop the ownership of a state partition in this process; nothing is written to the log."""
        ownership = self._owned.pop(state_partition, None)
        if ownership is not None:
            self._previous[state_partition] = ownership

    def next_owner_epoch(self, state_partition: int, last: OwnerInLastRecord, producer: ProducerId) -> int:
        """Return the owner epoch of the next claim, higher than any known one.

        Processes that claim concurrently read the same end of the log. Their owner epochs are in the order of
        their producer epochs. Therefore, the last claim that the brokers accept has the highest owner epoch.
        """
        known = self._owner_epochs[state_partition] + 1
        follows = last.owner_epoch + last.producer_epochs_until(producer)
        self._owner_epochs[state_partition] = max(known, follows)
        return self._owner_epochs[state_partition]

    def verify(
        self,
        ownership: Ownership,
        fencing_filter: FencingFilter,
        end: int,
        state_end: int,
        topic_id: bytes = NO_TOPIC_ID,
    ) -> None:
        """Check that a claim was accepted and is the last one. Raises LogUnavailable if a retry is needed.

        Raises LogRefused if the last claim belongs to a topic with another id than `topic_id`.
        """
        partition, claim = ownership.state_partition, fencing_filter.claim
        if ownership.verified or ownership.lost is not None:
            return
        if claim is not None and NO_TOPIC_ID != claim.topic_id != topic_id != NO_TOPIC_ID:
            raise LogRefused(
                f"{claim.owner} claimed state partition {partition} in a topic with the id "
                f"{topic_id_text(claim.topic_id)}, not {topic_id_text(topic_id)}: the topic was deleted and "
                f"created again. Restart this process to begin with the state in the new topic."
            )
        if claim is not None and claim.log_offset == ownership.claim_offset:
            # Records of fenced owners may follow the claim.
            ownership.next_offset = max(ownership.next_offset, end)
            ownership.state_end = state_end
            ownership.record_accepted_claim(claim, self._previous.get(partition))
        elif claim is not None and claim.log_offset > ownership.claim_offset:
            ownership.lost = fenced_error(partition, fencing_filter)
        else:
            logged_epoch = fencing_filter.owner_epoch or 0
            self._owner_epochs[partition] = max(self._owner_epochs[partition], logged_epoch)
            raise LogUnavailable(
                f"the claim of state partition {partition} was not accepted: the log has owner epoch "
                f"{logged_epoch}"
            )

    def append_error(self, state_partition: int) -> LogError | None:
        ownership = self._owned.get(state_partition)
        if ownership is None:
            return LogFenced(f"this process does not own state partition {state_partition}")
        if ownership.lost is not None:
            return ownership.lost
        if not ownership.verified:
            return LogOutcomeUnknown(f"state partition {state_partition} was not read since it was claimed")
        if self._monotonic() < ownership.serve_from_s:
            return LogUnavailable(
                f"an earlier owner of state partition {state_partition} may still answer reads"
            )
        return None

    def earlier_leases_left_s(self, state_partition: int) -> float:
        ownership = self._owned.get(state_partition)
        if ownership is None or not ownership.verified:
            return 0.0
        return max(0.0, ownership.serve_from_s - self._monotonic())

    def lease_left_s(self, state_partition: int) -> float:
        ownership = self._owned.get(state_partition)
        return 0.0 if ownership is None else ownership.lease_left_s(self._monotonic())

    def renewal_due(self, state_partition: int, *, read: bool) -> bool:
        ownership = self._owned.get(state_partition)
        return ownership is not None and ownership.renewal_due(self._monotonic(), read=read)
