"""Diagnoses a run from its log.

Statistical tests raise alarms. A model writes programs to analyse the log, and the host checks the model's evidence."""
