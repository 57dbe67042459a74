"""Sampled completions: what a training hands over of a step, and what becomes of it beside the training."""
