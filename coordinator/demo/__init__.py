"""The demo: a share-partition leader played against a running coordinator, step by step.

The story (what the leader does) is written here; what the coordinator holds and answers is asked for and
shown as it comes.
"""

from coordinator.demo.run import run

__all__ = ["run"]
