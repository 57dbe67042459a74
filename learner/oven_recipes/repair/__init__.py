"""GRPO of a small policy that repairs functions with tools: it reads, edits, runs tests and submits.

The algorithm is TRL's GRPOTrainer with its `environment_factory`, whose rollouts have several turns. Differences from
the usual training of a coding agent:

- no pre-trained model: the policy of about 0.4 M parameters learns the form of calls, and repairs that are sometimes
  right, from generated demonstrations
- no real repositories: tasks are generated (`oven_recipes.environments.small_functions`)
- no reward per step: step rewards are recorded, but GRPO's advantage uses the reward of the whole attempt

Importing the package needs no torch; building its job does.
"""
