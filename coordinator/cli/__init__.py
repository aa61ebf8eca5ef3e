"""The command line: `share-coordinator`, whose commands are put together in `coordinator.cli.program`."""

import sys

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command that `sys.argv` names and end the process with its exit code."""
    try:
        # Here and not above: it takes up to a second, in which Ctrl-C is as likely as later.
        from coordinator.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
