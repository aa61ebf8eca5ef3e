"""Tests of the demo, with the real coordinator and with a fake that returns wrong results."""
