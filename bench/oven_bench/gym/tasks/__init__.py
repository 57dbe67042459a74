"""What is trained in the gym: a small pretraining and a small GRPO."""
