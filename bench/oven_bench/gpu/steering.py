"""TRL's GRPO with generation on the card, steered: does each decision reach the trainer, and does the log replay?

One agent proposes changes of three knobs at fixed ticks, and the real mesh decides. Each receipt is compared with the
decision and with the trainer's own setting. Then a new mesh replays the log and must decide the same, byte for byte.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from oven_agents.sdk.agent import Agent
from oven_agents.sdk.window import Window
from oven_bench.gpu.sizes import Sizes
from oven_bench.gpu.trainers import grpo_trainer
from oven_bench.gym.arms.controller import LoopLink
from oven_bench.gym.closed_loop import AgentParticipant
from oven_bench.study import Report
from oven_core.protocol.messages import Decision, Observation, Receipt, Vote
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import Replay

PLAN: Final[dict[int, tuple[str, float]]] = {
    2: ("optimizer.lr_scale", 0.5),
    4: ("grad.clip", 0.5),
    6: ("optimizer.weight_decay", 0.02),
    9: ("optimizer.lr_scale", 1.5),
}
"""Tick → the knob and the value that the agent proposes then."""
STEPS: Final = 14
RUN: Final = "steered-on-the-card"


class Steering(Agent):
    """Proposes the changes of the plan at their ticks."""

    needs = ("loss",)
    moves = tuple(sorted({name for name, _ in PLAN.values()}))

    def vote(self, window: Window) -> Vote | None:
        change = PLAN.get(window.tick)
        return change and window.propose(
            *change, confidence=1.0, why=f"The plan has this change at tick {window.tick}."
        )


def rules(announced: Rules) -> Rules:
    changes: dict[str, Any] = {"autonomy": "auto", "evidence_kinds": 1, "window_ticks": 1, "cooldown_ticks": 0}
    return announced.model_copy(update=changes).with_grants_for(["steering"])


def measure(sizes: Sizes) -> Report:
    from oven_learner.hf.attach import attach

    link = LoopLink(RUN, [AgentParticipant("steering", Steering())], rules)
    with tempfile.TemporaryDirectory() as folder:
        trainer = grpo_trainer(sizes, Path(folder), STEPS)
        rate, decay = trainer.args.learning_rate, trainer.args.weight_decay
        attach(trainer, link=link, lr_bounds=(0.01, 10.0))
        began = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - began
        group = trainer.optimizer.param_groups[0]
        settings = {
            "optimizer.lr_scale": group["lr"] / rate,
            "grad.clip": trainer.args.max_grad_norm,
            "optimizer.weight_decay": group["weight_decay"],
        }
        device = str(trainer.accelerator.device)
    bodies = [event.body for event in link.events]
    adopted = {body.id: body for body in bodies if isinstance(body, Decision) and body.verdict == "adopted"}
    receipts = [body for body in bodies if isinstance(body, Receipt)]
    replay = Replay(RUN)
    for event in link.events:
        replay.feed(event)
    report = replay.report()
    failures = []
    if len(adopted) != len(PLAN):
        reasons = [body.reason for body in bodies if isinstance(body, Decision)]
        failures.append(f"{len(adopted)} decisions were adopted, and the plan has {len(PLAN)}: {reasons}")
    failures += [
        f"the receipt of {receipt.actuator} is {receipt.status}, {receipt.after}: {receipt.reason}"
        for receipt in receipts
        if receipt.status != "applied" or receipt.after != adopted[receipt.decision_id].value
    ]
    if len(receipts) != len(adopted):
        failures.append(f"{len(adopted)} decisions have {len(receipts)} receipts")
    last = dict(PLAN[tick] for tick in sorted(PLAN))
    for name, value in last.items():
        if not math.isclose(settings[name], value, rel_tol=1e-6):
            failures.append(f"{name} was decided to be {value}, but the trainer has {settings[name]}")
    if not report.same:
        failures.append(f"the replay differs: {report.first}")
    if not device.startswith(sizes.device):
        failures.append(f"the trainer ran on {device}")
    norms = [body.metrics.get("grad_norm", 0.0) for body in bodies if isinstance(body, Observation)]
    if not any(norms):
        failures.append("every gradient was 0, so nothing was trained")
    return Report({
        "device": device,
        "steps": STEPS,
        "tokens_generated": STEPS * math.prod(sizes.generating[1:]),
        "seconds": round(seconds, 1),
        "decisions": report.decisions,
        "adopted": len(adopted),
        "receipts_applied": sum(receipt.status == "applied" for receipt in receipts),
        "settings_at_end": {name: float(f"{value:.6g}") for name, value in settings.items()},
        "before": {"optimizer.lr_scale": 1.0, "optimizer.weight_decay": decay},
        "events": report.events,
        "log_bytes": sum(len(event.data) for event in link.events),
        "replay_same": report.same,
        "metrics": sorted(json.loads(_last_observation(link)).get("metrics", {})),
    }, failures=failures)  # fmt: skip


def _last_observation(link: LoopLink) -> bytes:
    return next(event.data for event in reversed(link.events) if isinstance(event.body, Observation))
