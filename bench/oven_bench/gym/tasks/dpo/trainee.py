"""What TRL's DPOTrainer does and reports: the sigmoid loss, AdamW without decay, a warm-up and a linear decay."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from oven_bench.gym.sorting.sorting_prompts import PAD
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.sorting.warm_weights import warm_weights
from oven_bench.gym.tasks.dpo.preferences import Pairs, answers_worth, batch, held_out_pairs
from oven_bench.gym.torch_trainee import BatchStep, TorchTrainee
from oven_core.protocol.messages import MetricSpec

BATCH = 48
PEAK, WARMUP, PLANNED = 2e-3, 20, 500
"""The rate after the warm-up, its updates, and the updates that the schedule was planned for: it ends at 0."""
BETA, CLIP = 0.3, 1.0
METRICS = (
    MetricSpec(name="rewards/accuracies", better="up", unit="share of pairs in the right order"),
    MetricSpec(name="rewards/margins", better="up", unit="β × nats, chosen over rejected"),
    MetricSpec(name="rewards/chosen", unit="β × nats against the reference"),
    MetricSpec(name="rewards/rejected", unit="β × nats against the reference"),
    MetricSpec(name="logps/chosen", unit="nats, sum over tokens"),
    MetricSpec(name="logps/rejected", unit="nats, sum over tokens"),
    MetricSpec(name="entropy", unit="nats per token"),
    MetricSpec(name="mean_token_accuracy", better="up"),
    MetricSpec(name="eval/loss", better="down", held_out=True),
)


class Scored(NamedTuple):
    """A policy's view of some pairs: the chosen answers and the rejected ones."""

    chosen: Tensor  # float32 [B], nats, sum over tokens
    rejected: Tensor  # float32 [B]
    entropy: float  # nats per token
    accuracy: float  # share of tokens that the policy would have said


def scored(policy: Policy, pairs: Pairs) -> Scored:
    answers = torch.cat((pairs.chosen, pairs.rejected))
    there = answers != PAD
    log_probs = policy(pairs.digits.repeat(2, 1), answers)  # [N, TOKENS]
    said = answers[there]
    own = log_probs.gather(-1, said.unsqueeze(-1)).squeeze(-1)
    rows = there.nonzero()[:, 0]
    sums = torch.zeros(len(answers)).index_add(0, rows, own)
    with torch.no_grad():
        entropy = float(-(log_probs.exp() * log_probs).sum(-1).mean())
        accuracy = float((log_probs.argmax(-1) == said).float().mean())
    chosen, rejected = sums.chunk(2)
    return Scored(chosen, rejected, entropy, accuracy)


class Dpo(TorchTrainee[Pairs]):
    """A batch is `Pairs`."""

    kind = "dpo"

    def __init__(self, seed: int) -> None:
        self.policy, self.reference = _policy(seed), _policy(seed).requires_grad_(False)
        optimizer = torch.optim.AdamW(self.policy.parameters(), lr=PEAK, weight_decay=0.0)
        super().__init__(seed, self.policy, optimizer, METRICS)
        self.announce_times("clip", "grad.clip", unit="norm")
        self.announce_times("beta", "dpo.beta", unit="× log-ratio to the reference, in the loss")
        self._held_out = held_out_pairs(self.reference)
        self._of_held_out = self._reference_of(self._held_out)

    def user_settings(self) -> dict[str, float]:
        rate = PEAK * min((self.updates + 1) / WARMUP, max(0.0, (PLANNED - self.updates) / (PLANNED - WARMUP)))
        return {"learning_rate": rate, "clip": CLIP, "beta": BETA, "batch": BATCH}

    def read(self, step: BatchStep[Pairs]) -> Pairs:
        return batch(int(self.settings["batch"]), self.reference, self.seed, step.cursor)

    def loss(self, step: BatchStep[Pairs]) -> tuple[Tensor, dict[str, float]]:
        mine = scored(self.policy, step.batch)
        chosen, rejected = self._rewards(mine, self._reference_of(step.batch), self.knob("beta"))
        with torch.no_grad():
            metrics = {
                "rewards/accuracies": float((chosen > rejected).float().mean()),
                "rewards/margins": float((chosen - rejected).mean()),
                "rewards/chosen": float(chosen.mean()),
                "rewards/rejected": float(rejected.mean()),
                "logps/chosen": float(mine.chosen.mean()),
                "logps/rejected": float(mine.rejected.mean()),
                "entropy": mine.entropy,
                "mean_token_accuracy": mine.accuracy,
            }
        return -logsigmoid(chosen - rejected).mean(), metrics

    def evaluated(self) -> dict[str, float]:
        """As TRL does: the loss, with the β of the day."""
        mine = scored(self.policy, self._held_out)
        chosen, rejected = self._rewards(mine, self._of_held_out, self.knob("beta"))
        margins = chosen - rejected
        return {
            "eval/loss": float(-logsigmoid(margins).mean()),
            "eval/rewards/accuracies": float((margins > 0).float().mean()),
            "eval/rewards/margins": float(margins.mean()),
        }

    def each_example(self) -> Tensor:
        """The loss by the user's own β: by that of the day, arms that turn it would not be measured alike."""
        chosen, rejected = self._rewards(scored(self.policy, self._held_out), self._of_held_out, BETA)
        return -logsigmoid(chosen - rejected)

    @torch.no_grad()
    def quality(self) -> float:
        """What sampled answers to held-out prompts lack, as a share of the right answer: what the preferences are for.
        The order of held-out pairs alone would not show a policy that left both answers of each behind."""
        return 1.0 if self.broken() else 1 - answers_worth(self.policy)

    def _rewards(self, mine: Scored, theirs: Scored, beta: float) -> tuple[Tensor, Tensor]:
        """What the policy says for the chosen and for the rejected answers [B], implicitly (eq. 5)."""
        return beta * (mine.chosen - theirs.chosen), beta * (mine.rejected - theirs.rejected)

    @torch.no_grad()
    def _reference_of(self, pairs: Pairs) -> Scored:
        return scored(self.reference, pairs)


def _policy(seed: int) -> Policy:
    with torch.random.fork_rng(devices=[]):
        policy = Policy()
    policy.load_state_dict(warm_weights(seed))
    return policy
