"""`oven-controller bench hostile`: measures what faulty or hostile plugged-in agents can do to a run."""
