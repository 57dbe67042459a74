"""`connect` with a model and an optimizer: what each step measures by itself, what can be turned, who can fire."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

import pytest
import torch
from tests.support.attached import equal
from tests.support.loops import STEPS, Loop

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec, RunEnded, RunStarted
from oven_learner.custom_loop import connect
from oven_learner.optim import optimizer_gauges, update_norm
from oven_learner.testing import FakeLink

COSINE, NORM, RATIO = (spec.name for spec in optimizer_gauges.ALL_GAUGES)
GAUGES = {"grad_norm", "learning_rate", COSINE, NORM, RATIO}
Made = Callable[[Any], Any]


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, as small as it can be written."""

    def __init__(self, params: Any, lr: float = 1e-3) -> None:
        super().__init__(params, {"lr": lr, "betas": (0.9, 0.99)})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                mean = self.state[parameter].setdefault("exp_avg", torch.zeros_like(parameter))
                parameter.sub_(group["lr"] * (0.9 * mean + 0.1 * parameter.grad).sign())
                mean.lerp_(parameter.grad, 0.01)


class TwoGroups(torch.optim.AdamW):
    def __init__(self, params: Any) -> None:
        first, *rest = params
        super().__init__([{"params": [first], "weight_decay": 0.2}, {"params": rest, "lr": 0.03}], lr=0.01)


OPTIMIZERS: dict[str, Made] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "groups": TwoGroups,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.01, momentum=0.9),
    "SGD": lambda p: torch.optim.SGD(p, lr=0.01),
    "Lion": Lion,
    "Adafactor": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
}
WITHOUT_RATIO = ("momentum", "SGD")


def flat(loop: Loop, read: Callable[[torch.nn.Parameter], torch.Tensor | None]) -> torch.Tensor:
    tensors = [read(parameter) for parameter in loop.model.parameters()]
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors if tensor is not None])


def run_of(line: FakeLink) -> RunStarted:
    assert isinstance(line.sent[0], RunStarted)
    return line.sent[0]


def values(line: FakeLink) -> dict[str, Any]:
    return {spec.name: spec.value for spec in run_of(line).actuators}


@pytest.mark.parametrize("how", OPTIMIZERS)
def test_gauges_of_a_step_equal_those_computed_by_hand(how: str) -> None:
    loop = Loop(OPTIMIZERS[how])
    wanted: list[dict[str, float]] = []
    mean: list[torch.Tensor] = []

    def before(*_: Any) -> None:
        gradient = flat(loop, lambda p: p.grad)
        cosine = [float(torch.nn.functional.cosine_similarity(gradient, mean[-1], dim=0))] if mean else []
        wanted.append({"grad_norm": float(gradient.norm()), "learning_rate": loop.optimizer.param_groups[0]["lr"]})
        wanted[-1] |= dict(zip([COSINE], cosine, strict=False))
        mean.append(0.9 * (mean[-1] if mean else torch.zeros_like(gradient)) + 0.1 * gradient)
        wanted[-1]["before"] = flat(loop, lambda p: p)  # type: ignore[assignment]

    def after(*_: Any) -> None:
        weights = flat(loop, lambda p: p)
        wanted[-1][NORM] = float(weights.norm())
        length = float((weights - wanted[-1].pop("before")).norm()) / wanted[-1][NORM]
        if how not in WITHOUT_RATIO:
            wanted[-1][RATIO] = length

    loop.optimizer.register_step_pre_hook(before)
    loop.optimizer.register_step_post_hook(after)
    line = loop.run(FakeLink())
    assert len(wanted) == STEPS
    for seen, by_hand in zip(line.observed(), wanted, strict=True):
        assert seen.metrics.keys() == by_hand.keys() | {"loss"}
        assert {name: seen.metrics[name] for name in by_hand} == pytest.approx(by_hand, rel=1e-4, abs=1e-6)
    announced = {spec.name for spec in run_of(line).metrics}
    assert announced == GAUGES - ({RATIO} if how in WITHOUT_RATIO else set()) | {"loss"}


def test_training_is_bit_identical_with_and_without_gauges() -> None:
    """With clipping, an evaluation that draws random numbers, snapshots and gauges; no decision."""

    def clipped(it: torch.optim.Optimizer, *_: Any) -> None:
        torch.nn.utils.clip_grad_norm_([p for group in it.param_groups for p in group["params"]], 0.5)

    for how in OPTIMIZERS.values():
        alone = Loop(how)
        alone.optimizer.register_step_pre_hook(clipped)
        alone.alone()
        loop = Loop(how, clip=0.5, evaluate_every=3)
        loop.options["evaluate"] = loop.evaluated
        line = loop.run(FakeLink())
        assert equal(alone.weights(), loop.weights())
        assert max(seen.metrics.get("grad_norm", 0.0) for seen in line.observed()) > 0.5, "before clipping"


def test_metrics_of_the_user_are_added_to_the_loss() -> None:
    run = run_of(Loop(metrics=(MetricSpec(name="accuracy", better="up"),)).run(FakeLink()))
    assert {"accuracy", "loss", "grad_norm"} <= {spec.name for spec in run.metrics}
    [divergence] = entry_points(group="oven.agents", name="divergence")
    assert divergence.load()().cannot_fire(run) is None


def test_the_readmes_loop_feeds_the_agents_it_names() -> None:
    loop = Loop(clip=1.0)
    loop.options["evaluate"] = loop.evaluated
    run = run_of(loop.run(FakeLink()))
    agents = {entry.name: entry.load()().cannot_fire(run) for entry in entry_points(group="oven.agents")}
    able = {name for name, why in agents.items() if why is None}
    assert able >= {
        "learning_rate",
        "grad_clip",
        "divergence",
        "weight_decay",
        "best_checkpoint",
        "lr_cooldown",
        "rollback_undo",
    }, agents


def test_an_agent_says_why_its_gauge_is_not_measured() -> None:
    from oven_agents.shipped.weight_decay import WeightDecay

    loop = Loop(OPTIMIZERS["SGD"])
    why = WeightDecay().cannot_fire(run_of(loop.run(FakeLink())))
    assert why == (f"the run publishes no {RATIO}: {RATIO} needs Adam, AdamW or a similar optimizer, but this is SGD")
    loop = Loop(model=None)
    line = loop.run(FakeLink())
    assert "pass connect(model=…)" in str(WeightDecay().cannot_fire(run_of(line)))
    assert "run.rollback" not in values(line)


@pytest.mark.parametrize("fused", [False, True])
def test_gauges_work_under_a_gradient_scaler(fused: bool) -> None:
    """The norm is of the gradients as they are meant; a step that overflows has none, and clipping is right."""
    plain, scaled = Loop(clip=0.1), Loop(lambda p: torch.optim.AdamW(p, lr=0.01, fused=fused), clip=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=1000)
    count = [0]

    def step() -> float:
        count[0] += 1
        x = torch.randn(8, 4)
        scaled.optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(scaled.model(x), x.sum(1, keepdim=True))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
        if count[0] == STEPS:
            scaled.overflow()
        scaler.step(scaled.optimizer)
        scaler.update()
        return loss.item()

    scaled.step = step  # type: ignore[method-assign]
    torch.manual_seed(4)
    by_itself = plain.run(FakeLink())
    torch.manual_seed(4)
    line = scaled.run(FakeLink())
    *steps, last = line.observed()
    assert last.metrics.keys().isdisjoint({"grad_norm", RATIO})
    assert [seen.metrics["grad_norm"] for seen in steps] == pytest.approx(
        by_itself.series("grad_norm")[: STEPS - 1], rel=1e-3
    )


@pytest.mark.parametrize("by_name", [False, True])
def test_gradients_computed_in_the_closure_belong_to_this_step(by_name: bool) -> None:
    """As Lightning does it: the same numbers, the same clipping, and a rate that the closure sets is found."""

    def run(closed: bool, line: FakeLink) -> tuple[Loop, FakeLink]:
        loop = Loop(clip=0.5)

        def step() -> float:
            x = torch.randn(8, 4)

            def closure() -> float:
                loop.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(loop.model(x), x.sum(1, keepdim=True))
                loss.backward()  # type: ignore[no-untyped-call]
                if closed:
                    loop.optimizer.param_groups[0]["lr"] = 0.01
                return loss.item()

            if not closed:
                loss = closure()
                loop.optimizer.step()
                return loss
            return float(loop.optimizer.step(**{"closure": closure}) if by_name else loop.optimizer.step(closure))

        loop.step = step  # type: ignore[method-assign]
        return loop, loop.run(line)

    plain, line = run(False, FakeLink())
    closed, seen = run(True, FakeLink({5: ("optimizer.lr_scale", 0.25)}))
    assert equal(plain.weights(), closed.weights())
    assert [observation.metrics for observation in seen.observed()] == [
        observation.metrics for observation in line.observed()
    ]
    assert [r.status for r in seen.receipts()] == ["rejected"]


def test_a_gauge_that_raises_is_given_up_and_training_continues(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(update_norm, "weight_norm", lambda *_: 1 / 0)
    monkeypatch.setattr("oven_learner.optim.step_gauges.gradient_norm", lambda *_: 1 / 0)
    alone = Loop()
    alone.alone()
    loop = Loop()
    with caplog.at_level("WARNING", logger="oven.learner"):
        line = loop.run(FakeLink())
    assert equal(alone.weights(), loop.weights())
    assert [record.getMessage() for record in caplog.records] == [
        f"{name} is no longer measured: division by zero" for name in ("grad_norm", NORM)
    ]
    assert {"loss", "learning_rate", COSINE} == line.observed()[-1].metrics.keys()


def test_held_out_metrics_are_measured_when_due_and_when_asked_for() -> None:
    loop = Loop(evaluate_every=5)
    loop.options["evaluate"] = loop.evaluated
    line = loop.run(FakeLink({8: ("run.evaluate", None)}))
    assert [seen.step for seen in line.observed() if "eval/loss" in seen.metrics] == [0, 5, 8, 10, STEPS]
    assert line.observed()[0].metrics.keys() == {"eval/loss"}, "of the weights that it starts from"
    (spec,) = [spec for spec in run_of(line).metrics if spec.held_out]
    assert (spec.name, spec.better) == ("eval/loss", "down")
    end = line.sent[-1]
    assert isinstance(end, RunEnded) and end.metrics == pytest.approx(
        {"eval/loss": line.observed()[-1].metrics["eval/loss"]}
    )


def test_a_rollback_restores_a_loop_and_tells_it_the_step() -> None:
    """A loop that counts on: what is published goes back, and the weights are those of then."""
    seen: dict[int, list[torch.Tensor]] = {}
    loop = Loop(lambda p: torch.optim.AdamW(p, lr=0.01))
    scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1 - step / 40)
    loop.options["scheduler"] = scheduler
    loop.after = scheduler.step
    back: list[Any] = []

    def before(step: int, client: Any) -> None:
        if step == 10:
            back.extend([client.step, loop.weights(), scheduler.last_epoch])
        seen[step - 1] = loop.weights()

    loop.before = before
    line = loop.run(FakeLink({9: ("run.rollback", 0.0)}))
    (receipt,) = line.receipts()
    assert (receipt.status, receipt.before, receipt.after) == ("applied", 9.0, 0.0)
    assert back[0] == 0 and equal(back[1], seen[0]) and back[2] == 0
    assert [observed.step for observed in line.observed()] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    assert [observed.progress for observed in line.observed()] == pytest.approx([n / STEPS for n in range(1, 13)])


def test_a_loop_may_continue_from_the_restored_step_and_undo_it() -> None:
    loop = Loop()
    line = FakeLink({5: ("run.rollback", 0.0), 7: ("run.undo_rollback", None)})
    left_behind: list[torch.Tensor] = []
    with connect(link=line, model=loop.model, optimizer=loop.optimizer, max_steps=8) as client:
        while client.step < 8:
            loop.step()
            if client.tick == 4:
                left_behind = loop.weights()
            client.observe(client.step + 1, {"loss": 1.0})
            client.poll()
            if client.tick == 7:
                assert equal(loop.weights(), left_behind)
    assert [observed.step for observed in line.observed()] == [1, 2, 3, 4, 5, 1, 2, 6, 7, 8]
    assert [receipt.status for receipt in line.receipts()] == ["applied", "applied"]


def test_the_decided_rate_survives_a_rollback() -> None:
    loop = Loop()
    scheduler = torch.optim.lr_scheduler.LambdaLR(loop.optimizer, lambda step: 1 - step / 40)
    loop.options["scheduler"] = scheduler
    loop.after = scheduler.step
    line = loop.run(FakeLink({4: ("optimizer.lr_scale", 0.25), 5: ("run.rollback", 0.0)}))
    assert [(r.actuator, r.status) for r in line.receipts()] == [
        ("optimizer.lr_scale", "applied"), ("run.rollback", "applied"),
    ]  # fmt: skip
    own = [0.01 * (1 - n / 40) for n in range(STEPS)]
    assert loop.rates == pytest.approx(own[:4] + [own[4] / 4] + [rate / 4 for rate in own[:7]])


def test_accumulated_gradients_are_one_observation() -> None:
    loop = Loop(max_steps=3)
    norms = []
    loop.optimizer.register_step_pre_hook(lambda *_: norms.append(float(flat(loop, lambda p: p.grad).norm())))
    with connect(link=(line := FakeLink()), model=loop.model, optimizer=loop.optimizer, max_steps=3) as client:
        for step in range(1, 4):
            for _ in range(4):
                x = torch.randn(2, 4)
                (torch.nn.functional.mse_loss(loop.model(x), x.sum(1, keepdim=True)) / 4).backward()  # type: ignore[no-untyped-call]
            loop.optimizer.step()
            loop.optimizer.zero_grad()
            client.observe(step, {"loss": 1.0})
    assert line.series("grad_norm") == pytest.approx(norms, rel=1e-5) and len(norms) == 3


def test_training_with_a_closure_is_unchanged() -> None:
    def trained(line: FakeLink | None) -> list[torch.Tensor]:
        loop = Loop(lambda p: torch.optim.LBFGS(p, lr=0.1, max_iter=4))

        def step() -> float:
            x = torch.randn(8, 4)

            def closure() -> float:
                loop.optimizer.zero_grad()
                loss = torch.nn.functional.mse_loss(loop.model(x), x.sum(1, keepdim=True))
                loss.backward()  # type: ignore[no-untyped-call]
                return float(loss.detach())

            return float(loop.optimizer.step(closure))

        loop.step = step  # type: ignore[method-assign]
        if line is None:
            loop.alone()
        else:
            loop.run(line)
        return loop.weights()

    line = FakeLink({3: ("optimizer.lr_scale", 0.5)})
    assert equal(trained(None), trained(FakeLink()))
    trained(line)
    assert [receipt.status for receipt in line.receipts()] == ["applied"]
    assert len(line.series(NORM)) == STEPS


def test_closing_removes_the_hooks() -> None:
    loop = Loop(clip=0.5)
    hooks = loop.optimizer._optimizer_step_pre_hooks, loop.optimizer._optimizer_step_post_hooks
    before = [len(result) for result in hooks]
    loop.run(FakeLink())
    assert [len(result) for result in hooks] == before
    loop.optimizer.param_groups[0]["oven_lr_scale"] = 99.0
    with pytest.raises(ConfigError, match="outside its bounds"):
        loop.run(FakeLink())
    assert [len(result) for result in hooks] == before


def test_a_large_optimizer_state_is_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_gauges, "MAX_COPY_BYTES", 1 << 20)
    run = run_of(Loop(Lion).run(FakeLink()))
    assert not run.unmeasured
    monkeypatch.setattr(optimizer_gauges, "MAX_COPY_BYTES", 8)
    run = run_of(Loop(Lion).run(FakeLink()))
    assert set(run.unmeasured) == {COSINE, RATIO}
    assert "needs torch's Adam or AdamW; this is Lion" in run.unmeasured[RATIO]
    assert {spec.name for spec in run.metrics} == {"loss", "grad_norm", "learning_rate", NORM}


def test_the_clip_actuator_changes_the_gradient() -> None:
    norms: list[float] = []
    loop = Loop(clip=0.5)

    def after(*_: Any) -> None:
        norms.append(float(flat(loop, lambda p: p.grad).norm()))

    loop.optimizer.register_step_post_hook(after)
    line = loop.run(FakeLink({6: ("grad.clip", 0.1)}))
    assert [(r.status, r.before, r.after) for r in line.receipts()] == [("applied", 0.5, 0.1)]
    cut = [min(norm, 0.5 if n < 6 else 0.1) for n, norm in enumerate(line.series("grad_norm"))]
    assert norms == pytest.approx(cut, rel=1e-3) and min(line.series("grad_norm")) > 0.1
    assert "before clipping" in {spec.name: spec.unit for spec in run_of(line).metrics}["grad_norm"]
    line = Loop().run(FakeLink())
    assert "grad.clip" not in values(line)
    assert "after any clipping by the loop" in {m.name: m.unit for m in run_of(line).metrics}["grad_norm"]
