"""Small synthetic training runs, one for each kind of finding, and the files in which a trainer would log them.

The pictures in docs/findings/ and the sentences in docs/what-is-wrong.md come from these runs. Each run has its own
seed, so the files are the same everywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

STEPS: Final = 300
"""Number of steps of an example."""
EVERY: Final = 25
"""Number of steps between two evaluations."""
NO_VALUE: Final = ""

Row = Mapping[str, float]
Noise = Callable[[float], float]
"""Returns normal noise with this standard deviation."""


@dataclass(frozen=True)
class ExampleRun:
    """A synthetic run that shows one kind of finding."""

    kind: str
    """The finding that the run shows, or "healthy"."""
    metrics: Callable[[int, Noise], Row]
    """Returns the metrics that are logged at a step."""
    charts: tuple[str, ...]
    """Names of the metrics to draw."""
    clip: float | None = None
    """Limit on the gradient's norm, if the log names it."""
    steps: tuple[int, ...] = tuple(range(1, STEPS + 1))

    def rows(self) -> list[dict[str, float]]:
        """Return the logged rows, with the step first."""
        generator = random.Random(self.kind)
        return [
            {"step": step, **self.metrics(step, lambda deviation: generator.gauss(0.0, deviation))}
            for step in self.steps
        ]

    def write_csv(self, path: Path) -> None:
        """Write the run as a table. Numbers have five digits, so the file does not depend on the machine."""
        rows = self.rows()
        columns = list(dict.fromkeys(name for row in rows for name in row))
        lines = [",".join(_show(row.get(name)) for name in columns) for row in rows]
        path.write_text("\n".join([",".join(columns), *lines]) + "\n")

    def write_text(self, path: Path) -> None:
        """Write the run as a training loop would print it."""
        lines = [" | ".join(f"{name} {_show(value)}" for name, value in row.items()) for row in self.rows()]
        path.write_text("\n".join(["starting training", *lines, "done"]) + "\n")


def _show(value: float | None) -> str:
    return NO_VALUE if value is None else f"{value:.5g}"


def _falling(step: int, noise: Noise, floor: float = 2.2) -> float:
    """Return a loss that falls as it should."""
    return floor + 1.8 * math.exp(-step / 60) + noise(0.04)


def _evaluated(step: int, name: str, value: float) -> Row:
    """Return a held-out reading at every EVERY-th step, and nothing at the others."""
    return {name: value} if step % EVERY == 0 else {}


def _healthy(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise)} | _evaluated(step, "eval/loss", _falling(step, noise, 2.4))


def _dead(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise) if step <= 110 else 0.0, "grad_norm": 1 + noise(0.1) if step <= 110 else 0.0}


def _stuck(step: int, noise: Noise) -> Row:
    return {"loss": math.log(2) + noise(0.004)}


def _plateau(step: int, noise: Noise) -> Row:
    return {"reward": 0.31 + noise(0.06)}


def _nan(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise) if step <= 210 else math.nan}


def _diverged(step: int, noise: Noise) -> Row:
    rise = 2.6 * (1 - math.exp(-(step - 180) / 8)) if step > 180 else 0.0
    return {"loss": _falling(step, noise) + rise + noise(0.1 if rise else 0.0)}


def _spike_recovered(step: int, noise: Noise) -> Row:
    is_spike = step == 190
    return {
        "loss": _falling(step, noise) + (3.0 if is_spike else 0.0),
        "grad_norm": 90.0 if is_spike else 0.9 + noise(0.08),
    }


def _overfit(step: int, noise: Noise) -> Row:
    held_out = 2.5 + 1.5 * math.exp(-step / 40) + 0.008 * max(0, step - 110) + noise(0.02)
    return {"loss": 4 * math.exp(-step / 140) + 0.3 + noise(0.13)} | _evaluated(step, "eval/loss", held_out)


def _reward_collapse(step: int, noise: Noise) -> Row:
    learnt = 0.2 + 0.6 * (1 - math.exp(-step / 80))
    return {"reward": (learnt if step <= 215 else 0.06) + noise(0.03 if step <= 215 else 0.015)}


def _reward_hacked(step: int, noise: Noise) -> Row:
    accuracy = 0.35 + 0.3 * (1 - math.exp(-step / 50)) - 0.0022 * max(0, step - 140)
    reward = 0.2 + 0.6 * (1 - math.exp(-step / 120))
    return {"reward": reward + noise(0.03)} | _evaluated(step, "eval/accuracy", accuracy + noise(0.008))


def _truncated(step: int, noise: Noise) -> Row:
    cut_off = 0.08 + 0.8 / (1 + math.exp(-(step - 120) / 12))
    return {"reward": 0.5 + 0.0005 * step + noise(0.04), "completions/clipped_ratio": cut_off + noise(0.02)}


def _zero_advantage_groups(step: int, noise: Noise) -> Row:
    equal = 0.3 + 0.62 / (1 + math.exp(-(step - 130) / 20))
    reward = 0.5 + 0.45 / (1 + math.exp(-(step - 110) / 30))
    return {"reward": reward + noise(0.02), "frac_reward_zero_std": equal + noise(0.02)}


def _zero_rate(step: int, noise: Noise) -> Row:
    return {"loss": 3.9 + noise(0.03), "learning_rate": 0.0}


def _schedule_ended(step: int, noise: Noise) -> Row:
    return {"loss": _falling(min(step, 170), noise), "learning_rate": 3e-4 * max(0.0, 1 - (step - 1) / 190)}


def _always_clipped(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise), "grad_norm": 6 + 4 * math.exp(-step / 80) + abs(noise(0.8))}


def _never_evaluated(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise)}


def _lr_too_high(step: int, noise: Noise) -> Row:
    return {"reward": 0.3 + 0.012 * step + noise(0.02) if step <= 22 else 0.04 + abs(noise(0.01))}


def _lr_too_low(step: int, noise: Noise) -> Row:
    return {"reward": 0.2 + 0.0003 * step + noise(0.02), "optim/grad_momentum_cos": 0.55 + noise(0.05)}


def _missing_warm_up(step: int, noise: Noise) -> Row:
    harm = 3.0 * (step / 6) * math.exp(1 - step / 6)
    return {"loss": _falling(step, noise) + harm, "learning_rate": 1e-3 * (1 - step / STEPS)}


def _memorising(step: int, noise: Noise) -> Row:
    number = (step - 1) // 100
    loss = {"loss": (2.6, 2.0, 1.5)[number] - 0.0005 * step + noise(0.05), "epoch": float(number + 1)}
    return loss | _evaluated(step, "eval/loss", 2.55 + 0.12 * math.exp(-step / 30) + noise(0.006))


def _chosen_less_likely(step: int, noise: Noise) -> Row:
    share = step / STEPS
    chosen, rejected = -2.4 * share + noise(0.15), -3.6 * share + noise(0.15)
    return {"loss": 0.69 - 0.4 * share + noise(0.03), "rewards/chosen": chosen, "rewards/rejected": rejected}


def _empty_completions(step: int, noise: Noise) -> Row:
    length = 1.2 + 90 / (1 + math.exp((step - 140) / 6)) + abs(noise(0.05))
    return {"reward": 0.35 + noise(0.04), "completions/mean_length": length + (noise(4) if step < 130 else 0)}


def _length_drift(step: int, noise: Noise) -> Row:
    return {"reward": 0.42 + noise(0.04), "completions/mean_length": 120 + 1.4 * step + noise(12)}


def _slow_steps(step: int, noise: Noise) -> Row:
    is_evaluation = step % EVERY == 0
    speed = (2400 if step <= 180 else 900) * (0.2 if is_evaluation else 1.0)
    return {"loss": _falling(step, noise), "tokens_per_second": speed + noise(60)}


def _memory_grows(step: int, noise: Noise) -> Row:
    return {"loss": _falling(step, noise), "gpu_memory_gb": min(18.0, 3.0 * step) + 0.04 * step + noise(0.15)}


RESUMED: Final = (*range(1, 201), *range(186, STEPS + 1))
"""Steps of a run that was resumed from an earlier checkpoint."""
HEALTHY: Final = ExampleRun("healthy", _healthy, ("loss", "eval/loss"))
RUNS: Final = (
    ExampleRun("dead", _dead, ("loss",)),
    ExampleRun("stuck", _stuck, ("loss",)),
    ExampleRun("plateau", _plateau, ("reward",)),
    ExampleRun("nan", _nan, ("loss",)),
    ExampleRun("diverged", _diverged, ("loss",)),
    ExampleRun("spike_recovered", _spike_recovered, ("loss",)),
    ExampleRun("overfit", _overfit, ("loss", "eval/loss")),
    ExampleRun("memorising", _memorising, ("loss", "eval/loss")),
    ExampleRun("reward_collapse", _reward_collapse, ("reward",)),
    ExampleRun("reward_hacked", _reward_hacked, ("reward", "eval/accuracy")),
    ExampleRun("truncated", _truncated, ("completions/clipped_ratio",)),
    ExampleRun("zero_advantage_groups", _zero_advantage_groups, ("frac_reward_zero_std",)),
    ExampleRun("empty_completions", _empty_completions, ("completions/mean_length",)),
    ExampleRun("length_drift", _length_drift, ("completions/mean_length",)),
    ExampleRun("chosen_less_likely", _chosen_less_likely, ("rewards/chosen", "rewards/rejected")),
    ExampleRun("missing_warm_up", _missing_warm_up, ("loss", "learning_rate")),
    ExampleRun("zero_rate", _zero_rate, ("loss", "learning_rate")),
    ExampleRun("schedule_ended", _schedule_ended, ("loss", "learning_rate")),
    ExampleRun("always_clipped", _always_clipped, ("grad_norm",), clip=1.0),
    ExampleRun("never_evaluated", _never_evaluated, ("loss",)),
    ExampleRun("steps_out_of_order", _never_evaluated, ("loss",), steps=RESUMED),
    ExampleRun("slow_steps", _slow_steps, ("tokens_per_second",)),
    ExampleRun("memory_grows", _memory_grows, ("gpu_memory_gb",)),
    ExampleRun("lr_too_high", _lr_too_high, ("reward",)),
    ExampleRun("lr_too_low", _lr_too_low, ("reward", "optim/grad_momentum_cos")),
)  # fmt: skip
