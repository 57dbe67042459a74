"""`bench supervisor`: whether a diagnosis names the cause of a fault that was planted, and when it set in."""
