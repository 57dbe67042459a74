"""Every trainer's example as it stands: with its one line the whole run is in the log, and nothing else changes."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY, equal, weights

import oven_learner
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.messages import RunEnded, RunStarted
from oven_learner.hf.attach import attach
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
EXAMPLES = Path(__file__).parents[3] / "examples"
ALWAYS = {
    "optimizer.lr_scale",
    "optimizer.warmup",
    "grad.clip",
    "run.hold",
    "run.stop",
    "run.checkpoint",
    "run.rollback",
    "run.undo_rollback",
}
SCRIPTS: dict[str, tuple[int, set[str], set[str]]] = {
    "hf_trainer.py": (40, set(), set()),
    "trl_sft.py": (12, set(), {"entropy", "mean_token_accuracy"}),
    "trl_dpo.py": (12, {"dpo.beta"}, {"rewards/margins", "rewards/accuracies", "logps/chosen"}),
    "trl_grpo.py": (16, {"grpo.epsilon", "grpo.top_entropy"}, {"entropy"}),
    "trl_rloo.py": (12, {"rloo.beta", "reward.weights"}, {"reward", "rewards/vowels/mean", "kl"}),
    "trl_distillation.py": (12, {"distillation.beta"}, {"entropy", "completions/mean_length"}),
}
"""Script → its steps, the knobs it has beside those that all have, and metrics of its own that every step measures."""


def ran(script: str, link: FakeLink | None, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The trainer of the script, after it has run; without a link its line `oven.attach(trainer)` does nothing."""
    trainers: list[Any] = []

    def attached(trainer: Any, **options: Any) -> None:
        trainers.append(trainer)
        if link is not None:
            attach(trainer, link=link, **options)

    monkeypatch.setattr(oven_learner, "attach", attached, raising=False)
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")
    (trainer,) = trainers
    return trainer


@pytest.mark.parametrize("script", SCRIPTS)
def test_in_observe_the_log_is_complete_and_the_result_is_the_same(
    script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps, own, measured = SCRIPTS[script]
    plain = ran(script, None, monkeypatch)
    line = FakeLink()
    job = ran(script, line, monkeypatch)
    assert equal(weights(plain), weights(job)), "attaching changed the training"

    run, end = line.sent[0], line.sent[-1]
    assert isinstance(run, RunStarted) and isinstance(end, RunEnded)
    assert run.rules.autonomy == "observe" and end.reason == "completed"
    assert {spec.name for spec in run.actuators} == ALWAYS | own
    announced = {metric.name for metric in run.metrics}
    for spec in run.actuators:
        if (known := ACTUATORS.get(spec.name)) is not None:
            assert (spec.effect, spec.moves_own_metric) == (known.effect, known.moves_own_metric)
        if spec.kind == "scalar" and spec.scale == "log":
            assert isinstance(spec.value, float) and spec.low is not None and spec.high is not None
            assert spec.low == pytest.approx(0.1 * spec.value)
            assert spec.high == pytest.approx(min(3 * spec.value, 1.0 if "epsilon" in spec.name else 1e9))
    assert measured <= announced
    assert [(seen.tick, seen.step) for seen in line.observed()] == [(n, n) for n in range(1, steps + 1)]
    for metric in ("loss", "grad_norm", "learning_rate", *measured):
        assert len(line.series(metric)) == steps, metric
