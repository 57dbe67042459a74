"""GRPO on a sorting task: a 0.5 M parameter Llama that learns within minutes on one CPU core.

The algorithm is Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) by TRL's GRPOTrainer.
Differences from the paper's algorithm:

- no KL term, unless a setting or the start sets beta: there is no pre-trained behaviour to preserve, only a warm-up
- no learnt reward model or process supervision: the reward is exact match on the whole answer
- no outer loop of iterative GRPO (fresh reference and reward models every round)
- one update per generation instead of several: every step is on-policy, so no ratio is clipped
- DAPO's loss, a mean over all tokens of the batch, instead of a mean over each completion's tokens

The package does not import torch until its job is built.
"""
