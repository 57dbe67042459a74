"""GRPO on motion: a policy generates clips of a skeleton whose hand reaches a place named in a sentence.

A clip is 32 frames of 24 joints × 3 axis-angles (72 dimensions, the layout of SMPL: Loper et al. 2015). Intents are
sentences such as "reach high forward with the left hand"; some are held out. The committee's members are rules: reach,
smoothness, joint limits. Unlike published motion generators, this one has no recorded data (warm-up clips are
synthetic), no ground contact, and no translation of the root. The package does not import torch.
"""
