"""The protocol: messages, subjects, their encoding, and the rules that a run is decided by."""
