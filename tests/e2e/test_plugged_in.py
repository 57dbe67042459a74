"""A user's own script inside a real stack."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import Oven

from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_runs.log.replay import replay

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
LOGGING_SCRIPT = """
import sys
from torch.utils.tensorboard import SummaryWriter

writer = SummaryWriter(sys.argv[1])
for step in range(1, 31):
    writer.add_scalar("train/loss", 1 / step, step)
writer.close()
sys.exit(7)
"""


def test_a_users_script_starts_in_observe(oven: Oven) -> None:
    script = [sys.executable, str(EXAMPLES / "hf_trainer.py")]
    command = ["run", "--run", "script", "--set", f"agents={EXAMPLES / 'custom_agent.py'}"]
    # In lockstep: else a slow machine's agent may have nothing to say before 40 steps of a millisecond are over.
    code, output = oven(*command, "--set", "lockstep=true", "--", *script, cold=True)
    assert code == 0, output
    events = oven.events("script")
    started = next(e.body for e in events if isinstance(e.body, RunStarted))
    assert started.recipe == "attached" and started.rules.autonomy == "observe"
    bounds = {spec.name: (spec.low, spec.high) for spec in started.actuators if spec.kind == "scalar"}
    clip_bounds = (pytest.approx(0.05), pytest.approx(1.5))
    assert bounds == {"optimizer.lr_scale": (0.1, 3.0), "optimizer.warmup": (0, 20), "grad.clip": clip_bounds}
    steps = [e.body.step for e in events if isinstance(e.body, Observation)]
    assert steps == list(range(1, 41)), "every step, whatever logging_steps says"
    assert not [e for e in events if isinstance(e.body, Receipt)], "nothing was turned"
    decided = [e.body for e in events if isinstance(e.body, Decision)]
    assert decided, "though the agent had something to say"
    assert {(line.agent, line.stance) for decision in decided for line in decision.tally} == {
        ("custom_agent", "propose")
    }
    ended = next(e.body for e in events if isinstance(e.body, RunEnded))
    assert (ended.reason, ended.step) == ("completed", 40)
    assert replay(events, "script").same


def test_run_tap_observes_what_a_script_logs_and_passes_its_exit_code_on(oven: Oven, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(LOGGING_SCRIPT)
    code, output = oven("run", "--tap", "--run", "tapped", "--", sys.executable, str(script), str(tmp_path), cold=True)
    assert code == 7 and "the script failed (exit code 7)" in output, output
    events = oven.events("tapped")
    losses = [e.body.metrics["loss"] for e in events if isinstance(e.body, Observation)]
    assert losses == [pytest.approx(1 / step) for step in range(1, 31)]
    assert not [e for e in events if isinstance(e.body, RunStarted) and e.body.actuators], "a tap has no knobs"
    assert replay(events, "tapped").same


def test_run_auto_attach_attaches_to_a_trainer_that_knows_nothing_of_it(oven: Oven, tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "tests" / "support" / "unedited_training.py"), "trainer"]
    code, output = oven("run", "--auto-attach", "--run", "auto", "--", *script, str(tmp_path), cold=True)
    assert code == 0, output
    events = oven.events("auto")
    started = next(e.body for e in events if isinstance(e.body, RunStarted))
    assert "optimizer.lr_scale" in {spec.name for spec in started.actuators}
    steps = [e.body.step for e in events if isinstance(e.body, Observation)]
    assert steps == list(range(1, len(steps) + 1)) and steps
    assert replay(events, "auto").same
