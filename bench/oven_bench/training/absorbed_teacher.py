"""The drill of `bench escalation`: GRPO held by a KL term to a small teacher that the policy absorbs.

The task is the recipe's, sorting digits. The policy had a fifth of the small teacher's warm-up, so it begins far from
it; both learnt from targets of which one in ten was right. With 4 and 5 digits a right answer is so rare that the KL
term is most of what there is to learn from: the reward stays flat while the KL falls. A strong teacher, which learnt
from right answers only, is loaded beside it. β is so small that the agent's other rule, "the anchor binds", seldom
speaks first.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

from oven_bench.fixed_rules import Alone, RuleLink
from oven_core.errors import ProcessError
from oven_core.protocol.codec import Malformed
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, LogMessage, Observation, Receipt, RunEnded

if TYPE_CHECKING:
    from oven_recipes.runner import Job

Arm = Literal["on", "off", "strong"]
ARMS: tuple[Arm, ...] = ("on", "off", "strong")
"""The agent `teacher` under the real stack; nothing changed; nothing changed, and the strong teacher from the start."""
WEAK: Literal["small"] = "small"
STRONG: Literal["strong"] = "strong"
HELD_OUT = "eval/accuracy"
BETA, LEARNING_RATE, STEPS = 0.03, 1e-3, 200
WARMUP_STEPS = 60
"""Of the policy; its teachers have 300."""
SIZES: dict[str, Any] = {
    "lengths": (4, 5), "eval_prompts": 256, "hidden": 64, "ffn": 128, "prompts_per_step": 16, "right_habit": 0.1,
}  # fmt: skip
QUICK: dict[str, Any] = {
    "lengths": (1, 2), "train_prompts": 20, "eval_prompts": 16, "hidden": 16, "layers": 1, "heads": 2, "ffn": 32,
    "sft_steps": 20, "sft_batch": 16, "prompts_per_step": 4, "group_size": 4, "eval_every": 2,
}  # fmt: skip
"""Sizes that take seconds; what comes out says that the bench runs, and nothing else."""
SETTINGS: dict[str, Any] = {
    "agents": ["teacher"],
    "kg": False,
    "lockstep": True,
    "charge_rollbacks": True,
    "rules": {"autonomy": "auto"},
}
"""The stack's, beside its defaults: no agent but `teacher` and no prior, so that the arms differ by what it does."""
OF_TICKS = 12
"""Ticks at the beginning and the end of a run that a median of the KL is taken over: half of the agent's window."""


class Change(BaseModel):
    """A change that was applied: between which two steps, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    actuator: str
    before: float | str
    after: float | str
    why: str


class Row(BaseModel):
    """One run."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    arm: Arm
    seed: int
    accuracy: float
    """Held-out, of greedy answers to 256 prompts per level, mean over levels, at the end: 0 to 1."""
    reward: float
    """Mean sampled reward of the last 20 steps, 0 to 1."""
    kl_first: float
    """KL to the first teacher in nats per token, median of the first OF_TICKS."""
    kl_swapped: float | None
    """KL to it, median of the OF_TICKS before it was swapped; None where it never was."""
    kl_small: float | None
    kl_strong: float | None
    """KL to each at the end: to the active one the median of the last OF_TICKS, to the other its newest sample."""
    changes: tuple[Change, ...]
    seconds: float

    @property
    def swap(self) -> Change | None:
        """The first change of the teacher."""
        return next((change for change in self.changes if change.actuator == "teacher.active"), None)


def drill(quick: bool) -> str:
    """All that decides a run beside its seed, arm and length, as JSON."""
    return json.dumps({
        "beta": BETA, "learning_rate": LEARNING_RATE, "warmup_steps": WARMUP_STEPS, "sizes": QUICK if quick else SIZES,
        "stack": SETTINGS,
    })  # fmt: skip


def row(arm: Arm, seed: int, messages: Sequence[LogMessage | Malformed], seconds: float) -> Row:
    """From a run's messages, in the order of the log. Raises ProcessError where it did not complete, or did not wait
    for the stack at every tick."""
    ended = next((body for body in reversed(messages) if isinstance(body, RunEnded)), None)
    if ended is None or ended.reason != "completed" or ended.lockstep_timeouts:
        raise ProcessError(f"{arm} of seed {seed} did not complete in lockstep: {ended or 'it has no RunEnded'}")
    seen = [body for body in messages if isinstance(body, Observation)]
    changes = applied(messages)
    swapped = next((r.step for r in changes if r.actuator == "teacher.active"), None)
    kl = [(body.step, body.metrics["kl"]) for body in seen if "kl" in body.metrics]
    first = [value for step, value in kl if swapped is None or step <= swapped]
    active = next((str(r.after) for r in reversed(changes) if r.actuator == "teacher.active"), _first(arm))
    last: dict[str, float | None] = {name: _newest(seen, f"kl/{name}") for name in (WEAK, STRONG)}
    last[active] = median([value for _, value in kl][-OF_TICKS:])
    rewards = [body.metrics["reward"] for body in seen if "reward" in body.metrics]
    accuracy = _newest(seen, HELD_OUT)
    if accuracy is None:
        raise ProcessError(f"{arm} of seed {seed} has no {HELD_OUT}")
    return Row(
        arm=arm, seed=seed, accuracy=accuracy, reward=fmean(rewards[-20:]), kl_first=median(first[:OF_TICKS]),
        kl_swapped=None if swapped is None else median(first[-OF_TICKS:]), kl_small=last[WEAK], kl_strong=last[STRONG],
        changes=changes, seconds=round(seconds, 1),
    )  # fmt: skip


def applied(messages: Sequence[LogMessage | Malformed]) -> tuple[Change, ...]:
    """The changes of a run, in their order."""
    why = {body.id: body.reason for body in messages if isinstance(body, Decision)}
    return tuple(
        Change(step=r.step, actuator=r.actuator, before=_plain(r.before), after=_plain(r.after),
               why=why.get(r.decision_id or "", ""))
        for r in messages
        if isinstance(r, Receipt) and r.status == "applied"
    )  # fmt: skip


def _plain(value: Any) -> float | str:
    return value if isinstance(value, float | str) else str(value)


def _first(arm: Arm) -> Literal["small", "strong"]:
    return STRONG if arm == "strong" else WEAK


def _newest(seen: Sequence[Observation], metric: str) -> float | None:
    return next((body.metrics[metric] for body in reversed(seen) if metric in body.metrics), None)


def prepared(arm: Arm, seed: int, steps: int, folder: Path, cache: Path, quick: bool) -> Job:
    """The run, ready to be attached: the recipe's, with its own warm-up and teachers."""
    from oven_recipes.grpo.job import build
    from oven_recipes.grpo.model import build_tokenizer
    from oven_recipes.grpo.settings import GrpoSettings, Start
    from oven_recipes.grpo.supervised_warmup import warm_policy
    from oven_recipes.grpo.teachers import build_teachers

    settings = GrpoSettings.model_validate({**(QUICK if quick else SIZES), "max_steps": steps})
    even = {level: 1 / len(settings.levels) for level in settings.levels}
    job = build(settings, Start("absorbed", LEARNING_RATE, even), seed, folder, cache)
    tokenizer = build_tokenizer()
    short = settings.model_copy(update={"sft_steps": min(settings.sft_steps, WARMUP_STEPS)})
    job.trainer.model.load_state_dict(warm_policy(short, tokenizer, seed, cache).state_dict())
    job.trainer.beta = job.trainer.args.beta = BETA
    teachers = build_teachers(job.trainer, (WEAK, STRONG), settings, tokenizer, seed, cache, active=_first(arm))
    return replace(job, teachers=teachers)


class Heard(RuleLink):
    """A link without a controller that keeps what the learner says."""

    def __init__(self) -> None:
        super().__init__(Alone())
        self.messages: list[LogMessage] = []

    def send(self, make: Callable[[], Any], *, droppable: bool = False) -> None:
        self.messages.append(message := make())
        super().send(lambda: message, droppable=droppable)


def without_stack(job: Job) -> list[LogMessage]:
    """Its messages, trained with nothing changed: the same bits as an attached run in which nothing is applied."""
    link = Heard()
    job.attach(link=link, charge_rollbacks=True)
    job.trainer.train()
    return link.messages


def with_stack(make: Callable[[], Job], settings: Mapping[str, Any] = SETTINGS) -> list[LogMessage | Malformed]:
    """Its log, trained in lockstep under a stack that is started for it with these settings, in the folder that
    `OVEN_HOME` names. The stack gets ready while `make` does."""
    from oven_learner.baking.own_stack import OwnStack, within

    stack = OwnStack(settings)
    try:
        job = make()
        place = stack.place()
        with within(place):
            job.attach()
        job.trainer.train()
    finally:
        said = stack.end()
    log = place.folder / "log.jsonl"
    if not log.exists():
        raise ProcessError(f"the stack of run {place.run} left no log; it said:\n{said}")
    return [Event.from_line(line).body for line in log.read_text().splitlines()]
