"""Diagnosis of a run from its log: statistical alarms, programs that a model writes over them, and a typed answer. The
host recomputes the evidence of that answer."""
