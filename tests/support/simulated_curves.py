"""Simulated training curves as imported logs show them: healthy ones of many families, and ill ones with an onset."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from oven_agents.diagnosis.run_record import RunRecord
from oven_core.protocol.messages import ActuatorSpec, Horizon, RunStarted
from oven_runs.metrics.metric_names import announcement_order, metric_spec

Curves = dict[str, list[float]]
"""Values of each metric at each logged step. NO_VALUE marks steps at which the metric was not logged."""
Family = Callable[[int, random.Random], Curves]
"""Returns curves of this many logged steps."""
NO_VALUE = -math.inf
MIXTURE = ActuatorSpec(name="data.mixture", kind="simplex", choices=("a", "b"), moves_own_metric=True)


def record_of_curves(
    curves: Mapping[str, Sequence[float]],
    *,
    first_step: int = 1,
    step_size: int = 1,
    changes: Sequence[tuple[int, str]] = (),
) -> RunRecord:
    """Return the record of a run with these curves. `changes` are ticks and names of knobs that were changed."""
    specs = tuple(metric_spec(name) for name in sorted(curves, key=announcement_order))
    length = max(map(len, curves.values()))
    horizon = Horizon(max_steps=first_step + (length - 1) * step_size)
    run = RunStarted(incarnation=1, n=0, recipe="imported", metrics=specs, horizon=horizon, actuators=(MIXTURE,))
    record = RunRecord(run=run, start_count=1, changes=list(changes))
    for index in range(length):
        readings = {name: values[index] for name, values in curves.items() if values[index] != NO_VALUE}
        record.add_readings(index + 1, first_step + index * step_size, readings)
    return record


def student(rng: random.Random, freedom: float = 3) -> float:
    """Return a value of Student's t distribution, which has outliers for few degrees of freedom."""
    return rng.gauss(0, 1) / math.sqrt(rng.gammavariate(freedom / 2, 2) / freedom)


def every(interval: int, values: Sequence[float]) -> list[float]:
    """Return the values with only every `interval`-th one logged, and the last one."""
    return [
        value if (index + 1) % interval == 0 or index == len(values) - 1 else NO_VALUE
        for index, value in enumerate(values)
    ]


def exponential(length: int, rng: random.Random) -> list[float]:
    """Return a loss that decays exponentially, without noise."""
    floor, gain, time = rng.uniform(0.2, 2.5), rng.uniform(0.8, 6), length * rng.uniform(0.03, 0.4)
    return [floor + gain * math.exp(-index / time) for index in range(length)]


def noisy(values: Sequence[float], rng: random.Random, share: float | None = None, heavy: bool = False) -> list[float]:
    """Return a positive curve with multiplicative noise with this standard deviation (1 % to 10 % by default)."""
    share = math.exp(rng.uniform(math.log(0.01), math.log(0.1))) if share is None else share
    return [value * max(0.01, 1 + share * (student(rng) if heavy else rng.gauss(0, 1))) for value in values]


def with_optimizer(curves: Curves, length: int, rng: random.Random, rate: Callable[[float], float]) -> Curves:
    """Return the curves with a learning rate, as a function of the progress from 0 to 1, and a gradient norm."""
    rates = [3e-4 * rate(index / max(1, length - 1)) for index in range(length)]
    return curves | {"learning_rate": rates, "grad_norm": [math.exp(rng.gauss(0, 0.4)) for _ in range(length)]}


def cosine(progress: float) -> float:
    return min(1.0, progress / 0.03) * (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float) -> float:
    return 1 - progress


def decay(length: int, rng: random.Random) -> Curves:
    return {"loss": noisy(exponential(length, rng), rng)}


def decay_with_outliers(length: int, rng: random.Random) -> Curves:
    return {"loss": noisy(exponential(length, rng), rng, heavy=True)}


def power_law(length: int, rng: random.Random) -> Curves:
    floor, exponent = rng.uniform(1, 3), rng.uniform(0.2, 0.5)
    loss = [floor + 8 * (index + 1) ** -exponent for index in range(length)]
    curves = {"loss": noisy(loss, rng), "eval/loss": every(max(1, length // 20), noisy(loss, rng, 0.01))}
    return with_optimizer(curves, length, rng, cosine)


def warmup_bump(length: int, rng: random.Random) -> Curves:
    bump, width = rng.uniform(0.05, 0.5), max(1.0, 0.03 * length)
    shape = [1 + bump * (index / width) * math.exp(1 - index / width) for index in range(length)]
    loss = [value * factor for value, factor in zip(exponential(length, rng), shape, strict=True)]
    return with_optimizer({"loss": noisy(loss, rng)}, length, rng, lambda p: min(1.0, p / 0.05))


def cosine_decay(length: int, rng: random.Random) -> Curves:
    return with_optimizer(decay(length, rng), length, rng, cosine)


def flat_after_learning(length: int, rng: random.Random) -> Curves:
    floor, learnt = rng.uniform(0.3, 3), max(1.0, length * rng.uniform(0.02, 0.2))
    loss = [floor * (1 + 2 * math.exp(-3 * index / learnt)) for index in range(length)]
    return with_optimizer({"loss": noisy(loss, rng, rng.uniform(0.05, 0.3))}, length, rng, lambda p: 1.0)


def healing_spikes(length: int, rng: random.Random) -> Curves:
    loss = noisy(exponential(length, rng), rng, 0.03)
    for _ in range(rng.randint(1, 4)):
        start, height, time = rng.randrange(length), rng.uniform(0.5, 5), max(0.5, length * rng.uniform(0, 0.01))
        for index in range(start, min(length, start + int(6 * time) + 1)):
            loss[index] *= 1 + height * math.exp(-(index - start) / time)
    if length > 20:  # the last readings are healthy, otherwise nobody knows whether the spike heals
        loss[-length // 20 :] = noisy(exponential(length, random.Random(0))[-length // 20 :], rng, 0.0)
        level = min(loss[: -length // 20])
        loss[-length // 20 :] = [level * (1 + 0.03 * rng.gauss(0, 1)) for _ in loss[-length // 20 :]]
    return {"loss": loss}


def small_evaluations(length: int, rng: random.Random) -> Curves:
    """A classifier: accuracies on 50 to 300 examples, and a held-out loss that wobbles."""
    examples, best, time = rng.randint(50, 300), rng.uniform(0.6, 0.95), length * rng.uniform(0.05, 0.3)
    shares = [0.3 + (best - 0.3) * (1 - math.exp(-index / time)) for index in range(length)]
    counts = [sum(rng.random() < share for _ in range(examples)) / examples for share in every_index(shares, length)]
    interval = max(1, length // 20)
    accuracy = [NO_VALUE] * length
    for number, count in zip(range(interval - 1, length, interval), counts, strict=False):
        accuracy[number] = count
    held_out = [0.3 + 1.2 * (1 - share) for share in shares]
    return {
        "loss": noisy([0.9 * value for value in held_out], rng, 0.1),
        "eval/accuracy": accuracy,
        "eval/loss": every(interval, noisy(held_out, rng, rng.uniform(0.01, 0.06))),
    }


def every_index(values: Sequence[float], length: int) -> list[float]:
    interval = max(1, length // 20)
    return list(values[interval - 1 :: interval])


def slight_overfit(length: int, rng: random.Random) -> Curves:
    """The held-out loss ends 3 % above its best value, while the training loss goes on falling."""
    best, turn = rng.uniform(0.5, 2), rng.uniform(0.4, 0.7)
    held_out = [
        best * (1 + 0.6 * max(0.0, 1 - progress / turn) ** 2 + 0.03 * max(0.0, (progress - turn) / (1 - turn)))
        for progress in (index / max(1, length - 1) for index in range(length))
    ]
    loss = [best * (1.5 - 0.9 * index / length) for index in range(length)]
    return {"loss": noisy(loss, rng, 0.05), "eval/loss": every(max(1, length // 15), noisy(held_out, rng, 0.004))}


def slow_reward(length: int, rng: random.Random) -> Curves:
    start, gain, noise = rng.uniform(0.1, 0.4), rng.uniform(0.1, 0.4), rng.uniform(0.01, 0.1)
    return {"reward": [start + gain * index / length + rng.gauss(0, noise) for index in range(length)]}


def noisy_return(length: int, rng: random.Random) -> Curves:
    """Returns of episodes whose noise is as large as the whole gain, with outliers."""
    gain, offset = rng.uniform(50, 500), rng.uniform(-300, 100)
    time = length * rng.uniform(0.1, 0.5)
    returns = [
        offset + gain * (1 - math.exp(-index / time)) + rng.uniform(0.3, 1.0) * gain * 0.5 * student(rng, 4)
        for index in range(length)
    ]
    return {"reward": returns, "value_loss": noisy([10.0] * length, rng, 0.5), "entropy": [1.0] * length}


def saturated_return(length: int, rng: random.Random) -> Curves:
    """Returns that reach their ceiling and then drop for single episodes only."""
    time = length * rng.uniform(0.05, 0.2)
    returns = [min(500.0, 20 + 520 * (1 - math.exp(-index / time)) + rng.gauss(0, 30)) for index in range(length)]
    return {"reward": [value if rng.random() > 0.03 else value * rng.random() for value in returns]}


def resumed(length: int, rng: random.Random) -> Curves:
    """The second part of a training repeats some steps. `steps` are not part of the curves."""
    return cosine_decay(length, rng)


def continued(length: int, rng: random.Random) -> Curves:
    """A log that starts late in a training, so its loss hardly falls."""
    level = rng.uniform(1.5, 3)
    loss = [level * (1 - 0.01 * index / length) for index in range(length)]
    return with_optimizer({"loss": noisy(loss, rng, 0.03)}, length, rng, linear)


def dpo(length: int, rng: random.Random) -> Curves:
    """Preference training: the loss starts at log 2 and falls a little or a lot."""
    fall, time = rng.uniform(0.1, 0.6), length * rng.uniform(0.1, 0.6)
    share = [1 - math.exp(-index / time) for index in range(length)]
    curves = {
        "loss": [0.6931 - fall * value + rng.gauss(0, 0.04) * value for value in share],
        "rewards/accuracies": [0.5 + 0.35 * value + rng.gauss(0, 0.08) for value in share],
        "rewards/margins": [4 * fall * value + rng.gauss(0, 0.1) for value in share],
        "rewards/chosen": [-fall * value + rng.gauss(0, 0.1) for value in share],
        "rewards/rejected": [-5 * fall * value + rng.gauss(0, 0.1) for value in share],
    }
    return with_optimizer(curves, length, rng, linear)


def grpo(length: int, rng: random.Random) -> Curves:
    """A policy whose loss is 0 at every step, as with one update per batch, while the reward rises."""
    noise, start, gain = rng.uniform(0.03, 0.12), rng.uniform(0.1, 0.5), rng.uniform(0.15, 0.45)
    time = length * rng.uniform(0.2, 0.8)
    reward = [start + gain * (1 - math.exp(-index / time)) + rng.gauss(0, noise) for index in range(length)]
    curves = {
        "loss": [0.0] * length,
        "reward": reward,
        "reward_std": [abs(0.3 + rng.gauss(0, 0.05)) for _ in range(length)],
        "frac_reward_zero_std": [min(1.0, max(0.0, rng.gauss(0.3, 0.15))) for _ in range(length)],
        "kl": [0.001 + 0.05 * index / length * math.exp(rng.gauss(0, 0.3)) for index in range(length)],
        "entropy": [0.3 + 0.3 * math.exp(-index / time) + rng.gauss(0, 0.03) for index in range(length)],
        "completions/mean_length": [200 + 40 * index / length + rng.gauss(0, 15) for index in range(length)],
        "completions/clipped_ratio": [min(1.0, max(0.0, rng.gauss(0.1, 0.08))) for _ in range(length)],
    }
    return with_optimizer(curves, length, rng, linear)


def constant_rate(length: int, rng: random.Random) -> Curves:
    return with_optimizer(decay(length, rng), length, rng, lambda progress: 1.0)


def broken_user_metric(length: int, rng: random.Random) -> Curves:
    return decay(length, rng) | {"my/score": [math.nan] * length, "aux_loss": [math.nan] * length}


def infinite_gradients(length: int, rng: random.Random) -> Curves:
    """Mixed precision: single gradients overflow while the loss scale adapts."""
    curves = constant_rate(length, rng)
    for _ in range(max(1, length // 100)):
        curves["grad_norm"][rng.randrange(max(1, length - 1))] = math.inf
    return curves


def epochs(length: int, rng: random.Random) -> Curves:
    """Fine-tuning over three epochs: the loss falls in stairs, the held-out loss turns a little in the last one."""
    height, noise = rng.uniform(0.8, 2), rng.uniform(0.03, 0.12)
    stairs = [height * (1.0, 0.85, 0.72)[min(2, 3 * index // length)] for index in range(length)]
    held_out = [height * (1.02, 0.97, 0.98)[min(2, 3 * index // length)] for index in range(length)]
    curves = {"loss": noisy(stairs, rng, noise), "eval/loss": every(max(1, length // 6), noisy(held_out, rng, 0.003))}
    return with_optimizer(curves, length, rng, linear)


def correlated(length: int, rng: random.Random) -> Curves:
    """A loss whose noise has a memory, as if the data were hardly shuffled or the values were smoothed."""
    level, memory, scale = 0.0, rng.uniform(0.5, 0.95), rng.uniform(0.02, 0.06)
    loss = []
    for value in exponential(length, rng):
        level = memory * level + scale * math.sqrt(1 - memory**2) * rng.gauss(0, 1)
        loss.append(value * (1 + level))
    return {"loss": loss}


def warm_restarts(length: int, rng: random.Random) -> Curves:
    """Cosine restarts: the loss rises a little at each restart and falls again."""
    count = rng.randint(2, 4)
    rate = [(1 + math.cos(math.pi * (index * count / length % 1))) / 2 for index in range(length)]
    loss = [value * (1 + 0.15 * share) for value, share in zip(exponential(length, rng), rate, strict=True)]
    curves = {"loss": noisy(loss, rng, 0.03)}
    return with_optimizer(curves, length, rng, lambda progress: (1 + math.cos(math.pi * (progress * count % 1))) / 2)


def rounded(length: int, rng: random.Random) -> Curves:
    """A small problem that is solved, so the log rounds the loss to 0."""
    time, digits = length * rng.uniform(0.03, 0.15), rng.choice((2, 3, 4))
    loss = [rng.uniform(0.9, 1.1) * math.exp(-index / time) for index in range(length)]
    return {"loss": [round(value, digits) for value in loss], "eval/accuracy": every(5, [1.0] * length)}


def negative_loss(length: int, rng: random.Random) -> Curves:
    """A log-likelihood that passes 0 on its way down."""
    offset = rng.uniform(2, 5)
    return {"loss": [value - offset + rng.gauss(0, 0.05) for value in exponential(length, rng)]}


def harder_data(length: int, rng: random.Random) -> Curves:
    """A curriculum: the loss rises by up to 15 % when harder data come, and falls again."""
    loss, start, rise = exponential(length, rng), rng.uniform(0.4, 0.7) * length, rng.uniform(0.05, 0.15)
    time = 0.1 * length
    factors = [1 + rise * math.exp(-(index - start) / time) * (index >= start) for index in range(length)]
    return {"loss": noisy([a * b for a, b in zip(loss, factors, strict=True)], rng, 0.02)}


def drifting_return(length: int, rng: random.Random) -> Curves:
    """Returns that rise, with slow drifts up and down of a fifth of the gain."""
    gain, drift, memory = rng.uniform(10, 300), 0.0, math.exp(-1 / max(1.0, 0.05 * length))
    time, returns = length * rng.uniform(0.1, 0.5), []
    for index in range(length):
        drift = memory * drift + math.sqrt(1 - memory**2) * rng.gauss(0, 0.2)
        returns.append(gain * (1 - math.exp(-index / time) + drift + 0.1 * rng.gauss(0, 1)))
    return {"reward": returns, "entropy": [1 - 0.5 * index / length + rng.gauss(0, 0.02) for index in range(length)]}


HEALTHY: Mapping[str, Family] = {
    family.__name__: family
    for family in (
        decay, decay_with_outliers, power_law, warmup_bump, cosine_decay, flat_after_learning, healing_spikes,
        small_evaluations, slight_overfit, slow_reward, noisy_return, saturated_return, resumed, continued, dpo, grpo,
        constant_rate, broken_user_metric, infinite_gradients, epochs, correlated, warm_restarts,
        rounded, negative_loss, harder_data, drifting_return,
    )
}  # fmt: skip


class Ill(NamedTuple):
    """An ill family: the kind to report, and how to simulate it."""

    kind: str
    curves: Callable[[int, float, random.Random], Curves]
    """Returns curves of this many steps that are ill from this share of the run on."""
    shares: tuple[float, float]
    """Range of the share of the run at which the fault begins."""
    min_length: int


def _ill_after(healthy: Sequence[float], start: float, ill: Callable[[int, float], float]) -> list[float]:
    """Replace the values after share `start` of the run by `ill(values since the onset, healthy value)`."""
    onset = round(start * len(healthy))
    return [value if index < onset else ill(index - onset, value) for index, value in enumerate(healthy)]


def nan_loss(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": _ill_after(noisy(exponential(length, rng), rng), start, lambda count, value: math.nan)}


def overflowed_loss(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": _ill_after(noisy(exponential(length, rng), rng), start, lambda count, value: math.inf)}


def jump(length: int, start: float, rng: random.Random) -> Curves:
    """The loss jumps to a multiple of its first value and stays there."""
    loss = exponential(length, rng)
    high = loss[0] * rng.uniform(1.2, 4)
    return {"loss": noisy(_ill_after(loss, start, lambda count, value: high), rng, heavy=True)}


def blow_up(length: int, start: float, rng: random.Random) -> Curves:
    """The loss doubles every 1 % of the run, up to a limit."""
    doubling = max(1.0, 0.01 * length)
    loss = exponential(length, rng)
    return {"loss": noisy(_ill_after(loss, start, lambda count, value: value * min(2 ** (count / doubling), 1e6)), rng)}


def zero_loss(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": _ill_after(noisy(exponential(length, rng), rng), start, lambda count, value: 0.0)}


def zero_gradient(length: int, start: float, rng: random.Random) -> Curves:
    norms = _ill_after([math.exp(rng.gauss(0, 0.3)) for _ in range(length)], start, lambda count, value: 0.0)
    return {"loss": noisy([2.0] * length, rng), "grad_norm": norms, "learning_rate": [1e-4] * length}


def constant_loss(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": _ill_after(noisy(exponential(length, rng), rng), start, lambda count, value: 0.6931471824645996)}


def at_chance(length: int, start: float, rng: random.Random) -> Curves:
    chance = math.log(rng.choice((2, 3, 5, 10)))
    return {"loss": noisy([chance] * length, rng, rng.uniform(0.001, 0.02))}


def flat_loss(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": noisy([rng.uniform(3, 12)] * length, rng, rng.uniform(0.001, 0.02))}


def flat_return(length: int, start: float, rng: random.Random) -> Curves:
    return {"reward": [0.4 + rng.gauss(0, 0.1) for _ in range(length)]}


def clear_overfit(length: int, start: float, rng: random.Random) -> Curves:
    """The held-out loss rises by 50 % to 150 % above its best value while the training loss goes on falling."""
    rise, best = rng.uniform(0.5, 1.5), rng.uniform(0.5, 2)
    shares = [index / (length - 1) for index in range(length)]
    held_out = [
        best * (1 + 0.8 * max(0.0, 1 - share / start) ** 2 + rise * max(0.0, (share - start) / (1 - start)))
        for share in shares
    ]
    loss = [best * (1.6 * math.exp(-3 * share)) for share in shares]
    return {"loss": noisy(loss, rng, 0.03), "eval/loss": every(max(1, length // 40), noisy(held_out, rng, 0.01))}


def cut_off(length: int, start: float, rng: random.Random) -> Curves:
    clipped = [min(1.0, max(0.0, rng.gauss(0.9, 0.05))) for _ in range(length)]
    return slow_reward(length, rng) | {"completions/clipped_ratio": clipped}


def same_answer(length: int, start: float, rng: random.Random) -> Curves:
    """The policy gives one answer to every prompt, so a quality never changes again."""
    onset = round(start * length)
    accuracy = [0.4 + 0.3 * index / max(1, onset) + rng.gauss(0, 0.02) for index in range(length)]
    return {
        "reward": _ill_after([0.5 + rng.gauss(0, 0.05) for _ in range(length)], start, lambda count, value: 0.2),
        "rewards/accuracy": _ill_after(accuracy, start, lambda count, value: 0.125),
    }


def lost_reward(length: int, start: float, rng: random.Random) -> Curves:
    onset, noise = round(start * length), rng.uniform(0.01, 0.06)
    rising = [0.2 + 0.6 * index / max(1, onset) for index in range(length)]
    reward = _ill_after(rising, start, lambda count, value: 0.1)
    return {"reward": [value + rng.gauss(0, noise) for value in reward]}


def lost_return(length: int, start: float, rng: random.Random) -> Curves:
    """Returns below 0 that rise and then fall back to the level of the start."""
    onset = round(start * length)
    rising = [-300 + 250 * index / max(1, onset) for index in range(length)]
    returns = _ill_after(rising, start, lambda count, value: -280.0)
    return {"reward": [value + 20 * student(rng, 5) for value in returns]}


def no_rate(length: int, start: float, rng: random.Random) -> Curves:
    return {"loss": noisy([2.0] * length, rng), "learning_rate": [0.0] * length}


def finished_schedule(length: int, start: float, rng: random.Random) -> Curves:
    return with_optimizer(decay(length, rng), length, rng, lambda progress: max(0.0, 1 - progress / start))


ILL: Mapping[str, Ill] = {
    "nan_loss": Ill("nan", nan_loss, (0.1, 0.6), 10),
    "overflowed_loss": Ill("nan", overflowed_loss, (0.1, 0.6), 10),
    "jump": Ill("diverged", jump, (0.4, 0.8), 25),
    "blow_up": Ill("diverged", blow_up, (0.4, 0.8), 25),
    "zero_loss": Ill("dead", zero_loss, (0.0, 0.4), 20),
    "zero_gradient": Ill("dead", zero_gradient, (0.0, 0.4), 20),
    "constant_loss": Ill("dead", constant_loss, (0.0, 0.4), 20),
    "at_chance": Ill("stuck", at_chance, (0.0, 0.0), 10),
    "flat_loss": Ill("stuck", flat_loss, (0.0, 0.0), 10),
    "flat_return": Ill("plateau", flat_return, (0.0, 0.0), 400),
    "clear_overfit": Ill("overfit", clear_overfit, (0.2, 0.6), 40),
    "cut_off": Ill("truncated", cut_off, (0.0, 0.0), 10),
    "same_answer": Ill("reward_collapse", same_answer, (0.2, 0.45), 160),
    "lost_reward": Ill("reward_collapse", lost_reward, (0.3, 0.7), 110),
    "lost_return": Ill("reward_collapse", lost_return, (0.3, 0.7), 60),
    "no_rate": Ill("zero_rate", no_rate, (0.0, 0.0), 20),
    "finished_schedule": Ill("schedule_ended", finished_schedule, (0.3, 0.7), 20),
}
