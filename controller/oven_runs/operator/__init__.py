"""Commands from operators to a running stack."""
