"""Share-partition states in the simplest form: offset to (delivery count, delivery state)."""

from typing import Any

from coordinator.client import rpcs
from protocol.messages import delete_share_group_state as delete_api
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import read_share_group_state_summary as summary_api
from protocol.messages import write_share_group_state as write_api
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey

_INVALID_REQUEST, _FENCED_LEADER_EPOCH, _FENCED_STATE_EPOCH = 42, 74, 124


class _OffsetState:
    def __init__(self, state_epoch: int, start_offset: int) -> None:
        self.state_epoch = state_epoch
        self.leader_epoch = 0
        self.start_offset = start_offset
        self.complete_count = -1 if start_offset == -1 else 0
        self.offsets: dict[int, tuple[int, int]] = {}

    def batches(self) -> bytes:
        runs: list[StateBatch] = []
        for offset, (count, delivery_state) in sorted(self.offsets.items()):
            last = runs[-1] if runs else None
            if last and last.last_offset + 1 == offset and last[2:] == (delivery_state, count):
                runs[-1] = last._replace(last_offset=offset)
            else:
                runs.append(StateBatch(offset, offset, delivery_state, count))
        return pack(runs)


class OffsetModel:
    """Executes the five RPCs on states in memory."""

    def __init__(self) -> None:
        self._states: dict[SharePartitionKey, _OffsetState] = {}

    def respond(self, api_key: int, request: Any) -> Any:
        answer = {
            83: self._apply_initialize,
            84: self._apply_read,
            85: self._apply_write,
            86: self._apply_delete,
            87: self._apply_summary,
        }
        results = [
            (key, [answer[api_key](key, part) for part in parts][-1])
            for key, parts in rpcs.parts_by_key(request).items()
        ]
        return rpcs.make_response(rpcs.RPC_BY_REQUEST[type(request)], results)

    def _apply_initialize(self, key: SharePartitionKey, part: Any) -> Any:
        state = self._states.get(key)
        if state and state.state_epoch > part.state_epoch:
            return initialize_api.PartitionResult(part.partition, _FENCED_STATE_EPOCH, "old state epoch")
        self._states[key] = _OffsetState(part.state_epoch, part.start_offset)
        return initialize_api.PartitionResult(part.partition)

    def _apply_read(self, key: SharePartitionKey, part: Any) -> Any:
        state = self._states.get(key)
        if state is None:
            return read_api.PartitionResult(part.partition, _INVALID_REQUEST, "no state")
        if state.leader_epoch > part.leader_epoch:
            return read_api.PartitionResult(part.partition, _FENCED_LEADER_EPOCH, "old leader")
        state.leader_epoch = part.leader_epoch
        return read_api.PartitionResult(
            part.partition, 0, None, state.state_epoch, state.start_offset, state.batches()
        )

    def _apply_write(self, key: SharePartitionKey, part: Any) -> Any:
        state = self._states.get(key)
        if state is None:
            return write_api.PartitionResult(part.partition, _INVALID_REQUEST, "no state")
        if state.leader_epoch > part.leader_epoch:
            return write_api.PartitionResult(part.partition, _FENCED_LEADER_EPOCH, "old leader")
        if state.state_epoch > part.state_epoch:
            return write_api.PartitionResult(part.partition, _FENCED_STATE_EPOCH, "old state epoch")
        if part.start_offset >= state.start_offset:
            state.complete_count = part.delivery_complete_count
        state.start_offset = max(state.start_offset, part.start_offset)
        for batch in unpack(part.state_batches):
            for offset in range(batch.first_offset, batch.last_offset + 1):
                was = state.offsets.get(offset, (-1, -1))
                state.offsets[offset] = max(was, (batch.delivery_count, batch.delivery_state))
        state.offsets = {o: what for o, what in state.offsets.items() if o >= state.start_offset}
        return write_api.PartitionResult(part.partition)

    def _apply_delete(self, key: SharePartitionKey, part: Any) -> Any:
        self._states.pop(key, None)
        return delete_api.PartitionResult(part.partition)

    def _apply_summary(self, key: SharePartitionKey, part: Any) -> Any:
        state = self._states.get(key)
        if state is None:
            return summary_api.PartitionResult(part.partition, start_offset=-1)
        return summary_api.PartitionResult(
            part.partition,
            state_epoch=state.state_epoch,
            leader_epoch=state.leader_epoch,
            start_offset=state.start_offset,
            delivery_complete_count=state.complete_count,
        )
