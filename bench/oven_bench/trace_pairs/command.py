"""`bench trace-pairs`: pairs of scripted teachers against the formula, and the power of the test of what pairs say."""

from __future__ import annotations

import random
import time
from dataclasses import asdict
from typing import Annotated, Any, Final

from scipy import stats
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object, print_table
from oven_bench.progress import progress
from oven_bench.statistics import share
from oven_bench.trace_pairs.closed_form import expected
from oven_bench.trace_pairs.scripted_replay import ScriptedReplay, Skills, scripted, shuffled, target
from oven_llm.trace_replay.pair_divergence import information
from oven_llm.trace_replay.pairs import Mined, grouped, mined

SETTINGS: Final = {
    "as skilled": Skills(student=0.4, families=(0.7, 0.7, 0.7)),
    "unlike skills": Skills(student=0.4, families=(0.9, 0.6, 0.3)),
    "correlated": Skills(student=0.4, families=(0.7, 0.7, 0.7), together=0.5, common=0.7),
    "together and wrong": Skills(student=0.6, families=(0.7, 0.6, 0.5), together=0.3, common=0.2),
    "two actions": Skills(student=0.5, families=(0.7, 0.7, 0.6), actions=2),
}
"""Of teachers and student, for the closed form."""
PLANTED: Final = Skills(student=0.3, families=(0.7, 0.7, 0.6), together=0.3, common=0.6, favoured=0.6)
"""For the test: the right action is `run_tests` three times as often as by chance, and teachers know it."""
STATES: Final = 200
"""Of a draw: 20 traces, from which about 150 pairs come; the source system asked for 50 traces with 5 pairs each."""
PERMUTATIONS: Final = 199
"""Enough for a test at .05; `traces pairs` draws more."""
ALPHA: Final = 0.05
POWER: Final = 0.9
FALSE_ALARMS: Final = 0.07
"""What must be reached, and not exceeded."""


def right_share(name: str, skills: Skills, states: int, seed: int) -> dict[str, Any]:
    """A setting's pairs beside the formula."""
    replay = scripted(skills, states, random.Random(f"{seed} {name}"))
    found = mined(replay.traces, grouped(replay.replies))
    hits = _right(found, replay)
    wanted = expected(skills)
    interval = share(hits, len(found.pairs))
    return {
        "pairs": len(found.pairs),
        "right": interval.mean,
        "low": interval.low,
        "high": interval.high,
        "formula": wanted.share,
        "inside": interval.low <= wanted.share <= interval.high,
        "p": float(stats.binomtest(hits, len(found.pairs), wanted.share).pvalue),
        "pairs_a_state": len(found.pairs) / states,
        "formula_a_state": wanted.right + wanted.wrong,
        "rules": dict(found.rules),
    }


def alarms(draws: int, seed: int, *, shuffle: bool) -> dict[str, Any]:
    """How often the test says that pairs say something."""
    found, pairs = 0, 0
    called = "shuffled" if shuffle else "planted"
    with progress(called, draws) as advance:
        for draw in range(draws):
            chance = random.Random(f"{seed} {shuffle} {draw}")
            replay = scripted(PLANTED, STATES, chance)
            if shuffle:
                replay = shuffled(replay, chance)
            made = mined(replay.traces, grouped(replay.replies))
            tested = information(made.pairs, permutations=PERMUTATIONS, seed=draw)
            found += tested is not None and tested.p <= ALPHA
            pairs += len(made.pairs)
            advance(1, f"alarms {found}")
    return {
        "draws": draws,
        "pairs": pairs / draws,
        **{key: asdict(share(found, draws))[key] for key in ("mean", "low", "high")},
    }


def one_family(states: int, seed: int) -> int:
    """Pairs of three teachers of one family: none is allowed."""
    replay = scripted(SETTINGS["as skilled"], states, random.Random(seed), one_family=True)
    return len(mined(replay.traces, grouped(replay.replies)).pairs)


def _right(found: Mined, replay: ScriptedReplay) -> int:
    return sum(target(one.pair.chosen) == replay.right[one.pair.trace, one.pair.step] for one in found.pairs)


def bench(
    states: Annotated[int, Option(min=100, help="Of each setting of teachers.")] = 5000,
    draws: Annotated[int, Option(min=4, help="Of the test, with the signal and without it.")] = 500,
    seed: Annotated[int, Option(help="Random seed.")] = 1,
    as_json: Json = False,
) -> int:
    started = time.process_time()
    settings = {name: right_share(name, skills, states, seed) for name, skills in SETTINGS.items()}
    single = one_family(states, seed)
    planted, none = alarms(draws, seed, shuffle=False), alarms(draws, seed, shuffle=True)
    # Five intervals at once: each deviation is judged at a fifth of the level.
    formula = all(one["p"] > ALPHA / len(settings) for one in settings.values())
    passed = formula and single == 0 and planted["mean"] >= POWER and none["mean"] <= FALSE_ALARMS
    whole = {
        "settings": settings,
        "pairs_of_one_family": single,
        "planted": planted,
        "shuffled": none,
        "passed": passed,
        "cpu_s": round(time.process_time() - started, 1),
    }
    if as_json:
        print_object(whole, as_json)
        return 0 if passed else 1
    rows = [
        (name, f"{one['pairs']}", f"{one['right']:.3f} [{one['low']:.3f}, {one['high']:.3f}]", f"{one['formula']:.3f}")
        for name, one in settings.items()
    ]
    print_table(
        {
            "passed": passed,
            "pairs of one family thrice": single,
            "power, planted signal": f"{planted['mean']:.3f} [{planted['low']:.3f}, {planted['high']:.3f}]",
            "false alarms, shuffled replies": f"{none['mean']:.3f} [{none['low']:.3f}, {none['high']:.3f}]",
        },
        ("teachers", "pairs", "right", "formula"),
        rows,
    )
    return 0 if passed else 1


BENCH = Bench(
    "trace-pairs",
    bench,
    "preference pairs of scripted teachers: right ones against a formula, and the power of the KL test",
    "--states 5000 --draws 500 --json",
)
