"""`recovery audit`: check whether a state log is complete and can be restored, once or periodically.

Exit codes: 0 no findings, 1 warnings, 2 critical findings, 3 the audit failed.  With --every, the exit code
is 0 after a stop signal, and metrics report the results.
"""

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from coordinator.cli import EXIT_USAGE
from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, format_error, print_json_text, print_line

if TYPE_CHECKING:
    from coordinator.config import Config, HostPort
    from coordinator.recovery.audit import AuditOptions, AuditResult
    from coordinator.recovery.checks.baseline import Baseline
    from coordinator.recovery.engines import Engine
    from coordinator.recovery.live_coordinator import LiveCoordinator
    from coordinator.recovery.sources import LogCut, Source

EXIT_COULD_NOT_AUDIT = 3

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}


To = Annotated[
    str | None,
    typer.Option(
        "--to",
        metavar="DIR",
        help="A new directory or URI for states, findings and a manifest; with --every, one per run.",
    ),
]
EarlierAudit = Annotated[
    str | None,
    typer.Option("--baseline", metavar="DIR", help="Compare with the --to of an earlier audit (X3)."),
]
Live = Annotated[
    str, typer.Option("--live", metavar="HOST:PORT", help="Compare with this live coordinator (X1).")
]
StatePartitions = Annotated[
    int | None,
    typer.Option(
        "--state-partitions",
        metavar="N",
        help="The expected number. Default: as in the log.",
        min=1,
    ),
]
Keep = Annotated[
    int,
    typer.Option(
        "--keep", metavar="N", help="With --every: runs to keep in --to, besides the baseline.", min=1
    ),
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive", metavar="DIR", help="An archive of the log; the report shows what it can restore."
    ),
]
Every = Annotated[str, typer.Option("--every", metavar="TIME", help="Audit periodically: 30s, 5m, 1h.")]
MetricsListen = Annotated[
    str, typer.Option("--metrics-listen", metavar="HOST:PORT", help="With --every: metrics for Prometheus.")
]


class _AuditCommand(TyperCommand):
    """A command that fails with exit code 3, because 1 and 2 mean warnings and critical findings."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        """Parse the command line."""
        try:
            return super().make_context(*args, **kwargs)
        except Exception as error:
            # Do not check the class, because different releases of typer import it from different packages.
            if getattr(error, "exit_code", None) == EXIT_USAGE:
                error.exit_code = EXIT_COULD_NOT_AUDIT  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except Exception as error:
            # Exceptions without an exit code are failures of the audit, for example of a Spark job.
            if not hasattr(error, "exit_code"):
                error.exit_code = EXIT_COULD_NOT_AUDIT  # type: ignore[attr-defined]
            raise


@recovery.recovery_app.command(
    cls=_AuditCommand, context_settings=flags.ANY_SETTING, epilog=recovery.KAFKA_FLAGS
)
def audit(
    ctx: typer.Context,
    source: recovery.From,
    as_of_offset: recovery.AsOfOffset = None,
    as_of_time: recovery.AsOfTime = None,
    to: To = None,
    baseline: EarlierAudit = None,
    live: Live = "",
    live_config: flags.CoordinatorConfig = None,
    state_partitions: StatePartitions = None,
    archive: Archive = None,
    every: Every = "",
    keep: Keep = 24,
    metrics_listen: MetricsListen = "",
    engine: recovery.EngineName = "auto",
    master: recovery.Master = "",
    processes: recovery.Processes = None,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Audit a log: check whether it is complete and can be restored.

    Nothing is written to the source. Exit codes: 0 no findings, 1 warnings, 2 critical findings, 3 the audit
    failed.
    """
    from coordinator.errors import CoordinatorError

    try:
        opened = recovery.open_source(source, ctx.args, config, settings)
        loaded = flags.load_settings(ctx.args, config, settings).config
        options = _make_options(
            loaded, recovery.parse_cut(as_of_offset, as_of_time), state_partitions, to, baseline, archive
        )
        asked = None
        if live:
            asked = recovery.parse_live_coordinator(live, flags.client_security(live_config, loaded))
        options = replace(options, external=_external_checks(loaded, opened, options, asked))
        worker = recovery.open_engine(engine, master, processes)
        try:
            if every or metrics_listen:
                every_s, listen = parse_duration_s(every), parse_listen(metrics_listen)
                _audit_periodically(worker, opened, options, every_s, listen, keep)
                return
            found = _audit_once(worker, opened, options)
        finally:
            worker.close()
        _print_report(found, output)
    except (CoordinatorError, OSError) as error:
        print_line(f"share-coordinator: {format_error(error)}", err=True)
        raise typer.Exit(EXIT_COULD_NOT_AUDIT) from None
    raise typer.Exit(found.exit_code)


def _make_options(
    config: "Config",
    cut: "LogCut",
    state_partitions: int | None,
    to: str | None,
    baseline: str | None,
    archive: str | None,
) -> "AuditOptions":
    """Check all parameters before reading anything. Raises ConfigError."""
    from coordinator.recovery.audit import AuditOptions
    from coordinator.recovery.checks.baseline import Baseline
    from coordinator.recovery.checks.limits import Limits
    from coordinator.recovery.sources.archive import ArchiveSource

    return AuditOptions(
        cut=cut,
        limits=Limits(
            updates_max=config.snapshot_updates_max,
            cold_snapshot_interval_ms=config.cold_snapshot_interval_ms,
        ),
        state_partitions=state_partitions,
        baseline=None if baseline is None else Baseline.read(baseline),
        to=to,
        copy=None if archive is None else ArchiveSource(archive).as_log_copy(),
    )


def _audit_once(worker: "Engine", source: "Source", options: "AuditOptions") -> "AuditResult":
    from coordinator.recovery.audit import audit

    return audit(worker, source, options, with_states=False)


def _print_report(found: "AuditResult", output: Output) -> None:
    from coordinator.recovery.report import as_json, as_text, make_content

    content = make_content(found)
    if output is Output.JSON:
        print_json_text(as_json(content).rstrip("\n"))
    else:
        typer.echo(as_text(content), nl=False)


def _audit_periodically(
    worker: "Engine",
    source: "Source",
    options: "AuditOptions",
    every_s: float,
    listen: "HostPort | None",
    keep: int,
) -> None:
    """Audit until stopped; print a line for each run. Raises ConfigError."""
    from coordinator.errors import ConfigError, CoordinatorError
    from coordinator.recovery.baselines import BaselineStore
    from coordinator.recovery.continuous import audit_periodically

    if options.to is None:
        raise ConfigError("--to", None, "a directory with --every, which keeps the baseline in it")
    store = BaselineStore(options.to, keep=keep)
    first = store.current(source.text, options.baseline)

    def run(before: "Baseline | None") -> "AuditResult":
        to = f"{options.to}/{_utc_now_text()}"
        found = _audit_once(worker, source, replace(options, baseline=before, to=to))
        store.remove_old_audits()
        return found

    def print_result(found: Any) -> None:
        if isinstance(found, CoordinatorError | OSError):
            said = f"the audit failed: {format_error(found)}"
        elif isinstance(found, Exception):
            said = f"the audit failed: {type(found).__name__}: {format_error(found)}"
        else:
            said = f"{found.verdict}, {found.manifest['totals']['records']} records"
        print_line(f"{_utc_now_text()} {said}")

    audit_periodically(run, every_s=every_s, listen=listen, told=print_result, baseline=first)


def _external_checks(
    config: "Config", source: Any, options: "AuditOptions", live: "LiveCoordinator | None"
) -> list[Any]:
    """Return the checks of cluster and live coordinator that the options allow."""
    from coordinator.recovery.external_checks import ClusterCheck, LiveCheck, OptionalCheck
    from coordinator.recovery.sources.topic_access import make_topic_options

    found: list[Any] = []
    if config.bootstrap_servers:
        kind, _, topic = source.text.partition(":")
        cluster = ClusterCheck(
            **make_topic_options(config),
            topic=topic if kind == "kafka" else None,
            state_partitions=options.state_partitions,
            limits=options.limits,
            cut=options.cut,
        )
        found.append(OptionalCheck(cluster, ("P5", "X2", "X5") if kind == "kafka" else ("X2", "X5")))
    if live is not None:
        found.append(OptionalCheck(LiveCheck(source, live), ("X1",), asked_for=True))
    return found


def _utc_now_text() -> str:
    from coordinator.process.clock import SystemClock

    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")


def parse_duration_s(text: str, flag: str = "--every") -> float:
    """Parse 30s, 5m, 1h or 2d; return seconds. Raises ConfigError."""
    from coordinator.errors import ConfigError

    amount, unit = text[:-1], text[-1:]
    if unit not in _UNITS_S or not amount.isascii() or not amount.isdigit() or not int(amount):
        raise ConfigError(flag, text, "a duration such as 30s, 5m or 1h")
    return float(int(amount) * _UNITS_S[unit])


def parse_listen(text: str) -> "HostPort | None":
    """Parse a listen address; None if the text is empty. Raises ConfigError."""
    from coordinator.config import HostPort
    from coordinator.errors import ConfigError

    if not text:
        return None
    try:
        return HostPort.parse(text)
    except ValueError:
        raise ConfigError("--metrics-listen", text, "HOST:PORT") from None
