"""Diagnoses a run from its log.

Statistical tests raise alarms. A model then writes programs that analyse the log, and its evidence is recomputed."""
