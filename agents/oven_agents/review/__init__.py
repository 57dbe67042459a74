"""Reviews of finished runs: the votes that agents would have cast, the decisions, and the recorded outcome."""
