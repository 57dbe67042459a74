"""The recipe oracle under the real stack, at the smallest sizes: every part of it is there, and nothing is learnt."""

from __future__ import annotations

import json

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_runs.log.replay import replay

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

SIZES = {
    "hidden": 32, "pretrain_steps": 1, "sft_steps": 1, "sft_batch": 4, "train_texts": 12, "prompts_per_step": 2,
    "num_generations": 2, "max_completion_length": 8, "eval_items": 2, "quick_items": 2, "eval_every": 100,
}  # fmt: skip
ANNOUNCED = {
    "confidence/std",
    "calibration/ece_null_99",
    "advantage/std",
    "kl",
    "eval/accuracy",
    "eval/accuracy_shuffled",
}


def test_an_oracle_is_trained_evaluated_and_saved(oven: Oven) -> None:
    sizes = [part for name, size in SIZES.items() for part in (f"--{name}", str(size))]
    command = ["up", "--headless", "--recipe", "oracle", "--start", "drill:overconfident", "--steps", "2"]
    code, output = oven(*command, *sizes, "--run", "oracle", "--no_initial_eval", "--kl_penalty", ".1")
    assert code == 0, output
    assert output.splitlines()[0].startswith("DRILL overconfident: all supervised answers, including wrong ones, state")

    events = oven.events("oracle")
    started = next(event.body for event in events if isinstance(event.body, RunStarted))
    knobs = {spec.name: spec.value for spec in started.actuators}
    assert {"reward.calibration": 0.5, "grpo.beta": 0.1}.items() <= knobs.items()
    assert {spec.name for spec in started.metrics} >= ANNOUNCED
    seen = {name for event in events if isinstance(event.body, Observation) for name in event.body.metrics}
    assert {"reward", "kl", "calibration/unparsed", "advantage/std", "eval/accuracy", "eval/accuracy_shuffled"} <= seen
    assert next(event.body for event in events if isinstance(event.body, RunEnded)).reason == "completed"
    assert replay(events, "oracle").same

    folder = oven.home / "runs" / "oracle"
    report = json.loads((folder / "evaluation-end.json").read_text())
    assert len(report["benchmarks"]) == 9 and {benchmark["source"] for benchmark in report["benchmarks"].values()} == {
        "templates"
    }
    assert (folder / "evaluation-end.png").stat().st_size and not (folder / "evaluation-start.json").exists()
    assert json.loads((folder / "oracle" / "oracle.json").read_text())["step"] == 2
