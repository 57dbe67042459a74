"""`bench aggregation`: what each rule of aggregation makes of each kind of adversary among four simulated judges.

Pure arithmetic through the committee's own code: see `oven_bench.judging.simulated_judges`. Each rule is played without
memory, with the adversary on other judges in each group, and with running reliability, with the adversary on the same
judges throughout, after 100 groups to learn in. Exit code 1 if the default rule misses what it promises.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object, print_table
from oven_bench.judging.simulated_judges import ADVERSARIES, SCALES, Rule, by_rule, play, raw_mean
from oven_learner.rewards.aggregation import DEFAULT_RULE, RULES, Reliability

LEARNING = 100
"""Groups before those that are counted where reliability is learnt."""
CLEAN, ONE_FOOLED, TWO_FOOLED, HOSTILE = 0.90, 0.05, 0.20, 0.10
"""What the default rule promises: the least correlation with the truth, and the greatest shares of groups in which a
bad completion gains or the best one loses."""


def kept(found: dict[str, Any]) -> bool:
    """Whether the default rule does what it promises without memory."""
    of = found[DEFAULT_RULE]
    return bool(
        of["none"]["correlation"] >= CLEAN
        and of["one_fooled"]["share"] <= ONE_FOOLED
        and of["two_fooled"]["share"] <= TWO_FOOLED
        and of["hostile"]["share"] <= HOSTILE
    )


def measure(groups: int, seed: int) -> dict[str, Any]:
    """Rule → adversary → `correlation` and `share` without memory, and the same `_learnt`."""
    found: dict[str, Any] = {}
    for rule in ("raw_mean", *RULES):
        found[rule] = {}
        for adversary in ADVERSARIES:
            plain = play(raw_mean if rule == "raw_mean" else by_rule(rule), adversary, groups, seed)
            figures = {"correlation": plain.correlation, "share": plain.share}
            if rule != "raw_mean":
                learnt = play(_learning(rule), adversary, groups, seed, same=True, skip=LEARNING)
                figures |= {"correlation_learnt": learnt.correlation, "share_learnt": learnt.share}
            found[rule][adversary] = {name: round(x, 3) for name, x in figures.items() if not math.isnan(x)}
    return found


def _learning(rule: str) -> Rule:
    return by_rule(rule, reliability=Reliability(SCALES))


def bench(
    groups: Annotated[int, Option(min=1, help="Groups of eight completions, for each rule and adversary.")] = 2000,
    seed: Annotated[int, Option(help="Random seed.")] = 1,
    as_json: Json = False,
) -> int:
    found = measure(groups, seed)
    holds = kept(found)
    if as_json:
        about = {"groups": groups, "seed": seed, "default": DEFAULT_RULE, "holds": holds}
        print_object(about | {"rules": found}, True)
    else:
        rows = [[rule, *(_cell(figures) for figures in of.values())] for rule, of in found.items()]
        print_table({"groups": groups, "default": DEFAULT_RULE, "holds": holds}, ["rule", *ADVERSARIES], rows)
    return 0 if holds else 1


def _cell(figures: dict[str, float]) -> str:
    """Without memory, and below it learnt: the share where there is one, else the correlation."""
    name = "share" if "share" in figures else "correlation"
    learnt = figures.get(f"{name}_learnt")
    return f"{figures[name]:.3f}" + ("" if learnt is None else f"\n{learnt:.3f}")


BENCH = Bench(
    "aggregation",
    bench,
    "the committee's rules of aggregation against fooled, hostile, inverted, flat, random and colluding judges",
    "--json",
    "A cell is the share of groups lost, or the correlation with the truth; below it, with reliability learnt.",
)
