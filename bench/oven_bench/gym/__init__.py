"""The gym: small training runs, faults, and whoever may try to repair them, with a score that may say HARMS."""
