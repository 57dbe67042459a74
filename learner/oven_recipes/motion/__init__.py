"""GRPO on motion: a policy generates clips of a skeleton whose hand reaches a place named in a sentence.

A clip has 32 frames of 72 numbers, an axis-angle vector for each of 24 joints, as in SMPL (Loper et al. 2015). The
sentences are called intents, for example "reach high forward with the left hand", and some of them are held out. The
reward checks that the hand reaches the place, that the motion is smooth, and that joints stay within their limits.
Unlike published motion generators, this policy learns without recorded motion. The skeleton's root is fixed, and there
is no ground. The package does not import torch until its training starts."""
