"""Recipe `oracle`: a model that answers questions about activations, and states how sure it is.

A language model is shown activations (its own, without the adapter) in the place of a text: they are put in at the
placeholders of its prompt. It answers a question about the text that they come of, and states a confidence. The prompt
is that of Activation Oracles (Karvonen et al. 2025); the reward, I − λ(c − I)², adds a proper scoring rule (Brier 1950)
to how informative the answer is. First a supervised stage teaches the form of answers, then Group Relative Policy
Optimization (Shao et al. 2024, arXiv 2402.03300) by TRL's trainer. Left out of the paper's algorithm:

- the division of advantages by their group's standard deviation: where a judge's noise is all that differs, it would
  be scaled up to a signal (Liu et al. 2025, arXiv 2503.20783);
- several updates per generation, and iterative GRPO's outer loop.

Importing the package needs no torch; building its job does.
"""
