"""The `oracle` recipe, which trains a model to answer questions about a text from its activations alone.

The model, an oracle, does not see the text. Instead, activations are injected at the placeholders of its prompt. The
same model, without its adapter, computed them from the text. The oracle answers a question about the text and states
its confidence c. The prompt is from Activation Oracles (Karvonen et al. 2025). The reward, I − λ(c − I)², combines the
answer's informativeness I with a proper scoring rule (Brier 1950). A supervised stage first teaches the answer format.
Then TRL's trainer runs Group Relative Policy Optimization (Shao et al. 2024, arXiv 2402.03300), without two parts of
the paper's algorithm. Advantages are not divided by their group's standard deviation, which would scale a judge's noise
up to a signal if nothing else differs (Liu et al. 2025, arXiv 2503.20783). There are also no repeated updates per
generation, and no outer loop of iterative GRPO.

This package does not import torch until its job is built."""
