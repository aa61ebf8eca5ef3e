"""`recovery audit`: check whether a state log is complete and can be restored, once or periodically.

Exit codes: 0 no findings, 1 warnings, 2 critical findings, 3 the audit failed.  With --every, the exit code
is 0 after a stop signal, and metrics report the results.
"""

from contextlib import closing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from coordinator.cli import EXIT_USAGE
from coordinator.cli import recovery_commands as recovery
from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, format_error, print_error, print_json_text

if TYPE_CHECKING:
    from coordinator.config import Config
    from coordinator.recovery.audit import AuditOptions, AuditResult
    from coordinator.recovery.engines import Engine
    from coordinator.recovery.live_coordinator import LiveCoordinator
    from coordinator.recovery.sources import LogCut, Source

EXIT_COULD_NOT_AUDIT = 3

To = Annotated[
    str | None,
    recovery.make_option(
        "--to",
        "DIR",
        "A new directory or URI for states, findings and a manifest; with --every, one per run.",
    ),
]
EarlierAudit = Annotated[
    str | None, recovery.make_option("--baseline", "DIR", "Compare with the --to of an earlier audit (X3).")
]
Live = Annotated[str, recovery.make_option("--live", "HOST:PORT", "Compare with this live coordinator (X1).")]
Keep = Annotated[
    int,
    recovery.make_option("--keep", "N", "With --every: runs to keep in --to, besides the baseline.", min=1),
]
Archive = Annotated[
    str | None,
    recovery.make_option("--archive", "DIR", "An archive of the log; the report shows what it can restore."),
]


class _AuditCommand(TyperCommand):
    """A command that fails with exit code 3, because 1 and 2 mean warnings and critical findings."""

    def make_context(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().make_context(*args, **kwargs)
        except Exception as error:
            # Do not check the class, because different releases of typer import it from different packages.
            if getattr(error, "exit_code", None) == EXIT_USAGE:
                error.exit_code = EXIT_COULD_NOT_AUDIT  # type: ignore[attr-defined]
            raise

    def invoke(self, ctx: Any) -> Any:
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
    state_partitions: recovery.StatePartitions = None,
    archive: Archive = None,
    every: recovery.Every = "",
    keep: Keep = 24,
    metrics_listen: recovery.MetricsListen = "",
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
        period = recovery.parse_repeat_options(every, metrics_listen)
        opened = recovery.open_source(source, ctx.args, config, settings)
        loaded = flags.load_settings(ctx.args, config, settings).config
        options = _make_audit_options(
            loaded, recovery.parse_cut(as_of_offset, as_of_time), state_partitions, to, baseline, archive
        )
        live_coordinator = None
        if live:
            live_coordinator = recovery.parse_live_coordinator(live, flags.load_security(live_config, loaded))
        options = replace(options, external=_make_external_checks(loaded, opened, options, live_coordinator))
        with closing(recovery.open_engine(engine, master, processes)) as worker:
            if period is not None:
                _audit_periodically(worker, opened, options, period, keep)
                return
            found = _audit_once(worker, opened, options)
        _print_report(found, output)
    except (CoordinatorError, OSError) as error:
        print_error(format_error(error))
        raise typer.Exit(EXIT_COULD_NOT_AUDIT) from None
    raise typer.Exit(found.exit_code)


def _make_audit_options(
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
    from coordinator.recovery.report import as_json, as_text

    if output is Output.JSON:
        print_json_text(as_json(found).rstrip("\n"))
    else:
        typer.echo(as_text(found), nl=False)


def _audit_periodically(
    worker: "Engine", source: "Source", options: "AuditOptions", period: recovery.RepeatOptions, keep: int
) -> None:
    """Audit until stopped; print a line for each run. Raises ConfigError."""
    from coordinator.errors import ConfigError
    from coordinator.recovery.continuous import AuditMetrics, next_baseline, remove_old_audits

    folder = options.to
    if folder is None:
        raise ConfigError("--to", None, "a directory with --every, which keeps the baseline in it")

    def audit_and_remove_old() -> "AuditResult":
        before = next_baseline(folder, source.text, options.baseline)
        to = f"{folder}/{recovery.utc_now_text()}"
        found = _audit_once(worker, source, replace(options, baseline=before, to=to))
        remove_old_audits(folder, keep)
        return found

    # If the directory contains an audit of another source, the command fails, not only a run.
    next_baseline(folder, source.text, options.baseline)
    recovery.run_periodically("audit", audit_and_remove_old, AuditMetrics(), period, _summarize_audit)


def _summarize_audit(found: "AuditResult") -> str:
    return f"{found.summary_line}, {found.manifest['totals']['records']} records"


def _make_external_checks(
    config: "Config", source: Any, options: "AuditOptions", live: "LiveCoordinator | None"
) -> list[Any]:
    """Return the checks of cluster and live coordinator that the options allow."""
    from coordinator.recovery.external_checks import ClusterCheck, LiveCheck
    from coordinator.recovery.sources.topic_access import make_topic_options

    found: list[Any] = []
    if config.bootstrap_servers:
        kind, _, topic = source.text.partition(":")
        found.append(
            ClusterCheck(
                **make_topic_options(config),
                topic=topic if kind == "kafka" else None,
                state_partitions=options.state_partitions,
                limits=options.limits,
                cut=options.cut,
            )
        )
    if live is not None:
        found.append(LiveCheck(source, live))
    return found
