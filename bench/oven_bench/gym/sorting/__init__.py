"""The GRPO task without its training: prompts, judges and the policy."""
