"""`config show | check | reference`: the settings as they would be used, and all there are."""

from typing import Annotated

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_table

config_app = typer.Typer(
    help="Settings: what they are, where they come from, whether they are good.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@config_app.command(context_settings=flags.ANY_SETTING, epilog=flags.COMMON_FLAGS)
def show(
    ctx: typer.Context,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Print every setting with its value and where it came from. Takes the flags of serve."""
    from coordinator.config import SETTINGS

    loaded = flags.load(ctx.args, config, settings)
    values = {setting.name: setting.display_value(loaded.config) for setting in SETTINGS}
    if output is Output.JSON:
        print_json(
            [
                {
                    "name": setting.name,
                    "value": values[setting.name],
                    "from": loaded.origins[setting.name],
                    **{
                        column: getattr(setting, column)
                        for column in ("env", "flag", "default", "allowed", "meaning")
                    },
                }
                for setting in SETTINGS
            ]
        )
        return
    print_table(
        ("NAME", "VALUE", "FROM"), [(name, value, loaded.origins[name]) for name, value in values.items()]
    )


@config_app.command(context_settings=flags.ANY_SETTING, epilog=flags.COMMON_FLAGS)
def check(
    ctx: typer.Context,
    config: flags.ConfigFile = None,
    settings: flags.Set = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether serve would accept its settings; exit code 2 if not. Takes the flags of serve."""
    from coordinator.admin.access_control import AccessControl
    from coordinator.admin.http_service import make_server_tls
    from coordinator.clock import SystemClock
    from coordinator.server import make_listener_security

    loaded = flags.load(ctx.args, config, settings)
    # Files of certificates, users, tokens and keys are read as serve would read them.
    make_listener_security(loaded.config, SystemClock())
    AccessControl(loaded.config)
    make_server_tls(loaded.config)
    if loaded.config.bootstrap_servers:
        flags.client_security(None, loaded.config)
    if output is Output.JSON:
        print_json({"good": True, "notes": list(loaded.notes)})
        return
    for note in loaded.notes:
        typer.echo(note)
    typer.echo("The settings are good.")


@config_app.command("scram-keys")
def scram_keys(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who logs in with the password.")],
    iterations: Annotated[
        int, typer.Option("--iterations", metavar="N", help="How long a guess takes.", min=4096, max=16384)
    ] = 8192,
) -> None:
    """Read a password from standard input, and print the line for listen.sasl.users.file that checks it.

    The password cannot be read from the line, only guessed. It is good for SCRAM-SHA-256, SCRAM-SHA-512 and
    PLAIN.
    """
    import sys

    from coordinator.errors import ConfigError
    from coordinator.security.users import format_user_line

    # Bytes that are no UTF-8 come as halves of characters, which cannot be printed.
    if not (name and name.isprintable()):
        raise ConfigError("NAME", name, "a name of characters that can be printed")
    try:
        if sys.stdin.isatty():
            password = typer.prompt("Password", hide_input=True, err=True)
        else:
            password = sys.stdin.readline().rstrip("\r\n")
        password.encode()
    except UnicodeError:
        raise ConfigError("password", None, "a text in UTF-8") from None
    if not password:
        raise ConfigError("password", "", "given on standard input")
    typer.echo(format_user_line(name, password, iterations))


@config_app.command()
def reference() -> None:
    """Print the page about all settings, in Markdown."""
    from coordinator.config import render_reference

    typer.echo(render_reference(), nl=False)
