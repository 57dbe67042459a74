"""Answers from a graph: diagnoses, judgements of changes, curricula and queries, all as pure functions."""
