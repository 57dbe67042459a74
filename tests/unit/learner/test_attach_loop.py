"""`oven.connect` in a loop of one's own, and what the package exports."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from tests.support.decisions import decide

import oven_learner as oven
from oven_core.errors import ConfigError
from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.custom_loop import connect
from oven_learner.rollback.memory_snapshots import Snapshots
from oven_learner.testing import FakeLink


def ended(line: FakeLink) -> RunEnded:
    assert isinstance(line.sent[-1], RunEnded)
    return line.sent[-1]


def test_the_public_names() -> None:
    assert oven.__all__ == [
        "Actuators", "Attachment", "Committee", "Mixture", "ModelDescription", "Oven", "OvenClient", "PromptSource",
        "TeacherConfig", "attach", "bake", "connect", "convene",
    ]  # fmt: skip
    for name in oven.__all__:
        assert callable(getattr(oven, name)), name
    assert set(oven.__all__) <= set(dir(oven))
    with pytest.raises(AttributeError, match="bake_cake"):
        oven.bake_cake  # noqa: B018


@pytest.mark.parametrize("code", ["import oven_learner", "import oven_learner as oven; oven.connect; oven.Actuators"])
def test_importing_it_loads_no_torch(code: str) -> None:
    code += "; import sys; assert not {'torch', 'transformers'} & set(sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_a_script_that_quantises_nothing_starts_silently() -> None:
    """bitsandbytes, which peft imports, misses a package for 4-bit weights on some processors."""
    code = "import oven_learner; oven_learner.attach"
    started = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert (started.returncode, started.stderr) == (0, "")


def environment() -> dict[str, str]:
    import os

    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}


def test_five_lines_are_a_run() -> None:
    line, rate = FakeLink(), [1.0]
    knobs = oven.Actuators()
    knobs.scalar("rate", lambda: rate[0], lambda value: rate.__setitem__(0, value), low=0.1, high=10, scale="log")
    line.incoming.append(decide(2.0, apply_at=3))
    with connect(knobs, max_steps=10, link=line) as client:
        for step in range(1, 11):
            client.observe(step, {"loss": 1 / step, "rate": rate[0]})
            client.poll()
    assert [type(message) for message in line.sent].count(Observation) == 10
    assert [m.metrics["rate"] for m in line.sent if isinstance(m, Observation)] == [1.0] * 2 + [2.0] * 8
    assert (ended(line).reason, ended(line).step) == ("completed", 10)
    assert "run.stop" not in knobs, "the caller's registry stays the caller's"


def test_an_optimizer_adds_the_learning_rate_knob() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 - step / 10)
    line, rates = FakeLink(), []
    line.incoming.append(decide(0.5, actuator="optimizer.lr_scale", apply_at=4))
    with connect(optimizer=optimizer, scheduler=scheduler, max_steps=8, link=line) as client:
        for step in range(1, 9):
            rates.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            scheduler.step()
            client.observe(step, {"loss": 1.0})
            client.poll()
    own = [0.1 * (1 - step / 10) for step in range(8)]
    assert rates == pytest.approx(own[:3] + [rate / 2 for rate in own[3:]])


def test_an_operator_ends_the_loop() -> None:
    line = FakeLink()
    steps = 0
    with connect(max_steps=10, link=line) as client:
        for step in range(1, 11):
            steps = step
            client.observe(step, {"loss": 1.0})
            if step == 4:
                line.incoming.append(OperatorCommand(id="1", action="stop", reason="enough"))
            client.poll()
            if client.stopping:
                break
    assert steps == 4
    assert (ended(line).reason, ended(line).detail) == ("stopped", "enough")


def test_a_loop_that_raises_ends_as_failed_and_a_spent_budget_as_completed() -> None:
    line = FakeLink()
    with pytest.raises(ZeroDivisionError), connect(link=line):
        _ = 1 / 0
    assert (ended(line).reason, ended(line).detail) == ("failed", "ZeroDivisionError: division by zero")
    line = FakeLink()
    with connect(seconds=1e-9, link=line) as client:
        client.observe(1, {})
        client.poll()
        assert client.stopping and client.out_of_time
    assert ended(line).reason == "completed"
    line = FakeLink()
    with pytest.raises(KeyboardInterrupt), connect(link=line):
        raise KeyboardInterrupt
    assert ended(line).reason == "stopped"


def test_user_snapshots_add_the_rollback_actions() -> None:
    state, line = [0], FakeLink()
    snapshots = Snapshots(lambda: (state[0], state[0]), lambda snapshot: state.__setitem__(0, snapshot))
    with connect(snapshots=snapshots, max_steps=9, link=line) as client:
        for step in range(1, 9):
            state[0] += 1
            client.observe(step, {})
            if step == 7:
                line.incoming.append(decide(5.0, actuator="run.rollback", apply_at=8))
            client.poll()
    assert state[0] == 5 + 1
    run = line.sent[0]
    assert isinstance(run, RunStarted) and "run.rollback" in {spec.name for spec in run.actuators}


def test_without_a_controller_the_error_says_how_to_start_one(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OVEN_URL", "OVEN_RUN", "OVEN_CREDS", "OVEN_RUN_DIR"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="OVEN_URL is not set"):
        connect(max_steps=3)
    with pytest.raises(ConfigError, match="OVEN_RUN is not set"):
        connect(max_steps=3, url="nats://127.0.0.1:1")
