"""Simulated curves of what a run costs and how it was set up: speed, memory, warm-up, epochs, preferences, lengths."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from itertools import accumulate

from tests.support.simulated_curves import (
    Curves,
    Family,
    Ill,
    constant_rate,
    cosine_decay,
    decay,
    every,
    noisy,
    with_optimizer,
)


def steady_speed(length: int, rng: random.Random) -> Curves:
    """Tokens per second and step times that vary, with a slow start, and with slow steps for evaluations."""
    share, interval = rng.uniform(0.01, 0.2), rng.randint(10, 50)
    times = noisy([0.5] * length, rng, share, heavy=True)
    for index in range(length):
        times[index] *= 20 if index < 3 else rng.uniform(3, 30) if index % interval == 0 else 1
    return constant_rate(length, rng) | {"step_time": times, "tokens_per_second": [8192 / time for time in times]}


def faster_steps(length: int, rng: random.Random) -> Curves:
    """A run that becomes faster, e.g. because another job on the machine ends."""
    ends = rng.uniform(0.2, 0.8) * length
    return decay(length, rng) | {"samples/s": noisy([50.0 if n < ends else 90.0 for n in range(length)], rng, 0.05)}


def longer_answers(length: int, rng: random.Random) -> Curves:
    """Reinforcement that is rewarded for longer answers, which take longer."""
    lengths = noisy([200 + 600 * n / length for n in range(length)], rng, 0.05)
    reward = [0.1 + 0.6 * n / length + rng.gauss(0, 0.05) for n in range(length)]
    return {"reward": reward, "completions/mean_length": lengths, "step_time": [0.1 * value for value in lengths]}


def full_memory(length: int, rng: random.Random) -> Curves:
    """Memory that is allocated during the first tenth of the run."""
    level = [min(1.0, 0.3 + 7 * n / length) for n in range(length)]
    return decay(length, rng) | {"gpu_memory_gb": noisy([40 * value for value in level], rng, 0.01)}


def peak_memory(length: int, rng: random.Random) -> Curves:
    """The highest memory so far, with batches of random sizes: it grows for long, but ever more slowly."""
    sizes = [20 + 5 * rng.expovariate(1) for _ in range(length)]
    return decay(length, rng) | {"max_memory_allocated": list(accumulate(sizes, max))}


def host_memory(length: int, rng: random.Random) -> Curves:
    """Host memory that wanders, with caches that fill and are freed."""
    level, memory = 10.0, []
    for _ in range(length):
        level = max(5.0, level * math.exp(rng.gauss(0, 0.03)) * (0.6 if rng.random() < 0.02 else 1.0) + 0.05)
        memory.append(min(level, 30.0))
    return decay(length, rng) | {"system/rss_mb": memory}


def smooth_epochs(length: int, rng: random.Random) -> Curves:
    """Several passes over the data without memorising."""
    passes = rng.randint(2, 6)
    epochs = [passes * (index + 1) / length for index in range(length)]
    return cosine_decay(length, rng) | {"epoch": epochs if rng.random() < 0.5 else [float(int(e)) for e in epochs]}


def useful_epochs(length: int, rng: random.Random) -> Curves:
    """A loss that falls in stairs with the passes, while the held-out loss falls, too."""
    passes, height, noise = rng.randint(3, 5), rng.uniform(0.8, 2), rng.uniform(0.01, 0.1)
    pass_of = [min(passes - 1, passes * index // length) for index in range(length)]
    held_out = [height * 0.9**number for number in pass_of]
    return {
        "loss": noisy([height * 0.75**number for number in pass_of], rng, noise),
        "eval/loss": every(max(1, length // (4 * passes)), noisy(held_out, rng, 0.003)),
        "epoch": [float(number) for number in pass_of],
    }


def rough_start(length: int, rng: random.Random) -> Curves:
    """A full rate from the start with noisy losses, large first gradients, and single bad batches, but without harm."""
    curves = with_optimizer(decay(length, rng), length, rng, lambda progress: 1 - 0.9 * progress)
    curves["grad_norm"] = [norm * (1 + 20 * math.exp(-n / 5)) for n, norm in enumerate(curves["grad_norm"])]
    curves["loss"][rng.randrange(min(length, 8))] *= 1.5
    return curves


def preferred(length: int, rng: random.Random) -> Curves:
    """Preference training that makes the chosen answers more likely."""
    share = [index / length for index in range(length)]
    return {
        "loss": [0.6931 - 0.4 * value + rng.gauss(0, 0.04) * value for value in share],
        "rewards/chosen": [0.8 * value + rng.gauss(0, 0.3) for value in share],
        "rewards/rejected": [-2 * value + rng.gauss(0, 0.3) for value in share],
        "logps/chosen": [-200 + 8 * value + rng.gauss(0, 30) for value in share],
        "logps/rejected": [-220 - 20 * value + rng.gauss(0, 30) for value in share],
    }


def short_answers(length: int, rng: random.Random) -> Curves:
    """A task whose answers are single tokens, and become so within the first steps."""
    lengths = [2 + 8 * math.exp(-n / max(1.0, 0.02 * length)) for n in range(length)]
    reward = [0.3 + 0.5 * (1 - math.exp(-3 * n / length)) + rng.gauss(0, 0.03) for n in range(length)]
    return {"reward": reward, "completions/mean_length": lengths}


HEALTHY_GAUGES: Mapping[str, Family] = {
    family.__name__: family
    for family in (
        steady_speed, faster_steps, longer_answers, full_memory, peak_memory, host_memory, smooth_epochs,
        useful_epochs, rough_start, preferred, short_answers,
    )
}  # fmt: skip


def slowed(length: int, start: float, rng: random.Random) -> Curves:
    """Steps take 2.4 to 5 times as long from the onset on, in noise and with slow single steps."""
    times, ratio, onset = steady_speed(length, rng)["step_time"], rng.uniform(2.4, 5), round(start * length)
    times = [min(time, 1.0) * (ratio if index >= onset else 1.0) for index, time in enumerate(times)]
    return decay(length, rng) | {"train/tokens_per_sec": [1000 / time for time in times]}


def leak(length: int, start: float, rng: random.Random) -> Curves:
    """Memory grows linearly, or by a step in each 20th of the run."""
    count = rng.choice((20, length))
    growth = rng.uniform(0.8, 3)
    memory = [8 * (1 + growth * (index * count // length) / count) for index in range(length)]
    return decay(length, rng) | {"memory/allocated_gb": noisy(memory, rng, 0.01)}


def no_warm_up(length: int, start: float, rng: random.Random) -> Curves:
    """A loss that rises to 1.4 to 3 times its start in the first readings, and falls then."""
    first, peak, time = rng.uniform(2, 11), rng.uniform(0.4, 2), max(3.0, 0.02 * length)
    shape = [
        1 + peak * (n / time) * math.exp(1 - n / time) - 0.5 * (1 - math.exp(-n / (3 * time))) for n in range(length)
    ]
    return with_optimizer({"loss": noisy([first * v for v in shape], rng, 0.02)}, length, rng, lambda p: 1 - p)


def memorised(length: int, start: float, rng: random.Random) -> Curves:
    """The loss falls by a quarter at each border of three passes, while the held-out loss does not change."""
    height = rng.uniform(0.8, 3)
    pass_of = [min(2, 3 * index // length) for index in range(length)]
    loss = noisy([height * 0.75**number for number in pass_of], rng, rng.uniform(0.01, 0.06))
    epochs = [float(number) for number in pass_of]
    return {
        "loss": loss,
        "eval/loss": every(max(1, length // 12), noisy([height] * length, rng, 0.003)),
        "epoch": epochs,
    }


def both_less_likely(length: int, start: float, rng: random.Random) -> Curves:
    share = [index / length for index in range(length)]
    return {
        "loss": [0.6931 - 0.3 * value + rng.gauss(0, 0.02) for value in share],
        "rewards/chosen": [-3 * value + rng.gauss(0, 0.3) for value in share],
        "rewards/rejected": [-4 * value + rng.gauss(0, 0.3) for value in share],
    }


def empty(length: int, start: float, rng: random.Random) -> Curves:
    onset = round(start * length)
    lengths = [rng.gauss(120, 10) if index < onset else 1 + abs(rng.gauss(0, 0.1)) for index in range(length)]
    return {"reward": [0.3 + rng.gauss(0, 0.05) for _ in range(length)], "completions/mean_length": lengths}


def ever_longer(length: int, start: float, rng: random.Random) -> Curves:
    lengths = noisy([100 * (1 + 4 * index / length) for index in range(length)], rng, 0.1)
    return {"reward": [0.3 + rng.gauss(0, 0.05) for _ in range(length)], "completions/mean_length": lengths}


ILL_GAUGES: Mapping[str, Ill] = {
    "slowed": Ill("slow_steps", slowed, (0.3, 0.7), 300),
    "leak": Ill("memory_grows", leak, (0.18, 0.22), 120),
    "no_warm_up": Ill("missing_warm_up", no_warm_up, (0.0, 0.0), 120),
    "memorised": Ill("memorising", memorised, (0.333, 0.334), 120),
    "both_less_likely": Ill("chosen_less_likely", both_less_likely, (0.0, 0.0), 60),
    "empty": Ill("empty_completions", empty, (0.3, 0.7), 30),
    "ever_longer": Ill("length_drift", ever_longer, (0.0, 0.0), 40),
}
