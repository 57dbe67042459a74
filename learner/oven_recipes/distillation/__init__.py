"""On-policy distillation on the sorting task: the policy learns from a teacher's distribution on its own answers.

The algorithm is Generalized Knowledge Distillation (Agarwal et al. 2024, arXiv 2306.13649) by TRL's
DistillationTrainer, with task, tokenizer, warm policy and teachers of the recipe `grpo`. There is no reward. Left out
of the paper's algorithm:

- the fixed data set: every completion is the policy's own (λ = 1);
- fine-tuning with rewards beside it (its section 3.1): that is ChannelTrainer (oven_learner.losses).

Which teacher it is may be changed by a decision (`teacher.active`). Importing the package needs no torch.
"""
