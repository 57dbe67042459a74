"""GRPO of a small policy that repairs functions by tools: it reads, edits, runs tests and submits.

The algorithm is TRL's GRPOTrainer with its `environment_factory`, whose rollouts have several turns, and the channels
of `oven_learner.losses` beside its loss. Left out of what trains a coding agent:

- a pre-trained model: the policy of some 0.4 M parameters learns the form of calls, and repairs that are right some of
  the time, from demonstrations on the spot;
- repositories of other people: tasks are generated (`oven_recipes.environments.small_functions`);
- a reward for each step: steps' rewards are recorded, and GRPO's advantage is that of the whole attempt.

Importing the package needs no torch; building its job does.
"""
