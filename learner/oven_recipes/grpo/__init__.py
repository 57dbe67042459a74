"""GRPO on a sorting task. A Llama of 0.5 million parameters learns the task within minutes on one CPU core.

The algorithm is Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) by TRL's GRPOTrainer. It
differs from the paper's algorithm:

- There is no KL term, unless a setting or the start sets beta, because there is no pre-trained behaviour to preserve.
- The reward is exact match on the whole answer, without a learnt reward model or process supervision.
- There is no outer loop with a fresh reference and a fresh reward model in every round.
- Each batch of completions is used for one update instead of several, so no probability ratio is ever clipped.
- The loss is DAPO's mean over all tokens of the batch, instead of a mean over each completion's tokens.

The package does not import torch until its training job is built."""
