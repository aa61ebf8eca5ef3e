"""`recovery audit`: check whether a state log is complete and can be restored, once or periodically.

Exit codes: 0 no findings, 1 warnings, 2 critical findings, 3 the audit failed.  With --every, the exit code
is 0 after a stop signal, and metrics report the results.
"""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
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
    from coordinator.recovery.live_coordinator import LiveCoordinator

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
PruneBacklog = Annotated[
    int, typer.Option("--prune-backlog", metavar="N", help="Limit of records that can be pruned (P1).", min=0)
]
ReplaySeconds = Annotated[
    float,
    typer.Option(
        "--replay-seconds", metavar="N", help="Limit of the load time of a state partition (P7).", min=0
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
    prune_backlog: PruneBacklog = 100_000,
    replay_seconds: ReplaySeconds = 10.0,
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
        job = _AuditJob(ctx.args, source, config, settings)
        job.prepare(
            recovery.parse_cut(as_of_offset, as_of_time),
            limits={"prune_backlog_max": prune_backlog, "replay_s_max": replay_seconds},
            state_partitions=state_partitions,
            live=live,
            live_config=live_config,
            to=to,
            baseline=baseline,
            archive=archive,
        )
        job.engine = recovery.open_engine(engine, master, processes)
        try:
            if every or metrics_listen:
                job.repeat(parse_duration_s(every), parse_listen(metrics_listen), keep)
                return
            found = job.run(job.options.baseline)
        finally:
            job.engine.close()
        job.print_report(found, output)
    except (CoordinatorError, OSError) as error:
        print_line(f"share-coordinator: {format_error(error)}", err=True)
        raise typer.Exit(EXIT_COULD_NOT_AUDIT) from None
    raise typer.Exit(found.exit_code)


class _AuditJob:
    """The parameters of one command: what is audited, and where results are written."""

    engine: Any
    options: "AuditOptions"

    def __init__(
        self, extra: list[str], source: str, config: Path | None, settings: list[str] | None
    ) -> None:
        recovery.require_packages("pyarrow", "numpy")
        self._loaded = flags.load_settings(extra, config, settings).config
        self.source = recovery.open_source(source, extra, config, settings)
        self._repeats = False

    def prepare(
        self,
        cut: Any,
        *,
        limits: dict[str, Any],
        state_partitions: int | None,
        live: str,
        live_config: Path | None,
        to: str | None,
        baseline: str | None,
        archive: str | None,
    ) -> None:
        """Check all parameters before reading anything. Raises ConfigError."""
        from coordinator.recovery.audit import AuditOptions
        from coordinator.recovery.checks.baseline import Baseline
        from coordinator.recovery.checks.limits import Limits
        from coordinator.recovery.sources.archive import ArchiveSource

        known = Limits(
            updates_max=self._loaded.snapshot_updates_max,
            cold_snapshot_interval_ms=self._loaded.cold_snapshot_interval_ms,
        )._replace(**limits)
        self.options = AuditOptions(
            cut=cut,
            limits=known,
            state_partitions=state_partitions,
            baseline=None if baseline is None else Baseline.read(baseline),
            to=to,
            copy=None if archive is None else ArchiveSource(archive).as_log_copy(),
        )
        self.options = replace(
            self.options,
            external=_external_checks(
                self._loaded,
                self.source,
                self.options,
                self._make_live_coordinator(live, live_config),
            ),
        )

    def _make_live_coordinator(self, live: str, live_config: Path | None) -> "LiveCoordinator | None":
        if not live:
            return None
        return recovery.parse_live_coordinator(live, flags.client_security(live_config, self._loaded))

    def run(self, baseline: "Baseline | None") -> "AuditResult":
        """Audit once and write the results."""
        from coordinator.recovery.audit import audit

        options = replace(self.options, baseline=baseline)
        if options.to is not None and self._repeats:
            options = replace(options, to=f"{options.to}/{_utc_now_text()}")
        return audit(self.engine, self.source, options, with_states=False)

    def print_report(self, found: "AuditResult", output: Output) -> None:
        """Print the report."""
        from coordinator.recovery.report import as_json, as_text, make_content

        content = make_content(found)
        if output is Output.JSON:
            print_json_text(as_json(content).rstrip("\n"))
        else:
            typer.echo(as_text(content), nl=False)

    def repeat(self, every_s: float, listen: "HostPort | None", keep: int) -> None:
        """Audit until stopped; print a line for each run."""
        from coordinator.errors import ConfigError, CoordinatorError
        from coordinator.recovery.baselines import BaselineStore
        from coordinator.recovery.continuous import audit_periodically

        if self.options.to is None:
            raise ConfigError("--to", None, "a directory with --every, which keeps the baseline in it")
        self._repeats = True
        store = BaselineStore(self.options.to, keep=keep)
        baseline = store.current(self.source.text, self.options.baseline)

        def run(before: "Baseline | None") -> "AuditResult":
            found = self.run(before)
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

        audit_periodically(run, every_s=every_s, listen=listen, told=print_result, baseline=baseline)


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
