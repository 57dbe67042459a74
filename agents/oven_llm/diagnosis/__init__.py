"""Diagnoses a run from its log.

Statistical tests raise alarms, a model writes programs to analyse the log, and the host checks the evidence in its
answer."""
