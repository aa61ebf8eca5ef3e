"""Tests of the client against a fake coordinator with planned faults and against the real one."""
