"""ShareUpdate (record type 1): key and value."""

from typing import Annotated

from msgspec import Struct

from protocol.fields import Int32, Int64, StateBatches, Tag, Uuid
from protocol.message_codec import record_codec

RECORD_TYPE = 1
VALUE_VERSION = 0


class ShareUpdateKey(Struct, gc=False):
    group_id: str
    topic_id: Uuid
    partition: Int32


class ShareUpdateValue(Struct, gc=False):
    # The snapshot epoch of the snapshot that this update follows.
    snapshot_epoch: Int32
    leader_epoch: Int32
    # -1 if the update does not change the start offset.
    start_offset: Int64
    state_batches: StateBatches
    # Offsets at or above the start offset whose delivery is complete; -1 if unknown (KIP-1226).
    delivery_complete_count: Annotated[Int32, Tag(0)] = -1


decode_key, encode_key = record_codec(ShareUpdateKey, VALUE_VERSION, is_flexible=False)
decode_value, encode_value = record_codec(ShareUpdateValue, VALUE_VERSION, is_flexible=True)
