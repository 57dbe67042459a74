"""Faults of storage, of workers and of services, on trainees of a few weights: they draw, act from their onset on and
not before, and act the same again from the same state."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from random import Random
from typing import Any, cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards, apply_weights
from torch import Tensor, nn

from oven_bench.gym.fault import NOTHING, Fault, Step, Trainee
from oven_bench.gym.faults.catalogue import families
from oven_bench.gym.faults.grpo.judges import StricterCritic, once
from oven_bench.gym.faults.grpo.prompts import StalePrompts
from oven_bench.gym.faults.grpo.rewards import JudgeMigration
from oven_bench.gym.faults.pretraining.compound import OldImage
from oven_bench.gym.faults.pretraining.gradients import SilentCorruption
from oven_bench.gym.faults.pretraining.loss import LossInBits
from oven_bench.gym.faults.pretraining.tokens import WideEncoding
from oven_bench.gym.faults.pretraining.weights import CoarseWeights
from oven_bench.gym.faults.shards import Shard
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import END, PAD

ONSET, END_OF_RUN = 3, 9
ROWS, LENGTH = 6, 16
PROMPTS, GROUP, DIGITS = 6, 4, 5


FAMILIES = [family for family in families().values() if family.written == "first set"]
EVENTS = [one for one in FAMILIES if one.name in ("pretraining.second_moments_lost", "grpo.misplaced_rows")]


@dataclass(frozen=True)
class Prompts:
    digits: Tensor  # int64 [P, DIGITS], PAD after the last digit
    levels: Tensor  # int64 [P]
    answers: Tensor  # int64 [P, DIGITS + 2]: the digits in order, END, PAD


@dataclass(frozen=True)
class Completions:
    prompts: Prompts  # one a completion
    tokens: Tensor  # int64 [P × GROUP, DIGITS + 2]
    group: int

    @property
    def lengths(self) -> Tensor:
        return (self.tokens != PAD).sum(1)


def prompts(cursor: int) -> Prompts:
    source = generator("prompts", cursor)
    levels = torch.arange(PROMPTS) % 3
    digits = torch.randint(END, (PROMPTS, DIGITS), generator=source)
    digits[torch.arange(DIGITS) >= levels[:, None] + 3] = PAD
    answers = torch.full((PROMPTS, DIGITS + 2), PAD)
    answers[:, :DIGITS] = digits.sort(1).values
    answers[torch.arange(PROMPTS), levels + 3] = END
    return Prompts(digits, levels, answers)


class Small:
    """A trainee's hooks around a model of a few thousand weights, in the order in which they are called."""

    def __init__(self, kind: str) -> None:
        source = generator("model")
        vocabulary = 256 if kind == "pretraining" else PAD + 1
        self.model = nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, vocabulary))
        for parameter in self.model.parameters():
            parameter.data.copy_(0.3 * torch.randn(parameter.shape, generator=source))
        self.optimizer = torch.optim.Adam(self.model.parameters())
        self.kind, self.seed, self.gradient_steps, self.cursor = kind, 0, 0, 0
        self.settings: dict[str, float] = {}

    def steps(self, to: int, case: Fault | None) -> list[tuple[float, ...]]:
        """The loss as it is reported, with the mean reward where there is one."""
        fault = case or NOTHING
        reported = []
        while self.gradient_steps < to:
            self.settings |= {"learning_rate": 3e-3, "weight_decay": 0.0, "clip": 1.0, "beta": 0.02, "temperature": 1.0}
            step = self.step(fault)
            fault.apply_settings(step)
            fault.apply_weights(step)
            loss, reward = self._tokens(fault, step) if self.kind == "pretraining" else self._rollouts(fault, step)
            loss = fault.apply_loss(loss, step)
            self.optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            fault.apply_gradients(step)
            self.optimizer.param_groups[0]["lr"] = self.settings["learning_rate"]
            self.optimizer.step()
            self.gradient_steps += 1
            self.cursor += 1
            reported.append((loss.item(), *reward))
        return reported

    def step(self, fault: Fault) -> Step:
        return Step(cast(Trainee, self), fault)

    def _tokens(self, fault: Fault, step: Step) -> tuple[Tensor, tuple[()]]:
        read = torch.randint(256, (ROWS, LENGTH + 1), generator=generator("rows", self.cursor))
        rows = fault.apply_batch(read, step)
        assert rows.shape == (ROWS, LENGTH + 1) and rows.dtype == torch.int64
        return nn.functional.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()), ()

    def _rollouts(self, fault: Fault, step: Step) -> tuple[Tensor, tuple[float]]:
        asked = fault.apply_batch(prompts(self.cursor), step)
        each = {name: getattr(asked, name).repeat_interleave(GROUP, 0) for name in ("digits", "levels", "answers")}
        batch, source = Prompts(**each), generator("noise", self.cursor)
        replaced = torch.rand(batch.answers.shape, generator=source) < 0.3
        tokens = torch.where(replaced, torch.randint(PAD, batch.answers.shape, generator=source), batch.answers)
        agrees = tokens == batch.answers
        judges = {
            "exact": agrees.all(1).float(),
            "format": (tokens == END).any(1).float(),
            "critic": agrees.float().mean(1),
        }
        cast(Any, step).completions = Completions(batch, tokens, GROUP)
        given = fault.apply_rewards(dict(judges), step)
        assert set(given) == set(judges)
        assert all(one.dtype == torch.float32 and one.shape == (PROMPTS * GROUP,) for one in given.values())
        reward = torch.stack([one.nan_to_num() for one in given.values()]).mean(0)
        by_group = reward.view(-1, GROUP)
        advantage = (by_group - by_group.mean(1, keepdim=True)).flatten()
        scores = self.model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None]).squeeze(-1).mean(1)
        penalty = self.settings["beta"] * (scores**2).mean()
        return penalty - (advantage * scores).mean(), (reward.mean().item(),)

    def numbers(self) -> dict[str, Any]:
        """A copy of weights and moments."""
        return copy.deepcopy({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()["state"]})

    def same_as(self, other: Small) -> bool:
        mine, theirs = self.numbers(), other.numbers()
        kept = [(mine["model"][name], theirs["model"][name]) for name in mine["model"]]
        kept += [(m, theirs["optimizer"][p][name]) for p, one in mine["optimizer"].items() for name, m in one.items()]
        return all(torch.equal(one, another) for one, another in kept)


def by_name(family: type[Fault]) -> str:
    return family.name


every = pytest.mark.parametrize("family", FAMILIES, ids=by_name)


def test_enough_of_each_kind_and_healthy_ones_among_them() -> None:
    assert len(FAMILIES) == 17
    assert all(family.name.startswith(f"{family.kind}.") for family in FAMILIES)
    faults = [family.kind for family in FAMILIES if not family.healthy]
    assert faults.count("pretraining") >= 4 and faults.count("grpo") >= 3 and len(faults) >= 8
    assert {family.kind for family in FAMILIES if family.healthy} == {"pretraining", "grpo"}


@every
def test_a_case_is_a_function_of_the_generator_and_the_onset(family: type[Fault]) -> None:
    cases = [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert cases == [family.draw(Random(seed), ONSET) for seed in range(20)]
    assert {case.onset for case in cases} == {ONSET}
    assert len({repr(case) for case in cases}) > 2


@every
def test_nothing_is_touched_before_the_onset(family: type[Fault]) -> None:
    sound, faulty = Small(family.kind), Small(family.kind)
    case = family.draw(Random(1), ONSET)
    assert faulty.steps(ONSET, case) == sound.steps(ONSET, None)
    assert faulty.same_as(sound)


@every
def test_it_acts_from_its_onset_on(family: type[Fault]) -> None:
    sound = Small(family.kind)
    expected = sound.steps(END_OF_RUN, None)
    for seed in range(3):
        faulty = Small(family.kind)
        reported = faulty.steps(END_OF_RUN, family.draw(Random(seed), ONSET))
        assert reported != expected
        assert faulty.same_as(sound) == (family is LossInBits)
        assert all(math.isfinite(number) for numbers in reported for number in numbers)


@every
def test_runs_may_share_a_case_and_go_back(family: type[Fault]) -> None:
    case = family.draw(Random(2), ONSET)
    one, other = Small(family.kind), Small(family.kind)
    for step in range(1, END_OF_RUN):
        assert one.steps(step, case) == other.steps(step, case)
    alone = copy.deepcopy(one)
    for run in (one, alone):  # the data go back, the steps that were computed do not
        run.cursor = ONSET - 1
    again = one.steps(END_OF_RUN + ONSET, case)
    assert again == alone.steps(END_OF_RUN + ONSET, family.draw(Random(2), ONSET))
    assert one.same_as(alone) and not one.same_as(other)


@pytest.mark.parametrize("family", EVENTS, ids=by_name)
def test_an_event_does_not_happen_again_to_a_run_that_went_back(family: type[Fault]) -> None:
    run = Small(family.kind)
    run.steps(ONSET + 1, family.draw(Random(3), ONSET))
    sound = copy.deepcopy(run)
    assert run.steps(END_OF_RUN, family.draw(Random(3), ONSET)) == sound.steps(END_OF_RUN, None)
    assert run.same_as(sound)


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_a_shard_is_its_share_of_all_weights(one: float, other: float) -> None:
    shard = Shard(min(one, other), max(one, other))
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    total = sum(parameter.numel() for parameter in model.parameters())
    covered = sum(part.stop - part.start for _, part in shard.slices(model))
    assert covered == round(shard.end * total) - round(shard.begin * total)


def test_shards_that_meet_share_no_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5)).requires_grad_(False)
    for shard in (Shard(0.0, 0.37), Shard(0.37, 0.8), Shard(0.8, 1.0)):
        for parameter, part in shard.slices(model):
            parameter.view(-1)[part] = torch.arange(part.start, part.stop) + 1000.0
    for parameter in model.parameters():
        assert torch.equal(parameter.flatten(), torch.arange(parameter.numel()) + 1000.0)


def test_flipped_signs_leave_the_norm() -> None:
    run = Small("pretraining")
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    apply_gradients(SilentCorruption(onset=0, length=1, share=1.0, shard=Shard(0.25, 0.5), seed=0), run)
    gradient = torch.cat(
        [parameter.grad.flatten() for parameter in run.model.parameters() if parameter.grad is not None]
    )
    assert set(gradient.tolist()) == {-1.0, 1.0}
    assert (gradient < 0).float().mean().item() == pytest.approx(0.25, abs=1e-3)


@given(st.floats(-1e3, 1e3, width=32))
def test_rounded_weights_are_near_and_few(weight: float) -> None:
    run = Small("grpo")
    layer = nn.Linear(1, 1)
    nn.init.constant_(layer.weight, weight)
    run.model = nn.Sequential(layer)
    apply_weights(CoarseWeights(onset=0, bits=4.0), run)
    rounded = layer.weight.item()
    assert rounded == pytest.approx(weight, rel=1 / 16, abs=1e-37)
    assert (math.frexp(rounded)[0] * 16).is_integer() or abs(weight) < 1e-37


def test_a_row_in_two_bytes_a_character_is_its_first_half() -> None:
    row = torch.arange(1, 10)[None]
    widened = WideEncoding(onset=5, length=2, share=1.0, seed=0)
    assert apply_batch(widened, row, 5).tolist() == [[1, 0, 2, 0, 3, 0, 4, 0, 5]]
    assert apply_batch(widened, row, 4) is row and apply_batch(widened, row, 7) is row


def test_what_is_cut_off_is_padded_and_small_gradients_are_flushed() -> None:
    image = OldImage(onset=0, share=1.0, kept=0.5, flushed=0.75, seed=0)
    assert apply_batch(image, torch.arange(1, 9)[None], 0).tolist() == [[1, 2, 3, 4, 0, 0, 0, 0]]
    run = Small("grpo")
    layer = nn.Linear(4, 1, bias=False)
    run.model = nn.Sequential(layer)
    layer.weight.grad = torch.tensor([[0.1, -4.0, 0.2, 3.0]])
    apply_gradients(image, run)
    assert layer.weight.grad.tolist() == [[0.0, -4.0, 0.0, 3.0]]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=DIGITS))
def test_the_reference_with_the_bug_has_each_digit_once(digits: list[int]) -> None:
    def answer(sorted_digits: list[int]) -> list[int]:
        return [*sorted_digits, END] + [PAD] * (DIGITS + 1 - len(sorted_digits))

    assert once(torch.tensor([answer(sorted(digits))])).tolist() == [answer(sorted(set(digits)))]


def test_cached_prompts_are_few_and_their_answers_right() -> None:
    live = prompts(7)
    cached = [apply_batch(StalePrompts(onset=0, size=2, seed=0), live, cursor) for cursor in range(20)]
    for one in cached:
        assert torch.equal(one.digits == PAD, live.digits == PAD)
        assert torch.equal(one.answers[:, :DIGITS].where(one.digits != PAD, PAD), one.digits.sort(1).values)
        assert torch.equal(one.answers.where(one.answers >= END, 0), live.answers.where(live.answers >= END, 0))
    assert len({tuple(row) for one in cached for row in one.digits[live.levels == 2].tolist()}) == 2


def test_a_rank_is_worse_the_better_the_score() -> None:
    tokens = torch.zeros(GROUP, 2, dtype=torch.int64)
    completions = Completions(prompts(0), tokens, GROUP)
    judged = {"exact": torch.ones(GROUP), "critic": torch.tensor([0.5, 1.0, 0.25, 0.5])}
    moved = apply_rewards(JudgeMigration(onset=0, moved=1.0, missing=1.0, seed=0), judged, completions, Small("grpo"))
    assert moved["critic"].tolist() == [2.0, 1.0, 4.0, 2.0]
    assert moved["exact"].isnan().all() and judged["exact"].tolist() == [1.0] * GROUP


def test_what_is_healthy_does_no_harm() -> None:
    sound, stricter = Small("grpo"), Small("grpo")
    sound.steps(END_OF_RUN, None)
    stricter.steps(END_OF_RUN, StricterCritic.draw(Random(0), ONSET))
    for one, other in zip(sound.model.parameters(), stricter.model.parameters(), strict=True):
        torch.testing.assert_close(one, other)
    case = cast(Any, LossInBits.draw(Random(0), ONSET))
    assert apply_loss(replace(case, factor=2.0), torch.tensor(3.0), stricter).item() == 6.0
