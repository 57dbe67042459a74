"""The gym: small training runs, faults, and what may try to repair them, with a score that may say HARMS."""
