"""Run the commands of a transcript (see test_transcripts.py) on a shard, and format the results."""

from typing import Any

from coordinator.shard import SnapshotPolicy
from protocol.errors import ErrorCode
from protocol.messages import initialize_share_group_state as initialize_api
from protocol.messages import read_share_group_state as read_api
from protocol.messages import write_share_group_state as write_api
from protocol.messages.share_snapshot import ShareSnapshotValue
from protocol.messages.share_update import ShareUpdateValue
from protocol.state_batches import DELIVERY_STATES, StateBatch, pack, unpack
from protocol.state_records import SharePartitionKey, StateRecord, topic_id_text
from tests.builders import TOPIC_ID, DrivenShard, make_limits

NUMBERS = {name: number for number, name in DELIVERY_STATES.items()}

# The response fields in their order of output, if the response has them.
SHOWN = ("state_epoch", "leader_epoch", "start_offset", "delivery_complete_count")


class Session:
    """A shard, and the commands of a transcript."""

    def __init__(self) -> None:
        self.driven = DrivenShard()

    def run_command(self, command: str) -> str:
        """Run one command; return the response and the appended records, one per line."""
        verb, *words = command.split()
        key = self._parse_key(words.pop(0)) if words and "=" not in words[0] else None
        settings = dict(word.split("=", 1) for word in words)
        before = len(self.driven.log)
        result = getattr(self, f"_{verb}")(key, settings)
        lines = [result] if result else []
        lines.extend(f"record {format_record(record)}" for record, _ in self.driven.log[before:])
        return "\n".join(lines)

    @staticmethod
    def _parse_key(text: str) -> SharePartitionKey:
        group_id, topic, partition = text.rsplit(":", 2)
        assert topic == "T", "the only topic of transcripts is T"
        return SharePartitionKey(group_id, TOPIC_ID, int(partition))

    def _begin(self, key: None, settings: dict[str, str]) -> str:
        policy = SnapshotPolicy(
            int(settings.get("updates_max", 500)), int(settings.get("update_bytes_min", 16_384))
        )
        self.driven = DrivenShard(policy)
        return ""

    def _initialize(self, key: SharePartitionKey, settings: dict[str, str]) -> str:
        part = initialize_api.PartitionData(
            key.partition, int(settings["state_epoch"]), int(settings["start_offset"])
        )
        return format_response(self.driven.initialize(part, key=key))

    def _read(self, key: SharePartitionKey, settings: dict[str, str]) -> str:
        part = read_api.PartitionData(key.partition, int(settings["leader_epoch"]))
        return format_response(self.driven.read(part, key=key))

    def _write(self, key: SharePartitionKey, settings: dict[str, str]) -> str:
        part = write_api.PartitionData(
            key.partition,
            int(settings["state_epoch"]),
            int(settings["leader_epoch"]),
            int(settings["start_offset"]),
            int(settings.get("complete_count", 0)),
            pack(parse_batches(settings.get("batches", ""))),
        )
        return format_response(self.driven.write(part, key=key))

    def _delete(self, key: SharePartitionKey, settings: dict[str, str]) -> str:
        return format_response(self.driven.delete(key=key))

    def _summary(self, key: SharePartitionKey, settings: dict[str, str]) -> str:
        return format_response(self.driven.summary(key=key))

    def _wait(self, key: None, settings: dict[str, str]) -> str:
        self.driven.now_ms += int(settings["minutes"]) * 60_000
        return ""

    def _snapshot_cold(self, key: None, settings: dict[str, str]) -> str:
        for record in self.driven.shard.snapshot_cold(
            now_ms=self.driven.now_ms, interval_ms=300_000, limits=make_limits(100)
        ):
            self.driven.append(record)
        return f"redundant below log offset {self.driven.shard.redundant_offset}"

    def _prune_and_reload(self, key: None, settings: dict[str, str]) -> str:
        first = self.driven.shard.redundant_offset
        self.driven = self.driven.reload()
        return f"replayed log offsets {first} to {len(self.driven.log) - 1}"


def parse_batches(text: str) -> list[StateBatch]:
    """Parse state batches of the form FIRST-LAST:STATE:COUNT, separated by commas."""
    batches = []
    for word in filter(None, text.split(",")):
        offsets, state, count = word.split(":")
        first, last = offsets.split("-")
        batches.append(StateBatch(int(first), int(last), NUMBERS[state], int(count)))
    return batches


def format_batches(packed: bytes) -> str:
    """Format state batches in the form of `parse_batches`."""
    return ",".join(f"{b[0]}-{b[1]}:{DELIVERY_STATES.get(b[2], str(b[2]))}:{b[3]}" for b in unpack(packed))


def format_response(result: Any) -> str:
    """Format a response: the name of the error, or the fields."""
    if result.error_code:
        return ErrorCode(result.error_code).name
    words = ["NONE"]
    words.extend(f"{name}={getattr(result, name)}" for name in SHOWN if hasattr(result, name))
    if hasattr(result, "state_batches"):
        words.append(f"batches=[{format_batches(result.state_batches)}]")
    return " ".join(words)


def format_record(record: StateRecord) -> str:
    """Format a record without its timestamps."""
    key, value = record
    name = f"{key.group_id}:T:{key.partition}"
    assert topic_id_text(key.topic_id) == topic_id_text(TOPIC_ID)
    if value is None:
        return f"tombstone {name}"
    assert isinstance(value, ShareSnapshotValue | ShareUpdateValue)
    words = [type(value).__name__.removesuffix("Value"), name, f"snapshot_epoch={value.snapshot_epoch}"]
    words.extend(f"{field}={getattr(value, field)}" for field in SHOWN if hasattr(value, field))
    words.append(f"batches=[{format_batches(value.state_batches)}]")
    if isinstance(value, ShareSnapshotValue) and value.leader_epoch_max != -1:
        words.append(f"leader_epoch_max={value.leader_epoch_max}")
    return " ".join(words)
