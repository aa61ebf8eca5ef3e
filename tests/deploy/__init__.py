"""Tests of the files in deploy/ with the tools and processes that use them."""
