"""Hypothesis strategies for state logs, and the expected states from the shard core."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from coordinator.log.claims import FencingFilter, encode_claim, is_claim, owner_epoch_headers
from coordinator.recovery.parse import parse
from coordinator.recovery.records import Records
from coordinator.recovery.scan import scan_range
from coordinator.recovery.state_tasks import STATES_OUTPUT, StateObserver, select_states
from coordinator.shard import Shard, ShareState, SnapshotPolicy
from protocol.errors import DecodeError
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.record_batch import decode_batches, encode_batch
from protocol.state_batches import StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey, StateRecord, decode_record, encode_record, topic_id_text

STATE_PARTITION = 7
TOPIC_IDS = (bytes(range(16)), bytes(range(16, 32)))
KEYS = [
    SharePartitionKey("g", TOPIC_IDS[0], 0),
    SharePartitionKey("grüppe-😀", TOPIC_IDS[1], 3),
    SharePartitionKey("a:longer:group", TOPIC_IDS[0], 2**31 - 1),
]


@dataclass(frozen=True)
class LogEntry:
    """One record of a log; `owner_epoch` is None for a record without the header of the owner epoch."""

    key: bytes | None
    value: bytes | None
    owner_epoch: int | None
    timestamp_ms: int


offsets = st.integers(0, 30)
state_batches = st.lists(
    st.builds(StateBatch, offsets, offsets, st.sampled_from([0, 2, 4, -1]), st.integers(0, 3)),
    max_size=4,
).map(pack)
start_offsets = st.sampled_from([-1, -1, 0, 3, 7, 12, 20, 25])
leader_epochs = st.integers(-1, 4)
complete_counts = st.sampled_from([-1, 0, 5])
snapshots = st.builds(
    ShareSnapshotValue,
    snapshot_epoch=st.integers(-1, 4),
    state_epoch=st.integers(0, 3),
    leader_epoch=leader_epochs,
    start_offset=start_offsets,
    create_timestamp=st.integers(0, 9),
    write_timestamp=st.integers(0, 9),
    state_batches=state_batches,
    delivery_complete_count=complete_counts,
    leader_epoch_max=st.sampled_from([-1, -1, 2, 6]),
)
updates = st.builds(
    ShareUpdateValue,
    snapshot_epoch=st.integers(0, 4),
    leader_epoch=leader_epochs,
    start_offset=start_offsets,
    state_batches=state_batches,
    delivery_complete_count=complete_counts,
)
keys = st.sampled_from(KEYS)


@st.composite
def malformed_records(draw: st.DrawFn) -> tuple[bytes, bytes | None]:
    """Draw a malformed record: truncated, with excess bytes, of another version, or with tagged fields."""
    key, value = encode_record(StateRecord(draw(keys), draw(snapshots | updates)))
    assert value is not None
    return draw(
        st.sampled_from(
            [
                (key, value[: draw(st.integers(0, len(value)))]),
                (key, value + b"\0"),
                (key, b"\0\1" + value[2:]),
                (key, value[:-1] + b"\1\5\2ab"),
                (key, value[:18] + b"\0" + value[19:]),
                (b"\0\1" + key[2:], None),
            ]
        )
    )


@st.composite
def tagged_batches(draw: st.DrawFn) -> tuple[bytes, bytes]:
    """Draw an update with an unknown tagged field in one of its state batches."""
    key, _ = encode_record(StateRecord(draw(keys), draw(updates)))
    one = pack([StateBatch(5, 9, 0, draw(st.integers(1, 3)))])[:-1] + b"\1\7\1x"
    return b"\0\1" + key[2:], b"\0\0" + bytes(16) + b"\2" + one + b"\0"


strange_keys = st.sampled_from([None, b"", b"\0", b"\0\7any", b"\0\0\0\1\xff" + bytes(20), b"\0\0short"])
contents = st.one_of(
    st.builds(lambda key, value: encode_record(StateRecord(key, value)), keys, updates),
    st.builds(lambda key, value: encode_record(StateRecord(key, value)), keys, updates),
    st.builds(lambda key, value: encode_record(StateRecord(key, value)), keys, snapshots),
    st.builds(lambda key: encode_record(StateRecord(key, None)), keys),
    malformed_records(),
    tagged_batches(),
    st.tuples(strange_keys, st.just(b"\0\0")),
)
claims = st.just(encode_claim(STATE_PARTITION, "somebody"))


def log_entries(owner_epochs_of_records: st.SearchStrategy[int | None]) -> st.SearchStrategy[list[LogEntry]]:
    """Return a strategy for logs of records and claims with these owner epochs."""
    record = st.one_of(contents, contents, contents, contents, claims)
    entry = st.builds(
        lambda content, owner_epoch, timestamp_ms: LogEntry(*content, owner_epoch, timestamp_ms),
        record,
        owner_epochs_of_records,
        st.integers(1, 9),
    )
    return st.lists(entry, max_size=12) | st.lists(entry, min_size=12, max_size=40)


kafkas_logs = log_entries(st.none())
our_logs = log_entries(st.sampled_from([None, 1, 1, 1, 2, 2, 3]))


def encode_log(log: Sequence[LogEntry], base_offset: int = 0) -> list[bytes]:
    """Encode a log as record batches with one record each."""
    written = []
    for offset, entry in enumerate(log, base_offset):
        headers = () if entry.owner_epoch is None else owner_epoch_headers(entry.owner_epoch)
        record = (entry.key if entry.key is not None else b"", entry.value)
        written.append(encode_batch(offset, entry.timestamp_ms, [record], headers=headers))
    return written


def fold_with_shard_core(
    batches: Sequence[bytes], state_partition: int = STATE_PARTITION, before: int = 2**63
) -> dict[SharePartitionKey, ShareState]:
    """Return the states of a shard that has loaded a log up to a log offset, record by record.

    Records that a coordinator refuses to load are ignored.
    """
    shard = Shard(state_partition, SnapshotPolicy())
    fencing_filter = FencingFilter()
    for batch in decode_batches(b"".join(batches)):
        for log_record in batch.records:
            if log_record.offset >= before or not fencing_filter.accepts(log_record) or is_claim(log_record):
                continue
            try:
                record = decode_record(log_record.key, log_record.value)
            except DecodeError:
                # The share-partition of a record with an undecodable key is unknown.
                continue
            if record is not None:
                shard.replay(record, log_record.offset, log_record.timestamp_ms)
    return dict(shard.items())


def parse_batches(batches: Sequence[bytes]) -> Records:
    """Parse valid batches."""
    found = parse(STATE_PARTITION, b"".join(batches))
    assert found.found is None
    assert found.used_bytes == sum(map(len, batches))
    return found.records


def fold_to_state_rows(chunks: Sequence[Sequence[bytes]]) -> list[dict[str, Any]]:
    """Fold a log in chunks of record batches, and return the states as rows."""
    return fold_records_to_state_rows(map(parse_batches, chunks))


def fold_records_to_state_rows(chunks: Iterable[Records]) -> list[dict[str, Any]]:
    """Fold chunks of records, and return the states as rows."""
    outputs = scan_range(partial(StateObserver, (select_states,)), chunks)
    return sort_by_key(
        [row for each in outputs if each.name == STATES_OUTPUT for row in each.rows.to_pylist()]
    )


def sort_by_key(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Sort rows of states."""
    return sorted(rows, key=lambda row: (row["group_id"], row["topic_id"], row["partition"]))


# Columns of `STATES` that are fields of the shard core's states with the same name.
CORE_COLUMNS = (
    "start_offset",
    "delivery_complete_count",
    "state_epoch",
    "leader_epoch",
    "leader_epoch_max",
    "snapshot_epoch",
    "create_timestamp",
    "write_timestamp",
    "last_write_ms",
    "updates",
    "update_bytes",
    "unreadable",
)


def shard_core_rows(states: dict[SharePartitionKey, ShareState]) -> list[dict[str, Any]]:
    """Return states of the shard core as rows with the columns that the shard core has."""
    return sort_by_key(
        [
            {
                "group_id": key.group_id,
                "topic_id": topic_id_text(key.topic_id),
                "partition": key.partition,
                **{name: getattr(state, name) for name in CORE_COLUMNS},
                "state_batches": [batch._asdict() for batch in unpack(state.batches)],
            }
            for key, state in states.items()
        ]
    )


def comparable_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return rows of states with only the columns that the shard core has."""
    names = ("group_id", "topic_id", "partition", *CORE_COLUMNS, "state_batches")
    return [{name: row[name] for name in names} for row in rows]
