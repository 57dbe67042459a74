"""Wrong or hostile agents, as a stranger would write and plug them in. `bench hostile` runs them against a real stack,
each with an agent's key and nothing more.
"""
