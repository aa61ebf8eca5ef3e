"""Tests of the documentation: every command is run, and every link has a target."""
