"""The command line `share-coordinator`; `coordinator.cli.program` registers the commands."""

import sys

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command that `sys.argv` names and end the process with its exit code."""
    try:
        # This import takes up to a second, and Ctrl-C must work during that time, so it happens in the `try`
        # block.
        from coordinator.cli.program import run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
