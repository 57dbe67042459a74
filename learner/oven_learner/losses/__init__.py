"""Loss terms beside GRPO's own, each with a weight that may be changed while the run continues.

    trainer = ChannelTrainer(..., channels=[Distillation(0.5), Supervised(column="answer")])
    oven.attach(trainer)                   # announces channel.distill and channel.sft

The loss is TRL's, to the bit, plus Σ weight × term over the channels that are on. A term is a mean over the tokens it
acts on, whatever the loss type divides by: the convention of TRL's own entropy bonus. At weight 0 a channel computes
nothing, touches no generator and publishes nothing.
"""

from oven_learner.losses.channel import Channel
from oven_learner.losses.channel_trainer import ChannelTrainer
from oven_learner.losses.distillation import Distillation
from oven_learner.losses.sft import Supervised

__all__ = ["Channel", "ChannelTrainer", "Distillation", "Supervised"]
