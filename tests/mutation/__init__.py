"""Mutation testing: change the product in one place, and check that a quick test fails (`make mutants`)."""
