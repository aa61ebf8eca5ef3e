"""Failure tests of several coordinators on one state topic of a real cluster."""
