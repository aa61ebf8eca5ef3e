"""Define the options of all `recovery` commands, and the command `recovery rebuild`."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import (
    Output,
    OutputOption,
    format_error,
    print_json,
    print_line,
    print_table,
)

if TYPE_CHECKING:
    from coordinator.config import HostPort
    from coordinator.recovery.continuous import JobMetrics
    from coordinator.recovery.engines import Engine
    from coordinator.recovery.live_coordinator import LiveCoordinator
    from coordinator.recovery.sources import LogCut, Source

# The exit code if records are damaged or were pruned; the other records were used.
EXIT_DAMAGED = 1
DAMAGE_SHOWN_MAX = 10
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

ResultT = TypeVar("ResultT")

recovery_app = typer.Typer(
    help="Rebuild, audit and compare a state log: a topic, its segments, a journal or an archive.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


def make_option(flag: str, metavar: str, text: str, **more: Any) -> Any:
    """Return a command-line option; `metavar` stands for its value in the help."""
    return typer.Option(flag, metavar=metavar, help=text, **more)


From = Annotated[
    str,
    make_option(
        "--from",
        "SOURCE",
        "kafka:TOPIC (with --bootstrap-servers), segments:DIR, journal:DIR or archive:DIR.",
        show_default=False,
    ),
]
AsOfOffset = Annotated[
    str | None,
    make_option("--as-of-offset", "P:O,...", "Read state partition P up to log offset O (exclusive)."),
]
AsOfTime = Annotated[
    str | None,
    make_option("--as-of-time", "TIME", "Read up to the first record later than an ISO 8601 time."),
]
EngineName = Annotated[str, make_option("--engine", "ENGINE", "local (processes), spark or auto.")]
Master = Annotated[str, make_option("--master", "URL", "The Spark master. Default: local[*].")]
Processes = Annotated[
    int | None,
    make_option("--processes", "N", "Processes of the local engine. Default: number of cores.", min=1),
]
StatePartitions = Annotated[
    int | None, make_option("--state-partitions", "N", "Their number. Default: as in the log.", min=1)
]
Every = Annotated[str, make_option("--every", "TIME", "Repeat the job: 30s, 5m, 1h.")]
MetricsListen = Annotated[
    str, make_option("--metrics-listen", "HOST:PORT", "With --every: metrics for Prometheus.")
]
Limit = Annotated[
    int, make_option("--limit", "N", "Share-partitions that are listed; all are counted.", min=1)
]

KAFKA_FLAGS = """
\b
To read a topic: the flags of serve about its cluster, among them
  --bootstrap-servers HOST:PORT,...   --security-protocol   --sasl-mechanism   --ssl-ca-location
"""


@recovery_app.command(context_settings=flags.ANY_SETTING, epilog=KAFKA_FLAGS)
def rebuild(
    ctx: typer.Context,
    source: From,
    as_of_offset: AsOfOffset = None,
    as_of_time: AsOfTime = None,
    to: Annotated[
        str | None,
        make_option("--to", "DIR", "A new directory or URI for the states (parquet) and a manifest."),
    ] = None,
    engine: EngineName = "auto",
    master: Master = "",
    processes: Processes = None,
    limit: Limit = 1_000,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Rebuild the state of every share-partition from a log, as a coordinator does when it loads.

    Without --to, only the first few rebuilt states are printed. Nothing is written to the source.
    """
    opened = open_source(source, ctx.args, config, settings)
    cut = parse_cut(as_of_offset, as_of_time)
    from coordinator.recovery.rebuild import rebuild as rebuild_states
    from coordinator.recovery.state_tasks import first_states_task

    with closing(open_engine(engine, master, processes)) as worker:
        run = rebuild_states(worker, opened, cut=cut, to=to, select=first_states_task(limit))
    for note in run.manifest["notes"]:
        print_warning(note)
    if output is Output.JSON:
        found: dict[str, Any] = {"manifest": run.manifest}
        if to is None:
            found["states"] = run.states.slice(0, limit).to_pylist()
        print_json(found)
    else:
        if to is None:
            print_states(run.states.slice(0, limit))
            if run.manifest["states"] > limit:
                print_line(f"... and {run.manifest['states'] - limit} more (--limit, --to)")
        print_totals(run.manifest)
        print_damage(run.manifest)
    if run.manifest["damages"]:
        raise typer.Exit(EXIT_DAMAGED)


def print_states(states: Any) -> None:
    """Print states under Kafka's column names."""
    columns = {
        "GROUP": "group_id",
        "TOPIC": "topic_id",
        "PARTITION": "partition",
        "STATE-EPOCH": "state_epoch",
        "LEADER-EPOCH": "leader_epoch",
        "START-OFFSET": "start_offset",
        "COMPLETE-COUNT": "delivery_complete_count",
        "BATCHES": "state_batches",
    }
    rows = []
    for state in states.select(list(columns.values())).to_pylist():
        state["state_batches"] = len(state["state_batches"])
        rows.append(["-" if value == -1 else value for value in state.values()])
    print_table(list(columns), rows)


def print_totals(manifest: dict[str, Any]) -> None:
    """Print the totals of a rebuild on one line, and warnings."""
    totals = manifest["totals"]
    print_line(
        f"{manifest['states']} share-partitions, {manifest['state_batches']} state batches, from "
        f"{totals['records']} records of {len(manifest['partitions'])} state partitions"
    )
    for name, what in (
        ("unreadable_states", "share-partitions have records that cannot be decoded"),
        ("undecodable_records", "records cannot be assigned to a share-partition"),
        (
            "unread_bytes",
            "bytes after the last valid batch were ignored: a write that is interrupted or in progress",
        ),
    ):
        if count := manifest.get(name, totals.get(name)):
            print_warning(f"{count} {what}")


def print_lost_offsets(damages: Sequence[Mapping[str, Any]]) -> None:
    """Print the first damages."""
    for each in damages[:DAMAGE_SHOWN_MAX]:
        print_warning(
            f"log offsets {each['first']} to {each['last']} of state partition {each['state_partition']} are "
            f"lost: {each['what']}"
        )


def print_damage(manifest: dict[str, Any]) -> None:
    """Print the damage and the affected share-partitions."""
    print_lost_offsets(manifest["damages"])
    if manifest["damages"]:
        affected = manifest["affected"]
        names = [*affected[:DAMAGE_SHOWN_MAX], *(["..."] if len(affected) > DAMAGE_SHOWN_MAX else [])]
        named = f": {', '.join(names)}" if names else ""
        print_warning(f"of {manifest['states']} share-partitions, {len(affected)} may lack updates{named}")


def print_warning(text: str) -> None:
    print_line(f"share-coordinator: {text}", err=True)


def open_source(text: str, extra: list[str], config: Path | None, settings: list[str] | None) -> "Source":
    """Return the source of a command; the security of Kafka connections comes from the settings.

    Raises ConfigError if a setting is invalid or a flag is unknown.
    """
    require_packages("pyarrow", "numpy")
    from coordinator.recovery.sources import open_source
    from coordinator.recovery.sources.topic_access import make_topic_options

    loaded = flags.load_settings(extra, config, settings)
    return open_source(text, **make_topic_options(loaded.config))


def open_engine(name: str, master: str, processes: int | None) -> "Engine":
    """Return the engine (local processes or Spark) that the flags select. Raises ConfigError and LogError."""
    from coordinator.recovery.engines import open_engine

    return open_engine(name, master=master, processes=processes)


def parse_live_coordinator(text: str, security: Any) -> "LiveCoordinator":
    """Return the coordinator that --live names directly or through a broker. Raises ConfigError."""
    from coordinator.client.addresses import parse_addresses
    from coordinator.errors import ConfigError
    from coordinator.recovery.live_coordinator import LiveCoordinator

    try:
        parse_addresses(text)
    except ValueError:
        raise ConfigError("--live", text, "HOST:PORT, an IPv6 address in brackets") from None
    return LiveCoordinator(text, security)


def parse_cut(as_of_offset: str | None, as_of_time: str | None) -> "LogCut":
    """Return the offsets or the time at which reading the log ends. Raises ConfigError."""
    from coordinator.errors import ConfigError
    from coordinator.recovery.manifest import parse_time
    from coordinator.recovery.sources import LogCut
    from coordinator.recovery.sources.base import parse_offsets

    if as_of_offset is not None and as_of_time is not None:
        raise ConfigError("--as-of-time", as_of_time, "given without --as-of-offset")
    offsets = None if as_of_offset is None else parse_offsets(as_of_offset)
    return LogCut(offsets, None if as_of_time is None else parse_time(as_of_time))


def require_packages(*packages: str) -> None:
    """Raise a CoordinatorError if a package of the pip extra `recovery` is not installed."""
    from importlib.util import find_spec

    from coordinator.errors import CoordinatorError

    missing = [package for package in packages if find_spec(package) is None]
    if missing:
        raise CoordinatorError(
            f"the recovery jobs require {' and '.join(missing)}: pip install share-coordinator[recovery]"
        )


def run_periodically(
    job: str,
    run: Callable[[], ResultT],
    metrics: "JobMetrics[ResultT]",
    period: "RepeatOptions",
    describe: Callable[[ResultT], str],
) -> None:
    """Repeat a job until a stop signal; print a line for each run. Raises ListenError."""
    from coordinator.errors import CoordinatorError
    from coordinator.recovery import continuous

    def print_result(found: "ResultT | Exception") -> None:
        if isinstance(found, CoordinatorError | OSError):
            text = f"the {job} failed: {format_error(found)}"
        elif isinstance(found, Exception):
            text = f"the {job} failed: {type(found).__name__}: {format_error(found)}"
        else:
            text = describe(found)
        print_line(f"{utc_now_text()} {text}")

    continuous.run_periodically(run, metrics, **period._asdict(), report=print_result)


def utc_now_text() -> str:
    """Return the current time in UTC in a format that can name a directory."""
    from coordinator.process.clock import SystemClock

    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def parse_duration_s(text: str, flag: str = "--every") -> float:
    """Parse 30s, 5m, 1h or 2d; return seconds. Raises ConfigError."""
    from coordinator.errors import ConfigError

    amount, unit = text[:-1], text[-1:]
    if unit not in _UNITS_S or not amount.isascii() or not amount.isdigit() or not int(amount):
        raise ConfigError(flag, text, "a duration such as 30s, 5m or 1h")
    return float(int(amount) * _UNITS_S[unit])


class RepeatOptions(NamedTuple):
    """How often a job is repeated, and the address of its metrics."""

    every_s: float
    listen: "HostPort | None"


def parse_repeat_options(every: str, listen: str) -> RepeatOptions | None:
    """Parse --every and --metrics-listen; None if both are empty. Raises ConfigError."""
    from coordinator.config import HostPort
    from coordinator.errors import ConfigError

    if not every and not listen:
        return None
    every_s = parse_duration_s(every)
    try:
        return RepeatOptions(every_s, HostPort.parse(listen) if listen else None)
    except ValueError:
        raise ConfigError("--metrics-listen", listen, "HOST:PORT") from None
