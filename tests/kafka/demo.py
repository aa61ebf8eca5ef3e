"""Run `make demo`: a real Kafka whose share-group state is stored in this coordinator, step by step.

The demo starts an unmodified broker, HAProxy with the configuration in deploy/, the coordinator, a producer
and a share consumer. Between two steps, the demo kills the coordinator. All output comes from these
processes.
"""

import json
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from coordinator.cli.output import format_table
from tests.kafka.client import Delivery, ShareConsumer
from tests.kafka.coordinator import CoordinatorProcess
from tests.kafka.jars import RELEASES, fetch_jars
from tests.kafka.processes import PROGRAM, wait_until
from tests.kafka.rig import StandaloneRig, standalone_rig
from tests.kafka.toolchain import install_hint, missing_programs

GROUP = "workers"
TOPIC = "orders"
RECORDS = 12

# The consumer releases and rejects the records with these indexes at their first delivery, and accepts the
# others.
RELEASED = (4, 5)
REJECTED = (7,)


class StepPrinter:
    """The output of the demo, in numbered steps."""

    def __init__(self) -> None:
        self._step = 0

    def print_step(self, title: str) -> None:
        self._step += 1
        print(f"\n{self._step}. {title}", flush=True)

    def print_text(self, text: str) -> None:
        """Print a sentence."""
        print(f"   {text}", flush=True)

    def _print_table(self, head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        for line in format_table(head, rows):
            self.print_text(line)

    def print_deliveries(self, deliveries: Sequence[Delivery], types: Sequence[str]) -> None:
        """Print the records that a consumer received, and their acknowledgement types."""
        rows = [
            (delivery.offset, delivery.value, f"no. {delivery.delivery_count}", outcome.lower())
            for delivery, outcome in zip(deliveries, types, strict=True)
        ]
        self._print_table(("offset", "value", "delivery", "outcome"), rows)

    def print_state(self, state: dict[str, Any]) -> None:
        """Print the state of a share-partition as the coordinator's API returns it."""
        self.print_text(
            f"start offset {state['start_offset']}, state epoch {state['state_epoch']}, "
            f"leader epoch {state['leader_epoch']}"
        )
        rows = [
            (f"{each['first_offset']}-{each['last_offset']}", each["delivery_state"], each["delivery_count"])
            for each in state["in_flight"]["items"]
        ]
        if rows:
            self._print_table(("offsets", "delivery state", "delivery count"), rows)
        else:
            self.print_text("no record is in flight: all records below the start offset are acknowledged")


def poll_records(consumer: ShareConsumer, count: int) -> list[Delivery]:
    """Poll until records arrive, and return the records of that poll."""
    got = wait_until(lambda: consumer.poll(), seconds=120, what="records are delivered")
    assert len(got) >= min(count, 1)
    return got


def run_steps(rig: StandaloneRig, show: StepPrinter) -> None:
    topic_id = rig.client.create_topic(TOPIC)
    path = f"/api/v1/share-partition?{urlencode({'group': GROUP, 'topic': topic_id, 'partition': 0})}"

    def fetch_state() -> dict[str, Any]:
        status, body = rig.coordinator.get(path)
        assert status == 200, body
        answer: dict[str, Any] = json.loads(body)
        return answer

    show.print_step(f"A producer writes {RECORDS} records to topic {TOPIC}")
    rig.client.set_group_config(GROUP, {"share.auto.offset.reset": "earliest"})
    offsets = rig.client.produce(TOPIC, RECORDS)
    show.print_text(f"offsets {offsets[0]} to {offsets[-1]}, topic id {topic_id}")

    show.print_step(f"A share consumer of group {GROUP} receives and acknowledges the records")
    consumer = rig.client.share_consumer(GROUP, TOPIC)
    got = poll_records(consumer, RECORDS)
    types = [
        "RELEASE" if place in RELEASED else "REJECT" if place in REJECTED else "ACCEPT"
        for place in range(len(got))
    ]
    committed = consumer.acknowledge(types)
    show.print_deliveries(got, types)
    show.print_text(
        "commitSync: " + ", ".join("success" if f is None else str(f) for f in committed.values())
    )

    show.print_step("The coordinator stores the state of the share-partition (GET " + path + ")")
    show.print_state(fetch_state())

    show.print_step("The coordinator is killed (kill -9) and restarted")
    rig.coordinator.kill()
    rig.coordinator.start()
    show.print_text("the state after the coordinator replayed its journal:")
    show.print_state(fetch_state())

    show.print_step("Only the released records are delivered again")
    got = poll_records(consumer, len(RELEASED))
    types = ["ACCEPT"] * len(got)
    consumer.acknowledge(types)
    show.print_deliveries(got, types)
    assert [delivery.offset for delivery in got] == [offsets[place] for place in RELEASED]
    show.print_state(fetch_state())

    show.print_step("Kafka's own tool shows the start offset: kafka-share-groups.sh --describe --offsets")
    consumer.close()
    for line in rig.share_groups.run("--describe", "--offsets", "--group", GROUP).strip().splitlines():
        show.print_text(line)
    internal = sorted(name for name in rig.client.topics() if name.startswith("__"))
    show.print_text(
        f"internal topics of the cluster: {', '.join(internal) or 'none'}; no __share_group_state"
    )
    assert "__share_group_state" not in internal


def run_without_kafka(missing: list[str], folder: Path) -> int:
    """Start only a coordinator, and send requests to it as a share-partition leader does."""
    print(f"Without a real Kafka: {install_hint(missing)}\n", flush=True)
    with CoordinatorProcess(folder, log="memory") as coordinator:
        address = f"127.0.0.1:{coordinator.port}"
        return subprocess.run([PROGRAM, "demo", "--bootstrap", address], check=False).returncode


def run_with_kafka(folder: Path) -> int:
    """Start all processes and run the demo."""
    show = StepPrinter()
    release = RELEASES[-1]
    show.print_step(f"An unmodified Apache Kafka {release}, HAProxy and the share coordinator start")
    show.print_text("(the first time, Maven fetches Kafka's jars)")
    with standalone_rig(fetch_jars(release), folder, with_cluster=True) as rig:
        show.print_text(f"broker {rig.broker.bootstrap}, coordinator 127.0.0.1:{rig.coordinator.port},")
        show.print_text(f"its HTTP API http://127.0.0.1:{rig.coordinator.http_port}")
        run_steps(rig, show)
    return 0


def main() -> int:
    """Run the demo with Kafka, or without Kafka if a required program is missing."""
    missing = missing_programs()
    with tempfile.TemporaryDirectory(prefix="share-coordinator-demo-") as folder:
        return run_without_kafka(missing, Path(folder)) if missing else run_with_kafka(Path(folder))


if __name__ == "__main__":
    raise SystemExit(main())
