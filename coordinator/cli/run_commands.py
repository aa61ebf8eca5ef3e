"""`serve` and `version`."""

import logging

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json


def serve(
    ctx: typer.Context,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
) -> None:
    """Run a coordinator until SIGTERM or Ctrl-C; a second signal stops it at once."""
    loaded = flags.load_settings(ctx.args, config, settings)
    from coordinator import fastpath
    from coordinator.app import serve as serve_until_stopped
    from coordinator.compiled_sources import PURE_PYTHON_ENV, is_pure_python
    from coordinator.process.logging_setup import set_up_logging

    set_up_logging(loaded.config.log_level, loaded.config.log_format)
    for note in loaded.notes:
        logging.getLogger("coordinator.config").warning("%s", note)
    if fastpath.compiled is None or fastpath.loading is None:
        logging.getLogger("coordinator.fastpath").warning(
            "The compiled module is not in use (%s). A request takes about 20 times as long. "
            "Install a C compiler and reinstall the coordinator.",
            f"{PURE_PYTHON_ENV} is set" if is_pure_python() else "it was not built",
        )
    raise typer.Exit(serve_until_stopped(loaded.config))


def version(output: OutputOption = Output.TABLE) -> None:
    """Print the version and whether the compiled module is in use."""
    import platform
    from importlib.metadata import version as release_of

    from coordinator import fastpath

    release, python = release_of("share-coordinator"), platform.python_version()
    writes = "pure Python" if fastpath.compiled is None else "compiled"
    if output is Output.JSON:
        print_json({"version": release, "python": python, "writes": writes})
    else:
        typer.echo(f"share-coordinator {release} (Python {python}, writes: {writes})")
