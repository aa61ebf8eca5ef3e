"""Tests of the documentation: every command is run by a test, and every link has a target."""
