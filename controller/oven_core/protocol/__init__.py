"""The protocol: messages, subjects, encoding, permissions, and the rules for decisions."""
