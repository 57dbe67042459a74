"""What each family of faults does to a run that no one steers, and what one fixed remedy makes of it.

    python -m oven_bench.gym.fault_harm --seeds 101 --seeds 102

Each family at its mild end, its middle and its severe end. Harm is in nats a byte, over the twin: the run of the same
seed, data and number of gradient steps without the fault. The remedy comes 10 steps after the onset, whatever the fault
is: back to the last copy before it, and an eighth of the rate from there on. It is not an arm and knows the onset; it
shows which families such a remedy could help at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Annotated, Any

import torch
import typer

from oven_bench.gym.fault import Fault
from oven_bench.gym.faults import catalogue
from oven_bench.gym.seeded_draws import At
from oven_bench.gym.tasks.pretraining.trainee import Pretraining

ONSET, AFTER = 110, 100
"""Gradient steps before the fault, and from it to the end."""
LATER, COPIES_EVERY, CUT = 10, 5, 8
"""The remedy: steps after the onset, steps between two copies, and what the rate is divided by."""
ENDS = {"mild": 0.0, "middle": 0.5, "severe": 1.0}


def families() -> list[type[Fault]]:
    return [family for family in catalogue.families().values() if family.kind == "pretraining" and not family.held_out]


class Seed:
    """One seed's healthy run, which every case of it begins from."""

    def __init__(self, seed: int, onset: int = ONSET) -> None:
        self.seed, self.onset = seed, onset
        trainee = Pretraining(seed)
        self._states: dict[int, Mapping[str, Any]] = {0: trainee.state()}
        self._twins: dict[int, float] = {}
        for step in range(1, onset + AFTER + 1):
            trainee.train_step()
            if step in (onset, onset // COPIES_EVERY * COPIES_EVERY):
                self._states[step] = trainee.state()
            if step in (AFTER, onset + AFTER):  # a fault that is there from the start ends sooner
                self._twins[step] = trainee.quality()

    def harm(self, case: Fault, *, remedied: bool = False) -> float:
        """Nats a byte above the twin; negative: the fault did good."""
        begin = self.onset if case.onset else 0
        trainee = Pretraining(self.seed)
        trainee.restore(self._states[begin])
        trainee.gradient_steps = begin
        while trainee.gradient_steps < begin + AFTER:
            if remedied and trainee.gradient_steps == begin + LATER:
                trainee.restore(self._states[begin // COPIES_EVERY * COPIES_EVERY])
                trainee.actuators.apply("optimizer.lr_scale", 1 / CUT)
            trainee.train_step(case)
        return trainee.quality() - self._twins[begin + AFTER]


def main(
    seeds: Annotated[list[int], typer.Option(help="Seeds of the runs.")] = [101, 102, 103],  # noqa: B006
    family: Annotated[list[str] | None, typer.Option(help="Some of them.", show_default="all")] = None,
) -> None:
    """What each family of faults does to a run that no one steers, and what one fixed remedy makes of it."""
    torch.set_num_threads(1)
    begun = [Seed(seed) for seed in seeds]
    print("| family | end | harm | harm with the remedy |")
    print("|---|---|--:|--:|")
    for one in families():
        if family and one.name not in family:
            continue
        for end, quantile in ENDS.items():
            cases = [one.draw(At(quantile, seed), ONSET) for seed in seeds]
            columns = []
            for remedied in (False, True):
                harms = [start.harm(case, remedied=remedied) for start, case in zip(begun, cases, strict=True)]
                columns.append(f"{fmean(harms):+.3f} ({', '.join(f'{harm:+.2f}' for harm in harms)})")
            print(f"| `{one.name}` | {end} | {' | '.join(columns)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
