"""Tests of the relay with fake peers, a fake broker and a fake coordinator."""
