"""Measure how far a policy has moved from a frontier model's answers, on a fixed set of texts that it never trains
on."""
