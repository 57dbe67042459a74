"""The `oracle` recipe, which trains a model to answer questions about a text from activations alone.

The model, called an oracle, does not see the text. The same model without its adapter reads the text, and its
activations are injected at the placeholders of the oracle's prompt. The prompt is from Activation Oracles (Karvonen et
al. 2025). The oracle answers a question about the text and states its confidence c. The reward, I − λ(c − I)², combines
the answer's informativeness I with a proper scoring rule (Brier 1950).

A supervised stage first teaches the answer format. Then TRL's trainer runs GRPO (Shao et al. 2024, arXiv 2402.03300)
with one update per generation. Advantages are not divided by their group's standard deviation, because that would
amplify the noise of a judge when all answers are equally good (Liu et al. 2025, arXiv 2503.20783).

This package does not import torch until its training job is built."""
