"""How far a policy has moved from what a frontier model writes: measured on a fixed set of texts, never trained on."""
