"""The knobs of the pretraining recipe: what the next step does, what is read back, gradients on and off, rollback and
resume, each exactly."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, equal
from tests.unit.learner.test_pretrain import Home, text, write
from torch.nn.functional import rms_norm, silu
from transformers import Trainer, TrainerCallback

from oven_core.protocol.messages import RunStarted, Value
from oven_learner.hf.knobs.quantisation import FakeQuantisation, fake_quantise
from oven_learner.link.resume_state import ResumeState
from oven_learner.testing import FakeLink
from oven_recipes.training_runner import Job

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]

KNOBS: dict[str, tuple[Value, Value]] = {
    "channel.kg": (0.0, 0.5),
    "channel.mtp": (0.0, 0.3),
    "train.quantisation": ("none", "int4"),
    "grad.clip": (1.0, 0.2),
    "optimizer.lr_scale": (1.0, 0.25),
    "data.mixture": ({"one": 202 / 398, "two": 196 / 398}, {"one": 0.0, "two": 1.0}),  # by size
}
"""Knob → its value at the start, and the one that it is turned to."""
TURNED, SAVED, BACK, END = 2, 3, 6, 8
"""Steps, after each of which something is carried out. The evaluation at the start is a tick of its own: a step's is
one more."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    files = {f"{part}__{n}": text(n + 100 * seed) for seed, part in enumerate(("one", "two")) for n in range(8)}
    return Home(write(tmp_path_factory.mktemp("corpus"), **files), tmp_path_factory.mktemp("cache"))


class Recorder(TrainerCallback):
    """What the training was at each step's end, after decisions were carried out; and what each step was given."""

    def __init__(self, job: Job) -> None:
        self.states: list[dict[str, Any]] = []
        self.batches: list[dict[str, torch.Tensor]] = []
        self.job, self.trainer = job, job.trainer
        step = job.trainer.training_step

        def recorded(model: Any, inputs: Any, *rest: Any, **more: Any) -> Any:
            self.batches.append(dict(inputs))
            return step(model, inputs, *rest, **more)

        job.trainer.training_step = recorded
        job.trainer.add_callback(self)

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.states.append(self.now())

    def now(self) -> dict[str, Any]:
        trainer = self.trainer
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        heads = [channel.module for channel in trainer.channels if channel.module is not None]
        moved = [*trainer.model.parameters(), *(parameter for head in heads for parameter in head.parameters())]
        return {
            "step": trainer.state.global_step,
            "moved": [parameter.detach().clone() for parameter in moved],
            "moments": [
                value.detach().clone()
                for parameter in moved
                for _, value in sorted(optimizer.state.get(parameter, {}).items())
            ],
            "state dict": {name: value.clone() for name, value in trainer.model.state_dict().items()},
        }


def same(first: Mapping[str, Any], second: Mapping[str, Any]) -> bool:
    return equal(first["moved"], second["moved"]) and equal(first["moments"], second["moments"])


def run(home: Home, folder: Path, plan: dict[int, tuple[str, Value]], **more: Any) -> tuple[Recorder, FakeLink]:
    job = home.job(folder, token_prior="unigram", lr_warmup_steps=0, max_steps=more.pop("steps", END))
    line = FakeLink(plan, more.pop("past", None))
    job.attach(link=line)
    seen = Recorder(job)
    job.trainer.train(**more)
    return seen, line


@pytest.fixture(scope="module")
def plain(home: Home, tmp_path_factory: pytest.TempPathFactory) -> tuple[Recorder, FakeLink]:
    """The same run with nothing turned."""
    return run(home, tmp_path_factory.mktemp("plain"), {}, steps=4)


@pytest.mark.parametrize("knob", KNOBS)
def test_a_knob_acts_is_read_back_and_goes_through_rollback_and_resume(
    home: Home, tmp_path: Path, plain: tuple[Recorder, FakeLink], knob: str
) -> None:
    before, after = KNOBS[knob]
    plan: dict[int, tuple[str, Value]] = {
        TURNED + 1: (knob, after), SAVED + 1: ("run.checkpoint", None), BACK + 1: ("run.rollback", SAVED + 1.0),
        BACK + 2: ("run.stop", None),
    }  # fmt: skip
    straight, line = run(home, tmp_path, plan)

    started = line.sent[0]
    assert isinstance(started, RunStarted)
    announced = {spec.name: spec.value for spec in started.actuators}
    receipts = {receipt.actuator: receipt for receipt in line.receipts()}
    turned = receipts[knob]
    assert turned.status == "applied" and turned.step == TURNED
    assert difference_is_rounding(announced[knob], before) and difference_is_rounding(turned.before, before)
    assert difference_is_rounding(turned.after, after)

    untouched = plain[0]
    assert all(same(untouched.states[index], straight.states[index]) for index in range(TURNED)), (
        "until then nothing differs"
    )
    acts_on = TURNED if knob != "data.mixture" else TURNED + 1  # the loader has drawn one step ahead
    assert not same(untouched.states[acts_on], straight.states[acts_on]), "the next step differs"
    EFFECTS[knob](straight, plain[0], line, after)

    rolled = receipts["run.rollback"]
    assert rolled.status == "applied" and rolled.after == SAVED
    assert straight.states[BACK - 1]["step"] == SAVED and same(straight.states[BACK - 1], straight.states[SAVED - 1])

    resumed, again = run(
        home, tmp_path, {}, steps=5, past=ResumeState(1, SAVED, 9, {}),
        resume_from_checkpoint=str(tmp_path / f"checkpoint-{SAVED}"),
    )  # fmt: skip
    assert isinstance(again.sent[0], RunStarted)
    assert {spec.name: spec.value for spec in again.sent[0].actuators}[knob] == turned.after, "it is set again"
    assert resumed.states[-1]["step"] == 5 and same(resumed.states[-1], straight.states[4]), "bit for bit"


def difference_is_rounding(first: Value, second: Value) -> bool:
    """The log has nine digits."""
    return first == second if isinstance(first, str) else bool(first == pytest.approx(second, rel=1e-8))


def at_step(seen: Recorder, step: int) -> Any:
    """The model as it was when that step began, and the step's batch; 1 is the first."""
    model = copy.deepcopy(seen.trainer.model)
    model.load_state_dict(seen.states[step - 2]["state dict"])
    return model.requires_grad_(False), seen.batches[step - 1]


def shifted(model: Any, batch: Any, by: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities of the labels, (B, T − by), of the token `by` places on, and those labels."""
    logs = model(input_ids=batch["input_ids"]).logits[:, :-by].log_softmax(-1)
    labels = batch["labels"][:, by:]
    return logs.gather(-1, labels.unsqueeze(-1)).squeeze(-1), labels


def published(line: FakeLink, metric: str) -> float:
    (seen,) = [
        observation
        for observation in line.observed()
        if observation.step == TURNED + 1 and observation.tick == TURNED + 2
    ]
    return seen.metrics[metric]


def kg(on: Recorder, _: Recorder, line: FakeLink, weight: Any) -> None:
    model, batch = at_step(on, TURNED + 1)
    channel = next(candidate for candidate in on.trainer.channels if candidate.name == "kg")
    logs, labels = shifted(model, batch)
    scores = torch.tensor([[channel.scores.get(int(label), 0.0) for label in row] for row in labels])
    weights = scores / scores.mean()
    assert float(weights.mean()) == pytest.approx(1)
    term = float(-(weights * logs).mean())
    assert published(line, "channel/kg") == pytest.approx(term, rel=1e-5)
    assert published(line, "channel/kg/weight") == weight
    assert published(line, "loss") == pytest.approx(float(-logs.mean()) + weight * term, rel=1e-5)


def mtp(on: Recorder, _: Recorder, line: FakeLink, weight: Any) -> None:
    """The head begins as the model's own output."""
    model, batch = at_step(on, TURNED + 1)
    logs, _labels = shifted(model, batch, 2)
    term = float(-logs.mean())
    assert published(line, "channel/mtp") == pytest.approx(term, rel=1e-5)
    own, _labels = shifted(model, batch)
    assert published(line, "loss") == pytest.approx(float(-own.mean()) + weight * term, rel=1e-5)


def rounded(weight: torch.Tensor, bits: int, group: int) -> torch.Tensor:
    """Value by value."""
    most = 2 ** (bits - 1) - 1
    copy = weight.clone()
    for row in copy:
        for start in range(0, len(row), group):
            scale = float(row[start : start + group].abs().max()) / most
            row[start : start + group] = (row[start : start + group] / scale).round() * scale
    return copy


def quantised(on: Recorder, _: Recorder, line: FakeLink, __: Any) -> None:
    model, batch = at_step(on, TURNED + 1)
    FakeQuantisation(model.requires_grad_()).write("none")
    inside = [module for name, module in model.named_modules() if type(module) is torch.nn.Linear and name != "lm_head"]
    with torch.no_grad():
        for module in inside:
            width = module.weight.shape[1]
            module.weight.copy_(rounded(module.weight, 4, 32 if width % 32 == 0 else width))
    logs, _labels = shifted(model.requires_grad_(False), batch)
    assert published(line, "loss") == pytest.approx(float(-logs.mean()), rel=1e-5)
    bits = [
        observation.metrics["eval/weight_bits"]
        for observation in line.observed()
        if "eval/weight_bits" in observation.metrics
    ]
    assert bits[:2] == [32, 4], "each evaluation says at which quantisation it was done"


def clip(on: Recorder, off: Recorder, line: FakeLink, norm: Any) -> None:
    """Adam's first moment has the clipped gradient: m ← β m + (1 − β) g."""
    beta = on.trainer.args.adam_beta1

    def gradient(seen: Recorder) -> float:
        pairs = zip(*(moments(seen, step) for step in (TURNED, TURNED + 1)), strict=True)
        return float(torch.cat([((now - beta * then) / (1 - beta)).flatten() for then, now in pairs]).norm())

    assert gradient(on) == pytest.approx(norm, rel=1e-3)
    assert published(line, "grad_norm") > 1.0 and gradient(off) == pytest.approx(1.0, rel=1e-3)


def moments(seen: Recorder, step: int) -> list[torch.Tensor]:
    """`exp_avg` of each parameter that has moved."""
    tensors: list[torch.Tensor] = seen.states[step - 1]["moments"]
    return tensors[::3]  # by name: exp_avg, exp_avg_sq, step


def rate(on: Recorder, _: Recorder, line: FakeLink, scale: Any) -> None:
    rates = [seen.metrics["learning_rate"] for seen in line.observed() if "learning_rate" in seen.metrics]
    assert rates[TURNED] == pytest.approx(scale * rates[TURNED - 1])


def mixture(on: Recorder, off: Recorder, line: FakeLink, _: Any) -> None:
    """The loader has drawn the next step's rows when it is turned: those after are by the new shares."""
    names = on.job.mixture.names  # type: ignore[union-attr]
    rows = {tuple(row.tolist()) for row in on.trainer.train_dataset.datasets[names.index("two")].tokens}
    of_two = [sum(tuple(row.tolist()) in rows for row in batch["input_ids"]) for batch in on.batches]
    assert of_two[TURNED] == of_two[TURNED - 1] == 2 and of_two[TURNED + 1 :] == [4] * len(of_two[TURNED + 1 :])


EFFECTS: Any = {
    "channel.kg": kg, "channel.mtp": mtp, "train.quantisation": quantised, "grad.clip": clip,
    "optimizer.lr_scale": rate, "data.mixture": mixture,
}  # fmt: skip


def gradients(trainer: Any, batch: Any) -> list[torch.Tensor | None]:
    trainer.model.train()
    heads = [channel.module for channel in getattr(trainer, "channels", ()) if channel.module is not None]
    moved = [*trainer.model.parameters(), *(parameter for head in heads for parameter in head.parameters())]
    for parameter in moved:
        parameter.grad = None
    trainer.current_gradient_accumulation_steps = 1
    trainer.compute_loss(trainer.model, dict(batch), num_items_in_batch=batch["labels"][:, 1:].numel()).backward()
    return [None if parameter.grad is None else parameter.grad.clone() for parameter in moved]


def explicit_kg(job: Job, batch: Any, weight: float) -> torch.Tensor:
    logs, labels = shifted(job.trainer.model, batch)
    channel = next(candidate for candidate in job.trainer.channels if candidate.name == "kg")
    scores = torch.tensor([[channel.scores.get(int(label), 0.0) for label in row] for row in labels])
    return -logs.mean() - weight * (scores / scores.mean() * logs).mean()


def explicit_mtp(job: Job, batch: Any, weight: float) -> torch.Tensor:
    model = job.trainer.model
    channel = next(candidate for candidate in job.trainer.channels if candidate.name == "mtp")
    outputs = model(input_ids=batch["input_ids"], output_hidden_states=True)
    hidden = outputs.hidden_states[-1][:, :-2]
    head = channel.module
    predicted = hidden + silu(rms_norm(hidden, (hidden.shape[-1],), head.scale, 1e-6) @ head.up.T) @ head.down.T
    logs = (predicted @ model.lm_head.weight.T).log_softmax(-1)
    next_but_one = logs.gather(-1, batch["labels"][:, 2:].unsqueeze(-1))
    own, _ = shifted(model, batch)
    loss: torch.Tensor = -own.mean() - weight * next_but_one.mean()
    return loss


@pytest.mark.parametrize("name", ["channel.kg", "channel.mtp", "train.quantisation"])
def test_gradients_include_a_term_only_while_it_is_on(home: Home, tmp_path: Path, name: str) -> None:
    job = home.job(tmp_path, token_prior="unigram")
    assert job.mixture is not None
    rows = [job.mixture.dataset[index] for index in range(4)]
    batch = {key: torch.stack([row[key] for row in rows]) for key in ("input_ids", "labels")}
    plain = Trainer(model=job.trainer.model, args=job.trainer.args)
    wanted = gradients(plain, batch)
    for channel in job.trainer.channels:
        if channel.module is not None:  # off its start, where it does nothing of its own
            with torch.no_grad():
                channel.module.down.normal_(generator=torch.Generator().manual_seed(1))
    job.attach(link=FakeLink())
    knobs = job.actuators
    assert knobs is not None
    for channel in job.trainer.channels:
        channel.register_knob(knobs)
    heads = [None] * 3
    assert same_gradients(gradients(job.trainer, batch), [*wanted, *heads])
    generator = torch.get_rng_state()
    _, on = KNOBS[name]
    assert knobs.apply(name, on).status == "applied"
    actual = gradients(job.trainer, batch)
    if name == "train.quantisation":
        quantised_model = copy.deepcopy(job.trainer.model)
        FakeQuantisation(quantised_model).write("none")
        with torch.no_grad():
            for module in FakeQuantisation(quantised_model).layers:
                module.weight.copy_(fake_quantise(module.weight, 4))
        plain.model = quantised_model
        assert same_gradients(actual, [*gradients(plain, batch), *heads]), "straight through"
    else:
        loss = (explicit_kg if name == "channel.kg" else explicit_mtp)(job, batch, float(on))  # type: ignore[arg-type]
        moved = [*job.trainer.model.parameters(), *(job.trainer.channels[1].module.parameters())]
        exact = torch.autograd.grad(loss, moved, allow_unused=True)
        for gradient, other_one in zip(actual, exact, strict=True):
            assert (gradient is None) == (other_one is None)
            assert gradient is None or torch.allclose(gradient, other_one, rtol=1e-4, atol=1e-7)
    assert not same_gradients(actual, [*wanted, *heads])
    assert torch.equal(generator, torch.get_rng_state()), "no generator is touched"
    assert knobs.apply(name, KNOBS[name][0]).status == "applied"
    assert same_gradients(gradients(job.trainer, batch), [*wanted, *heads]), "off is as never on, bit for bit"


def same_gradients(first: list[torch.Tensor | None], second: list[torch.Tensor | None]) -> bool:
    return len(first) == len(second) and all(
        (a is None and b is None) or (a is not None and b is not None and torch.equal(a, b))
        for a, b in zip(first, second, strict=True)
    )
