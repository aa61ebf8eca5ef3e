"""ShareSnapshot (record type 0): key and value."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import Int32, Int64, StateBatches, Tag, Uuid
from protocol.message_codec import record_codec

RECORD_TYPE = 0
VALUE_VERSION = 0


class ShareSnapshotKey(Struct, gc=False):
    group_id: str
    topic_id: Uuid
    partition: Int32


class ShareSnapshotValue(Struct, gc=False):
    # Increases by 1 with each snapshot of the key.
    snapshot_epoch: Int32
    state_epoch: Int32
    leader_epoch: Int32
    # -1 if it is not known yet.
    start_offset: Int64
    # The Unix time in ms of the last snapshot for a request; cold snapshots copy it.
    create_timestamp: Int64
    # The Unix time in ms at which this snapshot was created.
    write_timestamp: Int64
    state_batches: StateBatches
    # Offsets at or above the start offset whose delivery is complete; -1 if unknown (KIP-1226).
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1
    # The greatest leader epoch of the share-partition if it is above the leader epoch; otherwise -1.
    leader_epoch_max: Annotated[Int32, Tag(1000)] = -1


decode_key, encode_key = record_codec(ShareSnapshotKey, VALUE_VERSION, is_flexible=False)
decode_value, encode_value = record_codec(ShareSnapshotValue, VALUE_VERSION, is_flexible=True)
