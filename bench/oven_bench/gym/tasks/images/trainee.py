"""A raw loop: a network of two convolutions, SGD with momentum, a step schedule. The gradient is not clipped."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.tasks.images.drawing import CLASSES, GAUGED, JUDGED, Pictures, drawn, held_out
from oven_bench.gym.torch_trainee import BatchStep, TorchTrainee
from oven_core.protocol.messages import MetricSpec

BATCH = 64
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.03, 0.9, 5e-4
MILESTONES, GAMMA = (140, 190), 0.3
"""Updates after which the rate is multiplied once more."""
WORST = math.log(len(CLASSES))
"""Nats of a network that knows nothing; a broken run has it too."""
METRICS = (
    MetricSpec(name="accuracy", better="up", ceiling=1.0, unit="of this batch"),
    MetricSpec(name="eval/loss", better="down", held_out=True),
    MetricSpec(name="eval/accuracy", better="up", ceiling=1.0, held_out=True),
)


def network(seed: int) -> nn.Module:
    """9,000 parameters, with batch normalisation; torch's own initial weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator("images weights", seed).initial_seed())
        return nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1, bias=False),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, len(CLASSES)),
        )


class Images(TorchTrainee[Pictures]):
    """A batch is `Pictures`."""

    kind = "images"

    def __init__(self, seed: int) -> None:
        model = network(seed)
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY)
        super().__init__(seed, model, optimizer, METRICS)
        self.announce_weight_decay()

    def user_settings(self) -> dict[str, float]:
        rate = LEARNING_RATE * GAMMA ** sum(self.updates >= milestone for milestone in MILESTONES)
        return {"learning_rate": rate, "weight_decay": WEIGHT_DECAY, "batch": BATCH}

    def read(self, step: BatchStep[Pictures]) -> Pictures:
        return drawn(int(self.settings["batch"]), generator("pictures", self.seed, step.cursor))

    def loss(self, step: BatchStep[Pictures]) -> tuple[Tensor, dict[str, float]]:
        logits = self.model(step.batch.pixels)
        return F.cross_entropy(logits, step.batch.labels), {"accuracy": _accuracy(logits, step.batch.labels)}

    def evaluated(self) -> dict[str, float]:
        loss, accuracy = self._measured(held_out("gauged", GAUGED))
        return {"eval/loss": loss, "eval/accuracy": accuracy}

    def each_example(self) -> Tensor:
        pictures = held_out("gauged", GAUGED)
        return F.cross_entropy(self.model(pictures.pixels), pictures.labels, reduction="none")

    @torch.no_grad()
    def quality(self) -> float:
        """Nats on held-out pictures that the run's own evaluation does not have; at most WORST, which NaN is too."""
        self.model.eval()
        loss, _ = self._measured(held_out("judged", JUDGED))
        return min(loss, WORST) if math.isfinite(loss) else WORST

    def _measured(self, pictures: Pictures) -> tuple[float, float]:
        logits = self.model(pictures.pixels)
        return float(F.cross_entropy(logits, pictures.labels)), _accuracy(logits, pictures.labels)


def _accuracy(logits: Tensor, labels: Tensor) -> float:
    return float((logits.argmax(1) == labels).float().mean())
