"""A small model of shard ownership that is checked in all its states."""
