"""GRPO on a sorting task: a 0.5 M parameter Llama that learns within minutes on one CPU core.

The algorithm is Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300) by TRL's GRPOTrainer. Left out
of the paper's algorithm:

- the KL term (beta is 0 unless a setting or the start says otherwise): there is no pre-trained behaviour worth staying
  near, only warm-up habits;
- the learnt reward model, and with it process supervision: the reward is a rule, exact match, on the whole answer;
- iterative GRPO's outer loop (fresh reference and reward models every round);
- several updates a generation (one: every step is on-policy, so the clipped ratio never binds);
- the mean over a completion's tokens inside its own sum: the loss is DAPO's, over all tokens of the batch.

Importing the package needs no torch; building its job does.
"""
