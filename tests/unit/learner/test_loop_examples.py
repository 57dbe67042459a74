"""The examples of loops as they stand: what they publish, and that what is decided acts."""

from __future__ import annotations

import runpy
from importlib.metadata import entry_points
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tests.support.attached import THIRD_PARTY

import oven_learner
from oven_core.protocol.messages import Receipt, RunEnded, RunStarted
from oven_learner.custom_loop import connect
from oven_learner.integrations import lightning
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
EXAMPLES = Path(__file__).parents[3] / "examples"
STEPS = {"raw_loop.py": 40, "own_rate_loop.py": 40, "accelerate_loop.py": 40, "lightning_module.py": 60}
GAUGES = {"loss", "grad_norm", "learning_rate", "optim/weight_norm", "optim/update_ratio"}


@pytest.mark.filterwarnings("ignore:.*treespec.*:FutureWarning", "ignore:.*does not have many workers.*:UserWarning")
@pytest.mark.parametrize("script", STEPS)
def test_the_example_loops_log_is_complete(script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    line = FakeLink({8: ("optimizer.lr_scale", 0.5), 20: ("run.rollback", 10.0)})

    def connected(**options: Any) -> Any:
        return connect(link=line, **options)

    monkeypatch.setattr(oven_learner, "connect", connected, raising=False)
    monkeypatch.setattr(lightning, "connect", connected)
    runpy.run_path(str(EXAMPLES / script), run_name="__main__")

    run, end = line.sent[0], line.sent[-1]
    assert isinstance(run, RunStarted) and isinstance(end, RunEnded) and end.reason == "completed"
    assert not run.unmeasured
    mute = {entry.name for entry in entry_points(group="oven.agents") if entry.load()().cannot_fire(run)}
    assert not mute & {"learning_rate", "grad_clip", "divergence", "weight_decay", "best_checkpoint"}
    assert {"optimizer.lr_scale", "grad.clip", "run.evaluate", "run.rollback"} <= {s.name for s in run.actuators}
    observed = line.observed()
    assert len(observed) == STEPS[script] + 1
    assert all(seen.metrics.keys() >= GAUGES for seen in observed[1:])
    assert all("optim/grad_momentum_cos" in seen.metrics for seen in observed[2:])
    scaled, back = (message for message in line.sent if isinstance(message, Receipt))
    assert (scaled.status, scaled.before, scaled.after) == ("applied", 1.0, 0.5)
    assert (back.status, back.before) == ("applied", 19.0)
    rates = [seen.metrics["learning_rate"] for seen in observed[1:]]
    assert 0.4 < rates[7] / rates[6] < 0.55, "the step after"
    assert max(later / earlier for earlier, later in pairwise(rates[7:19])) < 1.05, "and it stays"
