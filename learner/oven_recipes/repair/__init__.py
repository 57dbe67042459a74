"""GRPO of a small policy that repairs functions by tools: it reads, edits, runs tests and submits.

The algorithm is TRL's GRPOTrainer with its `environment_factory`, whose rollouts have several turns. Left out of the
usual training of a coding agent:

- a pre-trained model. The policy of some 0.4 M parameters learns the form of calls, and repairs that are right some of
the time, from demonstrations made on the spot;

- other people's repositories. Tasks are generated (`oven_recipes.environments.small_functions`);

- a reward for each step. Rewards of steps are recorded, but GRPO's advantage is that of the whole attempt.

Importing the package needs no torch; building its job does.
"""
