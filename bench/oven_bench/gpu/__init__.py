"""The bench that checks and measures the controller on one GPU. Without a GPU it rehearses with tiny models."""
