"""GRPO on motion: a policy makes clips of a skeleton that reaches to the place that a sentence names.

A clip is 32 frames of 24 joints × 3 axis-angles (72 dimensions, the layout of SMPL: Loper et al. 2015). Intents are
texts such as "reach high forward with the left hand"; some are held out. The committee's members are rules: reach,
smoothness, joint limits. Left out of motion generation as it is published: recorded data (warm-up clips are made),
contact with the ground and translation of the root. Importing the package needs no torch.
"""
