"""The command line `share-coordinator`; `coordinator.cli.program` registers the commands."""

import sys

EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


def main() -> None:
    """Run the command that `sys.argv` names and end the process with its exit code."""
    try:
        # Imported here, because the import takes up to a second, during which Ctrl-C must work.
        from coordinator.cli.program import run

        run()
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
