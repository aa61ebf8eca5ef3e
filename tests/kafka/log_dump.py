"""Kafka's `kafka-dump-log.sh --share-group-state-decoder`, run as it is."""

from pathlib import Path

from tests.kafka.jars import fetch_jars

# Maven has no tools of 4.4.0, and for this one those of 4.3.1 need the libraries of 4.3.1. The segments of
# all releases are alike.
_RELEASE = "4.3.1"


def dump_share_group_state(segment: Path) -> str:
    """Return what the tool prints of a segment of the state topic.

    `segment` must be called as Kafka calls it, after its first offset in 20 digits, and end in `.log`.
    """
    options = ["--share-group-state-decoder", "--print-data-log", "--files", str(segment)]
    done = fetch_jars(_RELEASE).run("org.apache.kafka.tools.DumpLogSegments", *options)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout
