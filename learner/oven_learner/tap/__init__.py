"""Observes what a script logs to wandb, TensorBoard, and others, without changing it."""
