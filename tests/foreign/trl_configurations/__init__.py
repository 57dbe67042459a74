"""Trainers of transformers and TRL across their options, a few steps each, on tiny models that are made on the spot.

The table of `oven-controller bench configurations`. Nothing is downloaded.
"""

from .distillation import DISTILLATION
from .grpo import GRPO
from .preference import PREFERENCE
from .rewarding import REWARDING
from .rloo import RLOO
from .sft import SFT
from .transformers_trainer import TRAINER

CONFIGURATIONS = (*TRAINER, *SFT, *PREFERENCE, *REWARDING, *GRPO, *RLOO, *DISTILLATION)
