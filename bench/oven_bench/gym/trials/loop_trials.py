"""`bench loop-trials`: a user's own loop with trials off, of risky changes, of every change, and without a controller.

Each run has the real client, mesh, agents and graph in its own process, without a bus. A run ends when it has its
optimizer steps, so that steps of branches come on top of them: they are reported, and not charged to the loss. The
time of a step is measured in another call, in which three trainings of one seed take turns.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, Literal

import torch
from typer import Option

from oven_bench.bench_command import Bench, FirstSeed, Jobs, Json, print_object
from oven_bench.fixed_rules import Alone, RuleLink
from oven_bench.gym.arms.controller import controller_link, prior
from oven_bench.gym.arms.in_memory_link import LoopLink
from oven_bench.gym.trials.raw_loop import RawLoop, Size
from oven_bench.progress import progress
from oven_bench.statistics import bootstrapped, paired
from oven_bench.worker_pool import workers
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Receipt
from oven_core.protocol.trial_messages import TrialEnded
from oven_learner.link.link_interface import Link

Arm = Literal["alone", "off", "risky", "all"]
ARMS: tuple[Arm, ...] = ("alone", "off", "risky", "all")
"""No controller, and the controller with `rules.trials`."""
RATES: Mapping[str, float] = {"good": 1.0, "high": 8.0}
"""Times the good rate."""
COMPARED: tuple[tuple[Arm, Arm], ...] = (("off", "alone"), ("risky", "off"), ("all", "off"))
BLOCK = 5
"""Steps of one turn, when time is measured."""
QUICK = Size(steps=40, warmup=4, micro_batches=1, rows=2)
"""What comes out says that the bench runs, and nothing else."""


@dataclass(frozen=True, slots=True)
class Run:
    """What is trained. Plain values for a worker."""

    arm: Arm
    rate: str
    seed: int
    size: Size


@dataclass(frozen=True, slots=True)
class Ended:
    """Its outcome."""

    run: Run
    loss: float
    """Nats per byte, on held-out rows that no arm has seen."""
    computed: int
    """Gradient steps, those that branches and rollbacks threw away included."""
    changes: int
    """Applied."""
    trials: Sequence[TrialEnded]


def train(run: Run) -> Ended:
    loop, link = RawLoop(run.seed, RATES[run.rate], run.size), _link(run.arm, run.seed)
    for _ in loop.train(link):
        pass
    bodies = [event.body for event in link.events] if isinstance(link, LoopLink) else []
    changes = sum(isinstance(body, Receipt) and body.status == "applied" for body in bodies)
    return Ended(run, loop.quality(), loop.computed, changes, [body for body in bodies if isinstance(body, TrialEnded)])


def _link(arm: Arm, seed: int) -> Link:
    if arm == "alone":
        return RuleLink(Alone())
    return controller_link(f"loop-{seed}", None, prior(None), trials=arm)


@dataclass(frozen=True, slots=True)
class Block:
    """On-CPU seconds of the same steps in three trainings that took turns."""

    risky_s: float
    off_s: float
    without_s: float
    """As `off`, of a loop that is not written for trials: it reads its own loader, and evaluates to a mean."""
    has_trial: bool


def timed(seed: int, size: Size) -> list[Block]:
    """Each of three trainings from the good rate, BLOCK steps at a time. Who comes first changes with each turn."""
    loops = [RawLoop(seed, 1.0, size) for _ in range(3)]
    trainings = [
        loops[0].train(_link("risky", seed)),
        loops[1].train(_link("off", seed)),
        loops[2].train(_link("off", seed), tries=False),
    ]
    blocks = []
    for number in range(size.steps // BLOCK):
        seconds, tried, whole = [0.0, 0.0, 0.0], False, True
        for turn in range(3):
            index = (number + turn) % 3
            began = time.process_time()
            played = _steps(trainings[index])
            seconds[index] = time.process_time() - began
            tried, whole = tried or any(played), whole and len(played) == BLOCK
        if not whole:  # one has ended
            break
        blocks.append(Block(seconds[0], seconds[1], seconds[2], tried))
    for training in trainings:
        training.close()
    return blocks[1:]  # the first begins the runs, and evaluates


def _steps(training: Iterator[bool]) -> list[bool]:
    return [played for _, played in zip(range(BLOCK), training, strict=False)]


def figures(ended: Sequence[Ended], blocks: Sequence[Block]) -> dict[str, Any]:
    """One flat object. Differences of losses are of the same seeds, with a 95 % t interval; below 0 is better."""
    found: dict[str, Any] = {"seeds": len({one.run.seed for one in ended})}
    for rate in RATES:
        of = {arm: _of(ended, arm, rate) for arm in ARMS}
        for each, runs in of.items():
            found |= {f"{name}_{rate}_{each}": value for name, value in _summary(runs).items()}
        for arm, other in COMPARED:
            difference = paired([run.loss for run in of[arm]], [run.loss for run in of[other]])
            name = f"loss_difference_{rate}_{arm}_{other}"
            found |= {name: round(difference.mean, 4)}
            found |= {f"{name}_low": round(difference.low, 4), f"{name}_high": round(difference.high, 4)}
    return found | times(blocks)


def _of(ended: Sequence[Ended], arm: Arm, rate: str) -> list[Ended]:
    chosen = [one for one in ended if one.run.arm == arm and one.run.rate == rate]
    return sorted(chosen, key=lambda one: one.run.seed)


def _summary(runs: Sequence[Ended]) -> dict[str, float | int]:
    trials = [trial for run in runs for trial in run.trials]
    completed = [trial for trial in trials if trial.status == "completed"]
    thrown, computed = sum(trial.extra for trial in trials), sum(run.computed for run in runs)
    return {
        "loss": round(fmean(run.loss for run in runs), 4),
        "changes": sum(run.changes for run in runs),
        "trials": len(completed),
        "trials_kept": sum(bool(trial.kept) for trial in completed),
        "trials_not_made": len(trials) - len(completed),
        "steps_thrown_away": thrown,
        "steps_computed": computed,
        "thrown_away_share": round(thrown / computed, 4),
    }


def times(blocks: Sequence[Block]) -> dict[str, Any]:
    """How many times as long a step takes where trials could be made and none was, with a 95 % bootstrap interval over
    blocks. What was not measured is null."""
    counted = [block for block in blocks if not block.has_trial]
    found: dict[str, Any] = {"time_blocks": len(counted), "time_blocks_with_trials": len(blocks) - len(counted)}
    pairs = {
        "step_time_risky_off": [(block.risky_s, block.off_s) for block in counted],
        "step_time_risky_without": [(block.risky_s, block.without_s) for block in counted],
    }
    for name, of in pairs.items():
        ratio = bootstrapped(of, _ratio) if len(of) > 1 else None
        found[name] = round(ratio.mean, 4) if ratio else None
        found[f"{name}_low"] = round(ratio.low, 4) if ratio else None
        found[f"{name}_high"] = round(ratio.high, 4) if ratio else None
    return found


def _ratio(pairs: Sequence[tuple[float, float]]) -> float:
    return sum(one for one, _ in pairs) / sum(other for _, other in pairs)


def _one_thread() -> None:
    torch.set_num_threads(1)


def bench(
    seeds: Annotated[int, Option(min=2, help="Runs of each arm at each rate.")] = 3,
    first_seed: FirstSeed = 1,
    steps: Annotated[int, Option(min=40, help="Optimizer steps of each run.")] = Size().steps,
    jobs: Jobs = 2,
    quick: Annotated[bool, Option("--quick", help="40 small steps, to see that it runs; no figure to keep.")] = False,
    as_json: Json = False,
) -> int:
    if steps <= Size().warmup:
        raise ConfigError(f"--steps {steps} ends within the warm-up; give more than {Size().warmup}")
    size = QUICK if quick else Size(steps=steps)
    drawn = range(first_seed, first_seed + seeds)
    runs = [Run(arm, rate, seed, size) for seed in drawn for rate in RATES for arm in ARMS]
    ended = []
    os.environ.update(OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE")
    with progress("runs", len(runs)) as advance, workers(jobs, _one_thread) as pool:
        for future in as_completed([pool.submit(train, run) for run in runs]):
            ended.append(future.result())
            advance(1, f"{ended[-1].run.rate} {ended[-1].run.arm}")
    _one_thread()
    print_object({"steps": size.steps, **figures(ended, timed(first_seed, size))}, as_json)
    return 0


BENCH = Bench(
    "loop-trials",
    bench,
    "a user's own loop over text, from a good rate and from one eight times as high: trials off, risky, all",
    "--seeds 3 --json",
)
