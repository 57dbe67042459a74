"""`bench reputation`: after how many outcomes each kind of character is no longer heard, and what an honest one keeps.

Pure arithmetic through the real mesh, no bus: see `oven_bench.mesh.simulated_swarm`. Each run has two honest
agents, which are right 7 times in 10 and say so, and the character; they take turns. Exit code 1 if one that is always
wrong was heard for longer than the bound that follows from the rules, or the honest do not keep what they began with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.mesh.simulated_swarm import Character, Swarm
from oven_core.mesh.reputation import outcomes_until_silent
from oven_core.protocol.rules import Rules

HONEST = 0.7
LUCK = 10


def _honestly(n: int, rng: Random) -> int:
    return 1 if rng.random() < HONEST else -1


def _wrong(n: int, rng: Random) -> int:
    return -1


def _nothing(n: int, rng: Random) -> int:
    return 0


def _coin(n: int, rng: Random) -> int:
    return 1 if rng.random() < 0.5 else -1


def _lucky(n: int, rng: Random) -> int:
    return 1 if n < LUCK else _coin(n, rng)


HONEST_ONES = tuple(Character(name, HONEST, _honestly, honest=True) for name in ("honest1", "honest2"))
KINDS: dict[str, tuple[Character, ...]] = {
    "adversary": (Character("adversary", 0.9, _wrong),),
    "pair": (Character("pair1", 0.6, _wrong, ally="pair2"), Character("pair2", 0.6, _wrong, ally="pair1")),
    "timid_pair": (Character("timid1", 0.05, _wrong, ally="timid2"), Character("timid2", 0.05, _wrong, ally="timid1")),
    "freerider": (Character("freerider", 0.9, _wrong, backs_honest=True),),
    "coin": (Character("coin", 0.9, _coin),),
    "lucky": (Character("lucky", 0.9, _lucky),),
}
BUSYBODY = Character("busybody", 0.9, _nothing)
DRIFT, CONTROLS = 0.01, 0.3
"""Of the level at each tick, and the share of withheld decisions that is to see through it."""
ALWAYS_WRONG = ("adversary", "pair", "timid_pair")


@dataclass(frozen=True, slots=True)
class Episode:
    """`silent_after`: outcomes of its decisions until none of its kind makes a quorum, None if that never came;
    `later`: of its turns after that, the share that was adopted all the same. `worth` is the kind's part of all
    reputation at the end, and `honest` the honest ones' mean reputation over the run."""

    silent_after: int | None
    later: float
    worth: float
    honest: float
    honest_silent: float


def episode(kind: str, seed: int, rounds: int = 30, rules: Rules | None = None) -> Episode:
    """Every character proposes once a round."""
    rules, suspects = rules or Rules(), KINDS[kind]
    swarm = Swarm((*HONEST_ONES, *suspects), seed, rules)
    names, honest = [who.name for who in suspects], [who.name for who in HONEST_ONES]
    outcomes, silent_after, later, kept = 0, None, [], []
    for _ in range(rounds):
        for name in (*honest, *names):
            turn = swarm.turn(name)
            kept += [turn.reputations.get(one, 1.0) for one in honest]
            if name not in names:
                continue
            if silent_after is not None:
                later.append(turn.adopted)
            outcomes += turn.outcome is not None and turn.outcome.scored
            quiet = all(turn.reputations.get(one, 1.0) < rules.least_reputation for one in names)
            if silent_after is None and quiet:
                silent_after = outcomes
    assert swarm.mesh.divergence is None
    held = swarm.mesh.state.reputations
    worth = sum(held[name] for name in names) / sum(held.values())
    silent = fmean(value < rules.least_reputation for value in kept)
    return Episode(silent_after, fmean(later) if later else 0.0, worth, fmean(kept), silent)


def drifting(share: float, seed: int, rounds: int = 30) -> float:
    """The reputation, at the end of its turns, of one whose changes do nothing where everything improves anyway."""
    swarm = Swarm((BUSYBODY,), seed, Rules(control_share=share), DRIFT)
    for _ in range(rounds):
        swarm.turn(BUSYBODY.name)
    return swarm.mesh.state.reputations.get(BUSYBODY.name, 1.0)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The middle 95 % of the seeds, by nearest rank."""
    ordered = sorted(values)
    cut = int(0.025 * len(ordered))
    return ordered[cut], ordered[len(ordered) - 1 - cut]


def measure(seeds: int, rounds: int, rules: Rules | None = None) -> dict[str, Any]:
    rules = rules or Rules()
    found: dict[str, Any] = {"seeds": seeds, "rounds": rounds}
    kept: list[float] = []
    unheard: list[float] = []
    for kind, characters in KINDS.items():
        runs = [episode(kind, seed, rounds, rules) for seed in range(1, seeds + 1)]
        silent = [run.silent_after for run in runs if run.silent_after is not None]
        low, high = interval(silent) if silent else (None, None)
        found |= {
            f"outcomes_until_silent_{kind}": round(fmean(silent), 3) if silent else None,
            f"outcomes_until_silent_{kind}_low": low,
            f"outcomes_until_silent_{kind}_high": high,
            f"silenced_{kind}": len(silent) / seeds,
            f"adopted_later_{kind}": round(fmean(run.later for run in runs), 3),
            f"worth_{kind}": round(fmean(run.worth for run in runs), 3),
        }
        if kind in ALWAYS_WRONG:
            found[f"bound_{kind}"] = outcomes_until_silent(characters[0].confidence, rules, between=2)
        kept += [run.honest for run in runs]
        unheard += [run.honest_silent for run in runs]
    low, high = interval(kept)
    return found | {
        "honest_reputation": round(fmean(kept), 3),
        "honest_reputation_low": round(low, 3),
        "honest_reputation_high": round(high, 3),
        "honest_silent": round(fmean(unheard), 4),
        "busybody_reputation": round(fmean(drifting(0.0, seed, rounds) for seed in range(1, seeds + 1)), 3),
        "busybody_reputation_controls": round(
            fmean(drifting(CONTROLS, seed, rounds) for seed in range(1, seeds + 1)), 3
        ),
    }


def bench(
    seeds: Annotated[int, Option(min=1, help="Runs of each kind.")] = 20,
    rounds: Annotated[int, Option(min=1, help="Proposals of each character in a run.")] = 30,
    as_json: Json = False,
) -> int:
    found = measure(seeds, rounds)
    print_object(found, as_json)
    late = [kind for kind in ALWAYS_WRONG if not _in_time(found, kind)]
    return 1 if late or found["honest_reputation"] < 1 else 0


def _in_time(found: dict[str, Any], kind: str) -> bool:
    high, bound = found[f"outcomes_until_silent_{kind}_high"], found[f"bound_{kind}"]
    return found[f"silenced_{kind}"] == 1 and bound is not None and high <= bound


BENCH = Bench(
    "reputation",
    bench,
    "made-up agents of known intent through the real mesh: outcomes until each is no longer heard",
    "--seeds 20 --json",
)
