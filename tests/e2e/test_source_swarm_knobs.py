"""Each agent of the knobs that the source's swarm turned proposes a change in one real run."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus, Decision, Observation, Receipt, RunEnded
from oven_runs.log.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SIZES = {
    "vocabulary": 300, "context": 16, "batch": 1, "hidden": 48, "layers": 1, "heads": 2, "ffn": 48, "eval_every": 20,
    "eval_rows": 16, "lr_warmup_steps": 0, "token_prior": "unigram", "kg_weight": 0.5, "mtp_weight": 0.2,
    "served": "int4", "max_grad_norm": 10,
}  # fmt: skip
OPTIONS = {
    "grad_clip": {"min_outliers": 1, "max_outlier_share": 0.5, "min_clip_ratio": 1},
    "auxiliary_loss": {"late_progress": 0.5},
}
"""How many outliers fall into a window, and when a noisy term stands still, is chance: these leave it less."""
KNOBS = {
    "knowledge": "channel.kg",
    "auxiliary_loss": "channel.mtp",
    "quantisation": "train.quantisation",
    "grad_clip": "grad.clip",
    "learning_rate": "optimizer.lr_scale",
}


def why_not(events: list[Event]) -> dict[str, str]:
    """Agent → why it cannot fire in that run."""
    statuses = [(event.author, event.body) for event in events if isinstance(event.body, AgentStatus)]
    return {author: body.reason for author, body in statuses if body.state == "cannot_fire"}


def test_each_proposes_a_change_in_a_run_that_has_its_knob(oven: Oven, tmp_path: Path) -> None:
    """One sentence, of which gradients agree and rounding costs, and a few rows of noise, whose gradients are
    outliers."""
    rng = random.Random(1)
    noise = "".join(chr(rng.randrange(33, 0x2FFF)) for _ in range(330))  # one file: nothing of it is held out
    texts = {f"sentence/{name}": f"{name} " + "the oven is hot and bread bakes " * 300 for name in "abcd"}
    for name, text in (texts | {"noise/a": noise}).items():
        file = tmp_path / "texts" / f"{name}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    sizes = [part for name, value in SIZES.items() for part in ("--set", f"recipe_options.{name}={value}")]
    code, output = oven(
        "up", "--headless", "--recipe", "pretrain", "--start", "tuned", "--seed", "3", "--steps", "320",
        "--run", "swarm", "--corpus", str(tmp_path / "texts"), "--set", "lockstep=true",
        "--set", f"agents=[{','.join((*KNOBS, 'curriculum'))}]", "--set", "kg=false",
        "--set", f"rules.alone={json.dumps({agent: [knob] for agent, knob in KNOBS.items()})}",
        "--set", f"agent_options={json.dumps(OPTIONS)}", *sizes,
    )  # fmt: skip
    assert code == 0, output
    events = oven.events("swarm")
    receipts = [event.body for event in events if isinstance(event.body, Receipt)]
    applied = {receipt.decision_id for receipt in receipts if receipt.status == "applied"}
    proposed, turned = set[tuple[str, str]](), set[tuple[str, str]]()
    for event in events:
        if isinstance(event.body, Decision):
            changes = {(line.agent, event.body.actuator) for line in event.body.tally if line.stance == "propose"}
            proposed |= changes
            if event.body.id in applied:
                turned |= changes
    assert proposed == set(KNOBS.items())
    # The outliers for grad_clip's sake also make it veto a higher rate.
    assert turned == proposed - {("learning_rate", "optimizer.lr_scale")}
    assert "no reward by level" in why_not(events)["curriculum"]
    [ended] = [event.body for event in events if isinstance(event.body, RunEnded)]
    assert ended.reason == "completed" and ended.lockstep_timeouts == 0
    assert {"eval/bits_per_byte", "eval/int4/bits_per_byte"} <= set(ended.metrics)
    assert any("channel/kg" in event.body.metrics for event in events if isinstance(event.body, Observation))
    assert replay(events, "swarm").same
