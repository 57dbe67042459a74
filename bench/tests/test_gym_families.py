"""Families of faults: each draws its parameters, acts from its onset on, and acts the same from the same state."""

from __future__ import annotations

import ast
import json
import math
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from oven_bench.gym import faults
from oven_bench.gym.fault import Fault, Step, Trainee, fault, make
from oven_bench.gym.faults import families
from oven_bench.gym.faults.pretraining_data import CorruptedBatches, ShuffledTargets
from oven_bench.gym.seeded_draws import At, count, log10_uniform, log_uniform, uniform, whole
from oven_bench.gym.shared_prefix import draw
from oven_bench.gym.task_table import TASKS
from oven_bench.gym.tasks.pretraining.trainee import BATCH
from oven_core.errors import ConfigError

ONSET, END, SEED = 3, 9, 1
FAMILIES = families().values()
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
Metrics = list[dict[str, float]]
Sound = Mapping[str, Mapping[int, tuple[Metrics, list[Tensor]]]]


def stepped(trainee: Trainee, until: int, case: Fault | None) -> Metrics:
    return [trainee.train_step(case) for _ in range(until - trainee.gradient_steps)]


def numbers(trainee: Trainee) -> list[Tensor]:
    """A copy of weights and moments."""
    parameters = list(trainee.model.parameters())
    moments = [trainee.optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq", "step")]
    return [tensor.detach().clone() for tensor in (*parameters, *moments)]


def same(first: list[Tensor], second: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def sound() -> Sound:
    """Metrics, weights and moments of runs without a fault, at the onset and at the end."""
    result: dict[str, dict[int, tuple[Metrics, list[Tensor]]]] = {}
    for kind in TASKS:
        trainee, reported = make(kind, SEED), Metrics()
        result[kind] = {}
        for until in (ONSET, END):
            reported = reported + stepped(trainee, until, None)
            result[kind][until] = (reported, numbers(trainee))
    return result


def test_there_are_about_twenty_of_each_task_and_healthy_ones_among_them() -> None:
    for kind in TASKS:
        own = [family for family in FAMILIES if family.kind == kind]
        assert len(own) >= 20 and 3 <= sum(family.healthy for family in own) <= 5
        hooks = {name for family in own for name in ("settings", "weights", "loss") if name in vars(family)}
        assert hooks == {"settings", "weights", "loss"}


def test_a_family_of_an_unknown_task_is_refused() -> None:
    with pytest.raises(ConfigError, match="image"):
        fault("image.blurred")(type("Blurred", (Fault,), {}))


@every
def test_a_family_is_described_and_draws_from_mild_to_severe(family: type[Fault]) -> None:
    assert family.name.partition(".")[0] == family.kind
    assert family.__doc__ and family.__doc__.rstrip().endswith(".") and "healthy." not in family.__doc__.lower()
    cases = [family.draw(Random(seed), 110) for seed in range(20)]
    assert cases == [family.draw(Random(seed), 110) for seed in range(20)]
    assert {case.onset for case in cases} <= {0, 110} and all(case.length >= 1 for case in cases)
    assert family.name.endswith(".healthy") or len({repr(case) for case in cases}) > 2
    assert family.draw(At(0.0), 110) and family.draw(At(1.0), 110)


def plain(value: Any) -> Any:
    """A parameter as JSON holds it without a loss."""
    match value:
        case None | bool() | int() | str():
            return value
        case float() | bytes():
            return value.hex()
        case tuple() | list():
            return [plain(inner) for inner in value]
        case slice():
            return [value.start, value.stop, value.step]
    return {field.name: plain(getattr(value, field.name)) for field in fields(value)}


@pytest.mark.parametrize("seed", [1, 2])
@every
def test_a_family_draws_what_it_drew_for_the_published_figures(family: type[Fault], seed: int) -> None:
    stored = json.loads((Path(__file__).parent / "data" / "draws.json").read_text())
    case = draw(family, seed)
    assert {"onset": case.onset, "drawn": plain(case)} == stored[f"{family.name} {seed}"]


@every
def test_a_family_acts_from_its_onset_on_and_not_before(family: type[Fault], sound: Sound) -> None:
    expected, _ = sound[family.kind][END]
    differs = False
    for seed in range(8):  # a mild case may do nothing in so few steps
        trainee, case = make(family.kind, SEED), family.draw(Random(seed), ONSET)
        reported = stepped(trainee, ONSET, case)
        if case.onset:
            assert reported == sound[family.kind][ONSET][0] and same(numbers(trainee), sound[family.kind][ONSET][1])
        reported += stepped(trainee, END, case)
        if differs := repr(reported) != repr(expected):  # NaN equals NaN here
            break
    assert differs is not family.name.endswith(".healthy")


@every
def test_runs_can_share_a_case_be_copied_and_roll_back(family: type[Fault]) -> None:
    case = family.draw(Random(2), ONSET)
    first = make(family.kind, SEED)
    stepped(first, ONSET + 1, case)
    early = first.state()
    stepped(first, ONSET + 3, case)
    first.restore(early)  # the data position goes back, the number of computed steps does not
    second = make(family.kind, SEED)
    stepped(second, ONSET + 2, case)
    second.restore(early)
    second.gradient_steps = first.gradient_steps
    expected = stepped(second, END, family.draw(Random(2), ONSET))
    assert repr(stepped(first, END, case)) == repr(expected)
    assert all(
        torch.equal(a, b) or (a.isnan() == b.isnan()).all()
        for a, b in zip(numbers(first), numbers(second), strict=True)
    )


@pytest.mark.parametrize("name", ["grpo.lr_too_high", "grpo.kl_blow_up", "grpo.fooled_and_fast", "grpo.judge_outage"])
def test_a_severe_grpo_fault_does_harm(name: str) -> None:
    trainee, twin = make("grpo", 101), make("grpo", 101)
    case = families()[name].draw(At(1, seed=101), 20)
    stepped(trainee, 80, case)
    stepped(twin, 80, None)
    assert trainee.quality() > twin.quality() + 0.02


@pytest.mark.parametrize("name", ["pretraining.lr_too_high", "pretraining.not_a_number", "pretraining.weight_noise"])
def test_a_severe_pretraining_fault_does_harm(name: str) -> None:
    trainee, twin = make("pretraining", 101), make("pretraining", 101)
    case = families()[name].draw(At(1, seed=1), 42)
    stepped(trainee, 66, case)
    stepped(twin, 66, None)
    assert trainee.quality() - twin.quality() > 0.02


def applied(case: Fault, batch: Tensor, cursor: int) -> Any:
    nobody = SimpleNamespace(seed=0, gradient_steps=cursor, cursor=cursor, model=None, optimizer=None, settings={})
    return case.apply_batch(batch, Step(cast(Any, nobody), case))


def test_a_bad_stretch_lies_in_the_data() -> None:
    batch = torch.randint(32, 127, (BATCH, 65), generator=torch.Generator().manual_seed(0))
    corrupted = CorruptedBatches(onset=50, length=10, share=0.3, seed=1)
    shuffled = ShuffledTargets(onset=50, length=10, share=1.0, seed=1)
    for case in (corrupted, shuffled):
        assert all(applied(case, batch, cursor) is batch for cursor in (49, 60))
        assert torch.equal(applied(case, batch, 55), applied(case, batch, 55))
    assert 0.2 < (applied(corrupted, batch, 55) != batch).float().mean() < 0.4
    inputs, targets = applied(shuffled, batch, 55)
    assert torch.equal(inputs, batch[:, :-1]) and not torch.equal(targets, batch[:, 1:])
    assert torch.equal(targets.sort(1).values, batch[:, 1:].sort(1).values)


def test_severity_goes_from_the_mild_end_to_the_severe_one() -> None:
    @fault("pretraining.some")
    class Some(Fault):
        """All kinds of severity."""

        steps: int = whole(60, 5)
        factor: float = log_uniform(1e-2, 1e-8)
        weight: float = uniform(2, 4)
        scale: float = log10_uniform(-1.0, 1.0, times=3)
        length: int = count(20, 1.0)

    assert [Some.draw(At(q), 0).steps for q in (0, 1)] == [60, 5]
    middle = Some.draw(At(0.5), 7)
    assert (middle.onset, middle.weight, middle.scale, middle.length) == (7, 3, 3, round(20 * 10**0.5))
    assert middle.factor == pytest.approx(1e-5) and math.isfinite(middle.share)
    assert [At(1, seed).getrandbits(32) for seed in (1, 2)] == [Random(seed).getrandbits(32) for seed in (1, 2)]


@pytest.mark.parametrize("module", faults.MODULES)
def test_no_family_reads_a_private_attribute(module: str) -> None:
    tree = ast.parse((Path(faults.__file__).parent / f"{module}.py").read_text())
    assert [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr.startswith("_")] == []
