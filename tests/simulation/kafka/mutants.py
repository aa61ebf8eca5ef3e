"""Mutants of coordinators with their state in a Kafka topic: each function plants one defect.

See `tests.simulation.mutants`.
"""

from typing import Any

from coordinator.cluster.kafka import metadata_cache
from coordinator.cluster.kafka.metadata import MergedTopicMetadata
from coordinator.cluster.kafka.metadata_cache import MetadataCache
from coordinator.cluster.kafka.share_groups import ShareGroups
from coordinator.errors import LogOutcomeUnknown
from coordinator.log.claims import AcceptedClaim, FencingFilter, claim_owner_name, is_claim, read_owner_epoch
from coordinator.log.kafka import KafkaLog, kafka_log, ownership
from coordinator.log.kafka.appends import Appender
from coordinator.log.kafka.ownership import Ownership
from coordinator.log.kafka.ownerships import Ownerships
from coordinator.operate.expiry.remover import StateRemover
from coordinator.serve.forwarding import Forwarder
from coordinator.serve.runtime import Runtime
from coordinator.serve.runtime.loader import ShardLoader
from coordinator.serve.runtime.operations import refuse_all
from coordinator.serve.runtime.shard_runner import ShardRunner
from coordinator.serve.server import CoordinatorDirectory
from protocol.errors import ErrorCode
from tests.simulation.mutants import Patch, list_mutants

# Claims.


def accepts_a_claim_with_an_equal_epoch(patch: Patch) -> None:
    """Accept a claim whose owner epoch equals the current one.

    Two coordinators that claim with the same owner epoch then both own the shard.
    """
    accepts = FencingFilter.accepts

    def accept_equal_epoch(self: Any, record: Any) -> bool:
        owner_epoch = read_owner_epoch(record)
        if is_claim(record) and owner_epoch is not None and owner_epoch == self.owner_epoch:
            self.claim = AcceptedClaim(owner_epoch, record.offset, claim_owner_name(record))
        return accepts(self, record)

    patch.setattr(FencingFilter, "accepts", accept_equal_epoch)


def accepts_records_of_any_owner(patch: Patch) -> None:
    """Load the records of fenced owners too."""
    accepts = FencingFilter.accepts
    patch.setattr(
        FencingFilter, "accepts", lambda self, record: accepts(self, record) or not is_claim(record)
    )


def serves_without_verifying_its_claim(patch: Patch) -> None:
    """Serve a shard without checking that no later claim follows its own claim in the log."""

    def verify(self: Any, ownership: Any, fencing_filter: Any, end: int, *args: Any) -> None:
        ownership.next_offset = max(ownership.next_offset, end)
        ownership.verified = True
        if fencing_filter.claim is not None:
            ownership.record_accepted_claim(fencing_filter.claim)

    patch.setattr(Ownerships, "verify", verify)


def claims_with_the_last_owner_epoch(patch: Patch) -> None:
    """Claim with the owner epoch of the previous owner instead of the next one."""
    read_tail_owner, acquire_ownership = kafka_log.read_tail_owner, KafkaLog.acquire_ownership

    async def read_lower_epoch(*args: Any) -> Any:
        last = await read_tail_owner(*args)
        return last._replace(owner_epoch=last.owner_epoch - 1)

    async def own_without_known_epoch(self: Any, state_partition: int, *args: Any) -> int:
        self._ownerships._owner_epochs[state_partition] = -1
        return await acquire_ownership(self, state_partition, *args)

    patch.setattr(kafka_log, "read_tail_owner", read_lower_epoch)
    patch.setattr(KafkaLog, "acquire_ownership", own_without_known_epoch)


# Appends.


def accepts_append_at_unexpected_offset(patch: Patch) -> None:
    """Accept an append whose base offset is not the expected end offset.

    An unexpected offset shows that another owner has appended records, or that the log was truncated.
    """
    handle_result = Appender._handle_produce_result

    def _handle_produce_result(self: Any, append: Any, produced: Any) -> Any:
        if produced.error_code == ErrorCode.NONE and not append.at_any_offset:
            append.ownership.record_appended(produced.base_offset, append.count, append.sent_s, append.leader)
            self._call_done(append, None)
            return None
        return handle_result(self, append, produced)

    def mark_durable_anywhere(self: Any, records: Any, base_offset: int) -> None:
        mark_durable(self, records, base_offset)
        self._next_log_offset = self._log.end_offset(self.state_partition)

    mark_durable = ShardRunner._mark_append_durable
    patch.setattr(Appender, "_handle_produce_result", _handle_produce_result)
    patch.setattr(ShardRunner, "_mark_append_durable", mark_durable_anywhere)


def treats_missing_response_as_failure(patch: Patch) -> None:
    """If an append gets no response, load the shard again without a new claim.

    A correct coordinator claims again, which fences a batch that arrives later.
    """
    recover = ShardRunner._recover

    def _recover(self: Any, error: Any, waiting: Any) -> None:
        if isinstance(error, LogOutcomeUnknown) and "in time" in str(error):
            refuse_all(waiting, ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error))
            ownership = self._log._ownerships.get(self.state_partition)
            ownership.lost = None
            self._load_without_a_claim()
        else:
            recover(self, error, waiting)

    def load_without_a_claim(self: Any) -> None:
        loader = self._reload.__self__
        self.begin_loading()
        self._log._ownerships.get(self.state_partition).verified = False
        loader._queue_shard_for_pass(self)

    patch.setattr(ShardRunner, "_load_without_a_claim", load_without_a_claim, raising=False)
    patch.setattr(ShardRunner, "_recover", _recover)


def treats_missing_response_as_success(patch: Patch) -> None:
    """Acknowledge writes whose append got no response."""
    fail_append = Appender._fail_append

    def _fail_append(self: Any, append: Any, error: Any) -> None:
        if isinstance(error, LogOutcomeUnknown) and not append.at_any_offset:
            self._record_result(append, append.ownership.next_offset)
        else:
            fail_append(self, append, error)

    patch.setattr(Appender, "_fail_append", _fail_append)


def treats_uncommitted_append_as_success(patch: Patch) -> None:
    """Acknowledge appends that the leader has, but not all in-sync replicas.

    The error codes of these appends are REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND.
    """
    handle_result = Appender._handle_produce_result
    uncommitted = (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)

    def _handle_produce_result(self: Any, append: Any, produced: Any) -> Any:
        if produced.error_code in uncommitted and not append.at_any_offset:
            produced = produced._replace(error_code=0, base_offset=append.ownership.next_offset)
        return handle_result(self, append, produced)

    patch.setattr(Appender, "_handle_produce_result", _handle_produce_result)


def ignores_truncation_of_the_log(patch: Patch) -> None:
    """Continue when an append has a lower base offset than expected.

    The offset shows that an unclean leader election has lost acknowledged records.
    """
    fail_unexpected_offset = Appender._fail_unexpected_offset

    async def _fail_unexpected_offset(self: Any, append: Any, expected: int, found: int) -> None:
        if found < expected:
            self._call_done(append, None)
        else:
            await fail_unexpected_offset(self, append, expected, found)

    patch.setattr(Appender, "_fail_unexpected_offset", _fail_unexpected_offset)


# Reads.


def answers_from_memory_after_the_lease(patch: Patch) -> None:
    """Answer reads from memory without a time limit after the last append."""
    patch.setattr(KafkaLog, "lease_left_s", lambda self, state_partition: 1.0)


def does_not_wait_for_earlier_leases(patch: Patch) -> None:
    """Serve a claimed shard before the leases of earlier owners have ended."""
    record_accepted_claim = Ownership.record_accepted_claim

    def record_claim_without_leases(self: Any, claim: AcceptedClaim, before: Any = None) -> None:
        record_accepted_claim(self, claim._replace(previous_lease_ms=0, older_lease_ms=0))

    patch.setattr(Ownership, "record_accepted_claim", record_claim_without_leases)


def waits_for_leases_without_clock_drift_margin(patch: Patch) -> None:
    """Wait exactly for the lease of the previous owner, whose clock may run slower."""
    patch.setattr(ownership, "CLOCK_DRIFT_MAX", 0.0)


# Metadata.


def uses_metadata_of_the_last_broker_that_responded(patch: Patch) -> None:
    """Use the metadata of one broker instead of the highest leader epochs of several brokers.

    A broker that is disconnected from the controller reports old leaders.
    """

    def update(self: Any, node: int, topic: Any) -> bool:
        self._reported_ids, self._reported_id = {node: topic.topic_id}, topic.topic_id
        self._partitions = {topic.topic_id: {reported.partition: reported for reported in topic.partitions}}
        return True

    patch.setattr(metadata_cache, "BROKERS_ASKED", 1)
    patch.setattr(MetadataCache, "_nodes_to_ask", MetadataCache.nodes_best_first)
    patch.setattr(MergedTopicMetadata, "update", update)


# Routing.


def forwards_to_the_owner_of_another_shard(patch: Patch) -> None:
    """Forward operations to the owner of the next shard."""
    find_owner = Forwarder._find_owner

    def find_next_owner(self: Any, shard: int) -> Any:
        return find_owner(self, (shard + 1) % self._runtime.state_partitions)

    patch.setattr(Forwarder, "_find_owner", find_next_owner)


def forwards_according_to_the_first_assignment(patch: Patch) -> None:
    """Forward operations according to the first assignment for ever."""
    set_assignment = Forwarder.set_assignment

    def set_first_assignment(self: Any, assignment: Any) -> None:
        if self._assignment is None:
            set_assignment(self, assignment)

    patch.setattr(Forwarder, "set_assignment", set_first_assignment)


def names_wrong_owner_in_find_coordinator(patch: Patch) -> None:
    """Return the owner of another shard in FindCoordinator responses."""
    set_routes = CoordinatorDirectory._set_routes

    def set_rotated_routes(self: Any, routes: Any) -> None:
        first, *others = routes
        set_routes(self, [*others, first])

    patch.setattr(CoordinatorDirectory, "_set_routes", set_rotated_routes)


# Expiry.


def treats_loading_group_coordinator_as_deleted_group(patch: Patch) -> None:
    """Expire the state of groups whose group coordinator is loading.

    Any error of DescribeGroups counts as GROUP_ID_NOT_FOUND.
    """
    describe_groups = ShareGroups.describe_groups

    async def describe_errors_as_deleted(self: Any, groups: Any) -> Any:
        described = await describe_groups(self, groups)
        return {
            group: each._replace(error_code=each.error_code and ErrorCode.GROUP_ID_NOT_FOUND)
            for group, each in described.items()
        }

    patch.setattr(ShareGroups, "describe_groups", describe_errors_as_deleted)


def never_expires_the_state_of_an_empty_group(patch: Patch) -> None:
    """Keep the state of empty groups for ever."""
    patch.setattr(StateRemover, "_remove_state_through_kafka", _return_no_removals)


async def _return_no_removals(self: Any, group: str, due: Any) -> list[Any]:
    return []


# Claims and resignations.


def loads_the_log_before_it_claims(patch: Patch) -> None:
    """Load the log only up to the end offset before the claim.

    Records that the previous owner appended between this read and the claim are missing.
    """
    read = KafkaLog.read

    async def read_up_to_early_end(self: Any, state_partitions: Any) -> Any:
        early_ends = self.__dict__.setdefault("_early_end_offsets", {})
        async for chunk in read(self, state_partitions):
            early = [
                logged
                for logged in chunk
                if _base_offset(logged.batch) < early_ends.get(logged.state_partition, 0)
            ]
            if early:
                yield early

    acquire_ownership = KafkaLog.acquire_ownership

    async def find_end_and_claim(self: Any, state_partition: int, *args: Any) -> int:
        early_ends = self.__dict__.setdefault("_early_end_offsets", {})
        early_ends[state_partition] = await self._end_finder.find(state_partition)
        return await acquire_ownership(self, state_partition, *args)

    patch.setattr(KafkaLog, "read", read_up_to_early_end)
    patch.setattr(KafkaLog, "acquire_ownership", find_end_and_claim)


def _base_offset(batch: bytes) -> int:
    return int.from_bytes(batch[:8])


def releases_shard_during_its_append(patch: Patch) -> None:
    """Release a resigned shard, and respond to its operations, before the append in flight ends."""

    async def respond_without_waiting(self: Any) -> None:
        waiting, self._awaiting_append = self._awaiting_append, []
        for operation in waiting:
            operation.answer_decided()

    patch.setattr(ShardRunner, "wait_for_append", respond_without_waiting)


def never_resigns_shards(patch: Patch) -> None:
    """Continue to serve shards that the assignment gives to another coordinator."""
    patch.setattr(Runtime, "resign", lambda self, state_partition: None)


def never_retries_a_failed_claim(patch: Patch) -> None:
    """Never claim a shard again after a failed claim."""

    async def _claim(self: Any, log: Any, runner: Any, release_wait_s: float) -> None:
        try:
            runner.owner_epoch = await log.acquire_ownership(runner.state_partition, release_wait_s)
        except Exception as error:
            runner.loading_failed(str(error))
        else:
            self._queue_shard_for_pass(runner)

    patch.setattr(ShardLoader, "_claim", _claim)


def prunes_the_record_with_the_owner_epoch(patch: Patch) -> None:
    """Prune all records below the redundant offset, even if no later record has the owner's epoch and lease.

    The next owner then finds neither the epoch nor the lease in the log.
    """

    def _prune(self: Any, ownership: Ownership) -> None:
        if ownership.prune_before is not None and self._may_prune(ownership.state_partition):
            before_offset, ownership.prune_before = ownership.prune_before, None
            self._pruner.prune(ownership.state_partition, before_offset)

    patch.setattr(KafkaLog, "_prune", _prune)


KAFKA_MUTANTS = list_mutants(globals())
