"""Faults that were held out once, on the gym's own trainees: they draw, act from their onset on and not before, and
act the same again from the same state."""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.grpo.grouped_by_length import Grouped
from oven_learner.gym.faults.grpo.leaked_answers import Leaked
from oven_learner.gym.faults.grpo.overloaded_rewards import Overloaded
from oven_learner.gym.faults.grpo.quantized_sampler import Quantized
from oven_learner.gym.faults.grpo.rewards_as_completed import AsCompleted
from oven_learner.gym.faults.grpo.sampler_upgrade import padded_left
from oven_learner.gym.faults.pretraining.escaped_text import Escaped
from oven_learner.gym.faults.pretraining.framework_port import Ported
from oven_learner.gym.faults.pretraining.loss_of_one_rank import LossOfOneRank
from oven_learner.gym.faults.pretraining.masked_targets import Masked
from oven_learner.gym.faults.pretraining.part import Part
from oven_learner.gym.faults.pretraining.repeated_ngrams import Repeated
from oven_learner.gym.faults.pretraining.text import rewritten
from oven_learner.gym.faults.pretraining.uncleared_gradients import Uncleared
from oven_learner.gym.grpo.task import PAD
from oven_learner.gym.grpo.trainee import Grpo
from oven_learner.gym.pretraining.trainee import Pretraining
from oven_learner.gym.trainee import Trainee

PYPROJECT = Path(__file__).parents[2] / "pyproject.toml"
FAULTS: dict[str, str] = tomllib.loads(PYPROJECT.read_text())["project"]["entry-points"]["oven.faults"]
NAMES = frozenset(
    [
        "escaped_text",
        "framework_port",
        "grouped_by_length",
        "leaked_answers",
        "loss_of_one_rank",
        "masked_targets",
        "overloaded_rewards",
        "quantized_sampler",
        "repeated_ngrams",
        "rewards_as_completed",
        "sampler_upgrade",
        "summed_gradients",
        "uncleared_gradients",
        "unreduced_part",
    ]
)
ENTRY_POINTS = {name: target for name, target in FAULTS.items() if name.partition(".")[2] in NAMES}
ONSET, END_OF_RUN, SEED = 3, 9, 1
Metrics = list[dict[str, float]]


def loaded(target: str) -> Family:
    module, _, name = target.partition(":")
    return cast(Family, getattr(import_module(module), name)())


FAMILIES = [loaded(target) for target in ENTRY_POINTS.values()]
every = pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """As every episode: sums that are added up in the same order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trainee(kind: str) -> Trainee:
    return Pretraining(SEED) if kind == "pretraining" else Grpo(SEED)


def stepped(run: Trainee, to: int, case: Case | None) -> Metrics:
    return [run.train_step(case) for _ in range(to - run.gradient_steps)]


def numbers(run: Trainee) -> list[Tensor]:
    """A copy of weights and moments."""
    parameters = list(run.model.parameters())
    moments = [run.optimizer.state[p][name] for p in parameters for name in ("exp_avg", "exp_avg_sq", "step")]
    return [one.detach().clone() for one in (*parameters, *moments)]


def same(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(mine, theirs) for mine, theirs in zip(one, other, strict=True))


@pytest.fixture(scope="module")
def sound() -> dict[str, dict[int, tuple[Metrics, list[Tensor]]]]:
    """What runs without a fault report and hold, by kind, at the onset and at the end."""
    torch.set_num_threads(1)
    found: dict[str, dict[int, tuple[Metrics, list[Tensor]]]] = {}
    for kind in ("pretraining", "grpo"):
        run, reported = trainee(kind), Metrics()
        found[kind] = {}
        for to in (ONSET, END_OF_RUN):
            reported = reported + stepped(run, to, None)
            found[kind][to] = (reported, numbers(run))
    return found


def test_enough_of_each_kind_and_healthy_ones_among_them() -> None:
    assert [family.name for family in FAMILIES] == list(ENTRY_POINTS)
    assert all(family.name.startswith(f"{family.kind}.") for family in FAMILIES)
    faults = [family.kind for family in FAMILIES if not family.healthy]
    assert faults.count("pretraining") >= 6 and faults.count("grpo") >= 5
    assert len(FAMILIES) - len(faults) == 3


@every
def test_a_case_is_a_function_of_the_generator_and_the_onset(family: Family) -> None:
    cases = [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert cases == [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert {case.onset for case in cases} == {ONSET}
    assert len({repr(case) for case in cases}) > 2


@every
def test_it_acts_from_its_onset_on_and_not_before(family: Family, sound: Any) -> None:
    run, case = trainee(family.kind), family.draw(Random(1), ONSET)
    reported = stepped(run, ONSET, case)
    assert (reported, True) == (sound[family.kind][ONSET][0], same(numbers(run), sound[family.kind][ONSET][1]))
    reported += stepped(run, END_OF_RUN, case)
    expected, kept = sound[family.kind][END_OF_RUN]
    assert reported != expected
    assert same(numbers(run), kept) == isinstance(family, LossOfOneRank)
    assert all(math.isfinite(number) for metrics in reported for number in metrics.values())


@every
def test_runs_may_share_a_case_be_copied_and_go_back(family: Family) -> None:
    case = family.draw(Random(2), ONSET)
    one = trainee(family.kind)
    stepped(one, ONSET + 1, case)
    early = one.state()
    stepped(one, ONSET + 3, case)
    one.restore(early)  # the data go back, the steps that were computed do not
    other = trainee(family.kind)
    stepped(other, ONSET + 2, case)
    other.restore(early)
    other.gradient_steps = one.gradient_steps
    assert stepped(one, END_OF_RUN, case) == stepped(other, END_OF_RUN, family.draw(Random(2), ONSET))
    assert same(numbers(one), numbers(other))


@given(st.binary(min_size=1, max_size=20), st.integers(1, 3))
def test_what_is_escaped_can_be_read_back(text: bytes, times: int) -> None:
    read = Escaped(0, 1.0, times, 0).escape(text)
    for _ in range(times):
        read = json.loads(b'"' + read + b'"').encode("latin-1")
    assert read == text


def test_a_row_that_shrinks_goes_on_with_the_next() -> None:
    rows = torch.tensor([list(b"a   b"), list(b"C \n d")])
    flattened = rewritten(rows, Ported(0, 1.0, Part(0.0, 0.0), 1.0, True, 0).normalize, 1.0, "seed")
    assert [bytes(row) for row in flattened.tolist()] == [b"a bc ", b"c da "]
    assert torch.equal(rewritten(rows, bytes.lower, 0.0, "seed"), rows)


def test_an_ngram_is_repeated_for_its_stretch_alone() -> None:
    rows = torch.arange(1, 8)[None]
    case = Repeated(5, 2, 1.0, 3, 0)
    assert case.batch(rows, 6).tolist() == [[1, 2, 3, 1, 2, 3, 1]]
    assert case.batch(rows, 4) is rows and case.batch(rows, 7) is rows


def test_masked_targets_are_read_all_the_same() -> None:
    inputs, targets = Masked(0, 1.0, b"\n", 0).batch(torch.tensor([list(b"\na\nb")]), 0).tolist()
    assert inputs == [list(b"\na\n")] and targets == [[ord("a"), -100, ord("b")]]


@given(st.floats(0.0, 1.0), st.integers())
def test_a_part_is_its_share_of_all_weights(share: float, seed: int) -> None:
    part, model = Part.of(share, Random(seed)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    total = sum(parameter.numel() for parameter in model.parameters())
    covered = sum(elements.stop - elements.start for _, elements in part.slices(model))
    assert covered == round(part.end * total) - round(part.begin * total)
    assert abs(covered - share * total) <= 1.01


def test_gradients_that_are_all_kept_add_up_in_the_first_moment() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    before = [run.optimizer.state[p]["exp_avg"].clone() for p in run.model.parameters()]
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    Uncleared(0, 1.0).gradients(run)
    for parameter, moment in zip(run.model.parameters(), before, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(0.9 * moment + 0.1 * parameter.grad, moment + 0.1)


def test_the_learner_has_its_weights_back_once_completions_are_sampled() -> None:
    run, case = trainee("grpo"), Quantized(0, 2.0, 0)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    case.weights(run)
    assert not all(torch.equal(one, other) for one, other in zip(run.model.parameters(), before, strict=True))
    assert case.rewards({}, None, run) == {}
    for parameter, kept in zip(run.model.parameters(), before, strict=True):
        torch.testing.assert_close(parameter.detach(), kept, rtol=0, atol=1e-6)


@dataclass(frozen=True)
class Prompts:
    digits: Tensor  # int64 [prompts, 5], PAD after the last digit
    levels: Tensor  # int64 [prompts]
    answers: Tensor  # int64 [prompts, 7]: the digits in order, an end, PAD


END = 10
PROMPTS = Prompts(
    torch.tensor([[3, 1, 2, PAD, PAD], [9, 8, 7, 0, PAD], [5, 4, 3, 2, 1]]),
    torch.tensor([0, 1, 2]),
    torch.tensor([[1, 2, 3, END, PAD, PAD, PAD], [0, 7, 8, 9, END, PAD, PAD], [1, 2, 3, 4, 5, END, PAD]]),
)


@dataclass(frozen=True)
class Completions:
    tokens: Tensor
    lengths: Tensor


def test_a_prompt_that_leaks_is_its_answer() -> None:
    leaked = Leaked(0, 1.0, 0).batch(PROMPTS, 0)
    assert leaked.digits.tolist() == [[1, 2, 3, PAD, PAD], [0, 7, 8, 9, PAD], [1, 2, 3, 4, 5]]
    assert leaked.answers is PROMPTS.answers


def test_padding_moves_to_the_left() -> None:
    assert padded_left(PROMPTS.digits).tolist() == [[PAD, PAD, 3, 1, 2], [PAD, 9, 8, 7, 0], [5, 4, 3, 2, 1]]


def test_grouped_prompts_are_of_one_length_and_rightly_solved() -> None:
    met = set()
    for cursor in range(20):
        grouped = Grouped(0, 1.0, 0).batch(PROMPTS, cursor)
        (level,) = set(grouped.levels.tolist())
        met.add(level)
        length = level + 3
        assert (grouped.digits[:, length:] == PAD).all() and (grouped.digits[:, :length] < END).all()
        assert torch.equal(grouped.answers[:, :length], grouped.digits[:, :length].sort(1).values)
        assert torch.equal(grouped.answers[:, length:], PROMPTS.answers[level, length:].expand(3, -1))
    assert met == {0, 1, 2}


def test_scores_arrive_shortest_first_among_those_asked_at_once() -> None:
    completions = Completions(torch.zeros(4, 7), torch.tensor([5, 4, 6, 3]))
    given = {"critic": torch.tensor([1.0, 2.0, 3.0, 4.0]), "exact": torch.tensor([1.0, 2.0, 3.0, 4.0])}
    arrived = AsCompleted(0, 2, 0.0, ("critic",), 0).rewards(given, completions, trainee("grpo"))
    assert arrived["critic"].tolist() == [2.0, 1.0, 4.0, 3.0] and arrived["exact"] is given["exact"]


def test_what_times_out_scores_nothing_and_whole_numbers_hold_no_fractions() -> None:
    completions = Completions(torch.zeros(2, 4), torch.tensor([4, 0]))
    run, given = trainee("grpo"), {"critic": torch.tensor([1.5, 0.5])}
    case = Overloaded(0, 1.0, 2, 0.5, True, 0)
    assert case.rewards(given, completions, run)["critic"].tolist() == [0.0, 0.0]
    run.gradient_steps = 1  # past the busy share of the period
    assert case.rewards(given, completions, run)["critic"].tolist() == [1.0, 0.0]
    assert Overloaded(0, 1.0, 2, 1.0, False, 0).rewards(given, completions, run)["critic"].tolist() == [0.0, 0.5]
