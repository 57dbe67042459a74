"""On-policy distillation on the sorting task: the policy learns from a teacher's distribution on its own answers.

The algorithm is Generalized Knowledge Distillation (Agarwal et al. 2024, arXiv 2306.13649) in TRL's
DistillationTrainer. The task, tokenizer, warm policy and teachers come from the recipe `grpo`. There is no reward. Two
parts of the paper's algorithm are omitted. One is the fixed dataset: every completion comes from the policy (λ = 1).
The other is simultaneous fine-tuning with rewards (section 3.1); ChannelTrainer supports it (oven_learner.losses).

Decisions can change the teacher (`teacher.active`). The package does not import torch.
"""
