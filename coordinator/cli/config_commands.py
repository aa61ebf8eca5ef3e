"""`config show | check | reference | scram-keys`: show and check the configuration."""

from typing import Annotated

import typer

from coordinator.cli import settings_flags as flags
from coordinator.cli.output import Output, OutputOption, print_json, print_table

config_app = typer.Typer(
    help="Show and check the configuration.",
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
    """Print every setting with its value and origin. Accepts the flags of serve."""
    from coordinator.config import SETTINGS

    loaded = flags.load_settings(ctx.args, config, settings)
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
    """Check the settings and files that serve would use.

    Exit code 2 if a setting or a file is invalid. Accepts the flags of serve.
    """
    from coordinator.operate.admin.access_control import AccessControl
    from coordinator.process.clock import SystemClock
    from coordinator.security.tls import ServerTls
    from coordinator.serve.server import make_listener_security

    loaded = flags.load_settings(ctx.args, config, settings)
    # Read the files of certificates, users, tokens and keys as serve does.
    make_listener_security(loaded.config, SystemClock())
    AccessControl(loaded.config)
    if loaded.config.http_uses_tls:
        ServerTls(loaded.config.http_ssl, "http")
    if loaded.config.bootstrap_servers:
        flags.load_security(None, loaded.config)
    if output is Output.JSON:
        print_json({"good": True})
        return
    typer.echo("Configuration is valid.")


@config_app.command("scram-keys")
def scram_keys(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The user name.")],
    iterations: Annotated[
        int,
        typer.Option(
            "--iterations",
            metavar="N",
            help="SCRAM iterations; more make guessing slower.",
            min=4096,
            max=16384,
        ),
    ] = 8192,
) -> None:
    """Read a password from standard input and print its line for listen.sasl.users.file.

    The line does not contain the password. The line is valid for SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN.
    """
    import sys

    from coordinator.errors import ConfigError
    from coordinator.security.users import format_user_line

    # Arguments that are not valid UTF-8 contain surrogates, which cannot be printed.
    if not (name and name.isprintable()):
        raise ConfigError("NAME", name, "a name of printable characters")
    try:
        if sys.stdin.isatty():
            password = typer.prompt("Password", hide_input=True, err=True)
        else:
            password = sys.stdin.readline().rstrip("\r\n")
        password.encode()
    except UnicodeError:
        raise ConfigError("password", None, "UTF-8 text") from None
    if not password:
        raise ConfigError("password", "", "given on standard input")
    typer.echo(format_user_line(name, password, iterations))


@config_app.command()
def reference() -> None:
    """Print the reference of all settings in Markdown."""
    from coordinator.config import render_reference

    typer.echo(render_reference(), nl=False)
