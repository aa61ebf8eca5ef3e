"""The demo: act as a share-partition leader against a running coordinator, step by step.

The requests are fixed; the responses and the state are shown as the coordinator returns them.
"""

from coordinator.cli.demo.run import run

__all__ = ["run"]
