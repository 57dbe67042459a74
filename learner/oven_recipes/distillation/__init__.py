"""On-policy distillation on the sorting task: the policy learns from a teacher's distribution on its own answers.

The algorithm is Generalized Knowledge Distillation (Agarwal et al. 2024, arXiv 2306.13649) by TRL's
DistillationTrainer, with task, tokenizer, warm policy and teachers of the recipe `grpo`. There is no reward. Two parts
of the paper's algorithm are omitted:

- the fixed data set: every completion is the policy's own (λ = 1); - simultaneous fine-tuning with rewards (section
3.1); ChannelTrainer does that (oven_learner.losses).

A decision can change the teacher (`teacher.active`). Importing the package needs no torch.
"""
