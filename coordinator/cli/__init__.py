"""The command line: `share-coordinator serve | config | journal | demo | version`.

Nothing is imported before a command needs it, so that `--help` is there at once.
"""

from coordinator.cli.program import main

__all__ = ["main"]
