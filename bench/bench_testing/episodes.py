"""Episodes of the gym that the controller steers as it is shipped: what it decided, and how the run ended.

The logs of some are recorded as well; `replays` reads them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from tests.golden import recorded, said
from tests.golden.store import Json, Limits, numbers

from oven_bench.gym.arms.controller import MESH_WITH_GRAPH, LoopLink, MeshArm
from oven_bench.gym.fault import Fault, make
from oven_bench.gym.faults import families
from oven_bench.gym.runner import Ground
from oven_core.protocol.events import Event

SEED = 1
RECORDED: Sequence[str] = (
    "grpo.banned_tokens",
    "grpo.error_answers",
    "grpo.half_deployed_refactor",
    "grpo.heavy_demonstrations",
    "grpo.judge_outage",
    "grpo.kl_blow_up",
    "grpo.merged_twice",
    "grpo.minimum_length",
    "grpo.other_algorithm",
    "grpo.unsynced_workers",
    "pretraining.bad_stretch_and_rate",
    "pretraining.balanced_classes",
    "pretraining.careless_resume",
    "pretraining.corrupted_batches",
    "pretraining.duplicated_data",
    "pretraining.exploding_rows",
    "pretraining.growing_weights",
    "pretraining.healthy",
    "pretraining.not_a_number",
    "pretraining.weight_noise",
)
"""Families of which the log is kept: between them most agents vote."""
PLAYED: Sequence[str] = (
    *RECORDED,
    "grpo.bag_of_tokens",
    "grpo.biased_judge",
    "grpo.fooled_and_fast",
    "grpo.healthy",
    "grpo.late_rewards",
    "grpo.lr_too_high",
    "grpo.lr_too_low",
    "grpo.misplaced_rows",
    "grpo.rewards_as_completed",
    "grpo.signed_rewards",
    "pretraining.canaries",
    "pretraining.clip_too_tight",
    "pretraining.coarse_weights",
    "pretraining.lr_too_high",
    "pretraining.lr_too_low",
    "pretraining.outlier_gradient",
    "pretraining.second_warmup",
    "pretraining.shuffled_targets",
    "pretraining.silent_corruption",
    "pretraining.weight_decay_too_high",
)
"""Families that are played, twenty of each kind."""
FILE = "episodes.json"


def documents(limits: Limits) -> Iterator[tuple[str, Json]]:
    """Files, and what belongs there, the recorded logs among them."""
    cases: dict[str, Json] = {}
    for name in sorted(PLAYED):  # by kind, so that a healthy beginning is made once
        if not limits.takes(name):
            continue
        cases[name], log = played(families()[name])
        if name in RECORDED:
            yield recorded.path(f"episode-{name}"), recorded.packed(log)
    yield FILE, {"numbers": numbers(), "cases": cases}


def limited(document: Json, limits: Limits) -> Json:
    """The part of a stored document that `documents` makes under these limits."""
    return document | {"cases": {name: case for name, case in document["cases"].items() if limits.takes(name)}}


def played(family: type[Fault]) -> tuple[dict[str, Json], Sequence[Event]]:
    """An episode's result without its time, and its log."""
    arm = _Kept(MESH_WITH_GRAPH)
    row = Ground(family, SEED, make).play(arm)
    messages = [said.of(event) for event in arm.log]
    found = {
        "onset": row.onset,
        "steps": row.steps,
        "interventions": row.interventions,
        "losses": {"arm": row.loss.hex(), "nothing": row.nothing.hex(), "twin": row.twin.hex()},
        "decisions": said.decisions(messages),
        "messages": said.by_type(messages),
        "order": said.in_order(arm.log),
    }
    return found, arm.log


class _Kept:
    """An arm whose last link's log can be read afterwards."""

    def __init__(self, arm: MeshArm) -> None:
        self.name = arm.name
        self.keeps_best = arm.keeps_best
        self._arm = arm
        self._link: LoopLink | None = None

    def link(self, run: str, rng: Random) -> LoopLink:
        link = self._arm.link(run, rng)
        self._link = link
        return link

    @property
    def log(self) -> Sequence[Event]:
        assert self._link is not None
        return self._link.events
