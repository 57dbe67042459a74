"""`bench alerts`: how soon the shipped agents raise the right alert in simulated runs, and how often they are wrong.

Each run's metrics (oven_bench.alerts.simulated_run) go through the agents' own sessions, as in a process of agents,
and what they say is folded as every reader folds it. Exit code 1 if a symptom is found within WITHIN ticks in fewer
than FOUND of its runs, or an alert is raised in more than FALSE of the healthy ones. Seeds from 1 on were used to
choose thresholds; those of the figures in docs/benchmarks.md begin at 900,001 and were run once.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any, Final

from typer import Option

from oven_agents.runtime.loader import load
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.session import Session
from oven_bench.alerts.simulated_run import FAULTS, TICKS, Fault, draw, observed
from oven_bench.bench_command import Bench, FirstSeed, Jobs, Json, print_object
from oven_bench.statistics import Interval, share
from oven_bench.worker_pool import workers
from oven_core.protocol.alerts import Alert
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, Observation, RunStarted
from oven_core.protocol.subjects import agent_subject, learner_subject
from oven_runs.log.standing_alerts import StandingAlerts

AGENTS: Final = ("calibration_drift", "drift", "entropy_collapse")
SYMPTOM: Final[dict[Fault, str]] = {
    "confidence": "confidence_collapse",
    "advantages": "zero_advantage_groups",
    "length": "length_shrinks",
    "kl": "kl_runaway",
    "calibration": "calibration_drift",
}
WITHIN: Final = 20
"""Ticks after the fault began within which its alert has to come."""
FOUND, FALSE = 0.95, 0.01
RUN: Final = "simulated"
KNOBS: Final = (
    ActuatorSpec(name="optimizer.lr_scale", kind="scalar", low=0.05, high=4.0, value=1.0),
    ActuatorSpec(name="grpo.beta", kind="scalar", low=0.0, high=1.0, value=0.05, moves_own_metric=True),
    ActuatorSpec(name="reward.calibration", kind="scalar", low=0.0, high=1.0, value=0.5, moves_own_metric=True),
    ActuatorSpec(name="run.rollback", kind="action", effect="moves_weights"),
)


@dataclass(frozen=True, slots=True)
class Heard:
    """What agents said in one run, in ticks after the fault began (of a healthy run: after its start)."""

    raised: dict[str, list[int]]
    """Symptom → when it was raised."""
    cleared: dict[str, list[int]]


def hear(seed: int, fault: Fault | None) -> Heard:
    """One run."""
    import numpy as np

    rng = np.random.default_rng((seed, 0 if fault is None else 1 + FAULTS.index(fault)))
    onset = draw(rng).onset if fault is not None else 0
    sessions = [Session(_without_votes(load(name)[1]), name) for name in AGENTS]
    standing, seq = StandingAlerts(), 0
    raised: dict[str, list[int]] = {}
    cleared: dict[str, list[int]] = {}
    messages = observed(seed, fault)
    first = next(messages)
    metrics = [MetricSpec(name=name) for name in first]
    metrics.append(MetricSpec(name="eval/accuracy", better="up", held_out=True))
    started = RunStarted(incarnation=1, n=0, recipe="oracle", metrics=tuple(metrics), actuators=KNOBS)
    for tick, measured in enumerate((first, *messages)):
        seen = Observation(incarnation=1, n=tick + 1, tick=tick + 1, step=tick, progress=tick / TICKS, metrics=measured)
        said: list[tuple[str, Any]] = []
        for session in sessions:
            if tick == 0:
                session.absorb(started)
            session.absorb(seen)
            said += [(session.name, word) for word in session.react() if isinstance(word, Alert)]
            if session.problems:
                raise AssertionError(session.problems[0])
        for author, word in (*((("", started),) if tick == 0 else ()), ("", seen), *said):
            seq += 1
            subject = agent_subject(RUN, author, word) if author else learner_subject(RUN, word)
            if (news := standing.feed(Event.read(seq, subject, word.wire(), UNKNOWN))) is not None:
                (raised if news.state == "raised" else cleared).setdefault(news.symptom, []).append(tick - onset)
    return Heard(raised, cleared)


def _without_votes(agent: Agent) -> Agent:
    """What it would have changed is not asked: nothing is changed here, and alerts do not depend on it."""
    agent.vote = lambda window: None  # type: ignore[method-assign]
    return agent


def _one(task: tuple[int, Fault | None]) -> tuple[Fault | None, Heard]:
    seed, fault = task
    return fault, hear(seed, fault)


def main(
    streams: Annotated[int, Option(min=1, help="Simulated runs with each fault.")] = 200,
    healthy: Annotated[int, Option(min=1, help="Simulated runs without one.")] = 400,
    seed: FirstSeed = 1,
    jobs: Jobs = 2,
    as_json: Json = False,
) -> int:
    tasks: list[tuple[int, Fault | None]] = [(seed + n, fault) for fault in FAULTS for n in range(streams)]
    tasks += [(seed + n, None) for n in range(healthy)]
    with workers(jobs) as pool:
        heard = list(pool.map(_one, tasks, chunksize=4))
    rows: dict[str, Any] = {fault: _row(fault, [one for of, one in heard if of == fault]) for fault in FAULTS}
    quiet = [one for of, one in heard if of is None]
    wrong = [one for one in quiet if one.raised]
    by_symptom = {symptom: sum(symptom in one.raised for one in wrong) for symptom in SYMPTOM.values()}
    alerted = share(len(wrong), len(quiet))
    found = {
        "ticks": TICKS,
        "within": WITHIN,
        "faults": rows,
        "healthy": {
            "streams": len(quiet),
            "alerted": len(wrong),
            **_shown("share", alerted),
            "by_symptom": by_symptom,
        },
    }
    met = all(row["found"] >= FOUND for row in rows.values()) and len(wrong) <= FALSE * len(quiet)
    found["met"] = met
    if as_json:
        print_object(found, as_json)
    else:
        _show(found)
    return 0 if met else 1


def _row(fault: Fault, heard: list[Heard]) -> dict[str, Any]:
    """Of the runs with one fault: found within WITHIN, how soon, what else was raised, whether it was cleared."""
    symptom = SYMPTOM[fault]
    firsts = [min((t for t in one.raised.get(symptom, ()) if t >= 0), default=None) for one in heard]
    timely = [first for first in firsts if first is not None and first < WITHIN]
    early = sum(any(tick < 0 for times in one.raised.values() for tick in times) for one in heard)
    cleared = sum(len(one.cleared.get(symptom, ())) == len(one.raised.get(symptom, ())) > 0 for one in heard)
    return {
        "symptom": symptom,
        "streams": len(heard),
        **_shown("found", share(len(timely), len(heard))),
        "median_ticks": median(timely) if timely else None,
        "before_the_fault": early,
        "cleared_at_the_end": cleared,
        "raised_more_than_twice": sum(len(one.raised.get(symptom, ())) > 2 for one in heard),
        "others_raised": sum(any(other != symptom for other in one.raised) for one in heard),
    }


def _shown(name: str, of: Interval) -> dict[str, Any]:
    return {name: round(of.mean, 4), "interval": [round(of.low, 4), round(of.high, 4)]}


def _show(found: dict[str, Any]) -> None:
    for fault, row in found["faults"].items():
        low, high = row["interval"]
        print(
            f"{fault:12} {row['symptom']:22} within {WITHIN} ticks in {row['found']:.1%} of {row['streams']} "
            f"({low:.1%} to {high:.1%}), median {row['median_ticks']}; before the fault {row['before_the_fault']}, "
            f"cleared at the end {row['cleared_at_the_end']}"
        )
    quiet = found["healthy"]
    print(f"healthy      any alert in {quiet['alerted']} of {quiet['streams']}: {quiet['by_symptom']}")


BENCH = Bench(
    "alerts",
    main,
    summary="How soon agents raise the right alert in simulated runs, and how often they are wrong.",
    example="--streams 200 --healthy 400 --seed 1 --json",
)
