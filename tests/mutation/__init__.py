"""Mutation testing: change the coordinator in one place, and check that a quick test fails."""
