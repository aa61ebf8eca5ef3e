"""Run Kafka's unmodified `kafka-dump-log.sh --share-group-state-decoder`."""

from pathlib import Path

from tests.kafka.jars import fetch_jars

# Maven Central has no tools of 4.4.0, and the tools of 4.3.1 need the libraries of 4.3.1 for this command.
# All releases have the same segment format.
_RELEASE = "4.3.1"


def dump_share_group_state(segment: Path) -> str:
    """Return the output of the tool for a segment of the state topic.

    `segment` must have a name of Kafka's form: the base offset in 20 digits, and `.log`.
    """
    options = ["--share-group-state-decoder", "--print-data-log", "--files", str(segment)]
    done = fetch_jars(_RELEASE).run("org.apache.kafka.tools.DumpLogSegments", *options)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    return done.stdout
