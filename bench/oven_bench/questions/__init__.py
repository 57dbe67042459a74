"""A supervisor that follows a script, over real HTTP: its score is known, and an experiment is held against it."""
