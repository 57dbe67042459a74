"""The protocol between the processes of a run: messages, subjects, encoding, permissions, and rules for decisions."""
