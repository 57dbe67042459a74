"""Recipe `oracle`: trains a model that answers questions about activations and states its confidence.

A language model sees activations (its own, without the adapter) instead of a text, injected at the placeholders of its
prompt. It answers a question about the text behind them and states a confidence. The prompt comes from Activation
Oracles (Karvonen et al. 2025). The reward, I − λ(c − I)², combines the answer's informativeness I with a proper scoring
rule (Brier 1950). First a supervised stage teaches the form of answers, then Group Relative Policy Optimization (Shao
et al. 2024, arXiv 2402.03300) by TRL's trainer. Two parts of the paper's algorithm are omitted:

- the division of advantages by their group's standard deviation: if only a judge's noise differs, it would be scaled up
to a signal (Liu et al. 2025, arXiv 2503.20783); - several updates per generation, and iterative GRPO's outer loop.

Importing the package needs no torch; building its job does.
"""
