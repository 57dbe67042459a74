"""On-policy distillation on the sorting task. The policy learns from a teacher's distribution on the policy's answers.

The algorithm is Generalized Knowledge Distillation (Agarwal et al. 2024, arXiv 2306.13649) in TRL's
DistillationTrainer. The task, tokenizer, warm policy and teachers come from the recipe `grpo`. There is no reward.
Unlike in the paper, every completion comes from the policy (λ = 1), and there is no simultaneous fine-tuning with
rewards (section 3.1), which oven_learner.losses.ChannelTrainer supports.

Decisions can change the teacher (`teacher.active`). The package does not import torch until its training job is built.
"""
