"""Observe mode: follow the state log of a cluster read-only and show its state."""

from coordinator.observe.follower import LogFollower
