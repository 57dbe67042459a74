"""`review`: every agent over one finished run at once: what each would have said, what would have been decided, and
what the run did afterwards without it."""
