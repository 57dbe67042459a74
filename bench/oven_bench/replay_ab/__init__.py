"""The A/B of trace replay: GRPO with and without it, on the recipe `repair`, by an experiment that can say no."""
