"""GRPO of a small policy that repairs functions with tools: it reads, edits, runs tests and submits.

The algorithm is TRL's GRPOTrainer with its `environment_factory`, whose rollouts have several turns. Differences from
the usual training of a coding agent:

- no pre-trained model: a policy with about 0.4 million parameters learns from generated demonstrations to call tools
  and to repair functions, though not reliably
- no real repositories: tasks are generated (`oven_recipes.environments.small_functions`)
- no reward per step: step rewards are recorded, but GRPO's advantage uses the reward of the whole attempt

The package does not import torch until its job is built.
"""
