"""The third set of faults that were held out: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards, apply_weights
from tests.support.whole_trainees import same, stepped, trainee
from torch import Tensor

from oven_bench.gym.fault import Rewards, Step
from oven_bench.gym.faults.grpo.judges import BiasedJudge, MoodyJudge
from oven_bench.gym.faults.grpo.prompts import last
from oven_bench.gym.faults.grpo.rewards import asked_first
from oven_bench.gym.faults.grpo.rollouts import UnsyncedWorkers
from oven_bench.gym.faults.pretraining.checkpoints import NEVER, PaddedVocabulary, UnloadedLayers
from oven_bench.gym.faults.pretraining.compound import MemoryDiet, rounded
from oven_bench.gym.faults.pretraining.gradients import GradientUnderflow
from oven_bench.gym.faults.pretraining.loss import UnevenAccumulation
from oven_bench.gym.faults.pretraining.text import NewCrawl
from oven_bench.gym.faults.pretraining.tokens import IGNORED, DoubleShift, transposed
from oven_bench.gym.sorting.sorting_prompts import PAD


def test_targets_that_are_shifted_twice_are_the_byte_after_the_next() -> None:
    rows = torch.tensor([list(b"abcd"), list(b"efgh")])
    inputs, targets = apply_batch(DoubleShift(onset=0, share=0.5), rows, 0).tolist()
    assert inputs == [list(b"abc"), list(b"efg")]
    assert targets == [[*b"cd", IGNORED], list(b"fgh")]
    assert apply_batch(DoubleShift(onset=1, share=0.5), rows, 0) is rows


@given(st.integers(1, 5), st.integers(1, 7))
def test_a_reshape_keeps_every_byte_and_parts_neighbours(rows: int, length: int) -> None:
    block = torch.arange(rows * length).view(rows, length)
    mixed = transposed(block)
    assert sorted(mixed.flatten().tolist()) == block.flatten().tolist()
    assert mixed.flatten()[:rows].tolist() == block[:, 0].tolist()


@pytest.mark.parametrize(("flush", "left"), [(True, [0.0, 0.0, 1.25, -3.0]), (False, [0.0, 1.0, 1.0, -3.0])])
def test_small_gradients_vanish(flush: bool, left: list[float]) -> None:
    run = trainee("pretraining")
    (parameter, *_) = run.model.parameters()
    parameter.grad = torch.zeros_like(parameter)
    parameter.grad[0, :4] = torch.tensor([0.25, 0.75, 1.25, -3.0])
    apply_gradients(GradientUnderflow(onset=0, spacing=1.0, flush=flush), run)
    assert parameter.grad[0, :4].tolist() == left


@given(st.floats(-1e6, 1e6, width=32), st.integers(0, 7))
def test_a_moment_is_rounded_to_its_bits(number: float, bits: int) -> None:
    moment = torch.tensor([number])
    once = rounded(moment, bits)
    assert abs(float(once) - float(moment)) <= abs(float(moment)) * 2.0 ** -(bits + 1) + 1e-44
    assert torch.equal(rounded(once, bits), once)


def test_less_is_read_of_fewer_rows() -> None:
    assert apply_batch(MemoryDiet(onset=0, context=0.5, rows=0.25, bits=7), torch.zeros(8, 64), 0).shape == (2, 32)


def test_layers_are_fresh_once_and_only_those_that_are_missing() -> None:
    run = trainee("pretraining")
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    case = UnloadedLayers(onset=0, first=0.0, share=0.01, shards=0.5, seed=0)
    with torch.no_grad():
        apply_weights(case, run)
    after = [parameter.detach().clone() for parameter in run.model.parameters()]
    rows = len(before[0]) // 2
    assert not torch.equal(after[0][:rows], before[0][:rows]) and torch.equal(after[0][rows:], before[0][rows:])
    assert same(after[1:], before[1:])
    run.gradient_steps = 1
    apply_weights(case, run)
    assert same([parameter.detach() for parameter in run.model.parameters()], after)


def test_a_vintage_has_each_of_its_flaws_for_its_time() -> None:
    rows = torch.tensor([list(b"a = some_long_name + 42  # text")])
    redacted = NewCrawl(onset=2, length=3, redacted=1.0, shortest=9, blobs=0.0, padded=0.0, seed=0)
    assert redacted.redact(bytes(rows[0].tolist())) == b"a = <NAME> + <NAME>  # text"
    assert apply_batch(redacted, rows, 1) is rows and apply_batch(redacted, rows, 5) is rows
    assert b"<NAME>" in bytes(apply_batch(redacted, rows, 2)[0].tolist())
    (padded,) = apply_batch(
        NewCrawl(onset=0, length=1, redacted=0.0, shortest=9, blobs=0.0, padded=1.0, seed=0), rows, 0
    ).tolist()
    kept = len(bytes(padded).rstrip(b"\0"))
    assert padded[:kept] == rows[0, :kept].tolist() and kept < rows.shape[1]


def test_no_row_that_is_looked_up_changes_with_the_padding() -> None:
    run = trainee("pretraining")
    (embedding, *_) = run.model.parameters()
    before = embedding.detach().clone()
    with torch.no_grad():
        apply_weights(PaddedVocabulary(onset=0, rows=len(NEVER), size=30.0, seed=0), run)
    changed = (embedding.detach() != before).any(1).nonzero().flatten().tolist()
    assert changed == list(NEVER)
    assert float(embedding.detach().norm()) > 3 * float(before.norm())


def test_a_step_that_is_not_divided_is_a_multiple_for_itself_alone() -> None:
    run, case = trainee("pretraining"), UnevenAccumulation(onset=0, every=5.0, parts=4, seed=0)
    factors = []
    for cursor in range(200):
        run.cursor = cursor
        factors.append(float(apply_loss(case, torch.tensor(1.0), run)))
    assert {*factors} == {1.0, 2.0, 3.0, 4.0}
    assert 0.1 < sum(factor > 1 for factor in factors) / len(factors) < 0.3


def test_the_last_digits_are_left_of_a_prompt() -> None:
    digits = torch.tensor([[3, 1, 2, PAD, PAD], [9, 8, 7, 0, PAD], [5, 4, 3, 2, 1]])
    assert last(digits, 3).tolist() == [[3, 1, 2, PAD, PAD], [8, 7, 0, PAD, PAD], [3, 2, 1, PAD, PAD]]
    assert torch.equal(last(digits, 5), digits)


def test_what_begins_alike_has_the_score_of_the_first() -> None:
    tokens = torch.tensor([[1, 2], [1, 3], [2, 2], [1, 2], [1, 2], [2, 3], [2, 2], [2, 3]])
    assert asked_first(tokens, 4, 0).tolist() == [0, 0, 0, 0, 4, 4, 4, 4]
    assert asked_first(tokens, 4, 1).tolist() == [0, 0, 2, 0, 4, 5, 5, 5]
    assert asked_first(tokens, 4, 2).tolist() == [0, 1, 2, 0, 4, 5, 6, 5]


@dataclass(frozen=True)
class Completions:
    tokens: Tensor
    mask: Tensor
    group: int


def test_a_biased_judge_likes_what_is_long_and_what_is_first() -> None:
    completions = Completions(torch.zeros(2, 4), torch.tensor([[True] * 2 + [False] * 2, [True] * 4]), 2)
    given = {"critic": torch.tensor([0.4, 0.6]), "exact": torch.tensor([0.0, 1.0])}
    run = trainee("grpo")
    scored = apply_rewards(
        BiasedJudge(onset=0, judges=("critic",), grades=1, verbosity=1.0, position=0.25), given, completions, run
    )
    assert scored["critic"].tolist() == [0.5, 1.75] and scored["exact"].tolist() == [0.0, 1.0]


def test_a_mood_is_the_same_for_a_whole_group() -> None:
    completions = Completions(torch.zeros(6, 4), torch.ones(6, 4).bool(), 3)
    given = {"critic": torch.arange(6.0), "exact": torch.zeros(6)}
    scored = apply_rewards(
        MoodyJudge(onset=0, judges=("critic",), stricter=0.5, spread=0.2, seed=0), given, completions, trainee("grpo")
    )
    moods = (scored["critic"] - given["critic"]).view(2, 3)
    torch.testing.assert_close(moods, moods[:, :1].expand(2, 3))
    assert float((moods[0, 0] - moods[1, 0]).abs()) > 1e-3 and scored["exact"] is given["exact"]


def test_workers_answer_with_the_first_policy_until_they_are_restarted() -> None:
    class Seen(UnsyncedWorkers):
        def rewards(self, rewards: Rewards, step: Step) -> Rewards:
            completions = step.completions
            before = completions.tokens.clone()
            given = super().rewards(rewards, step)
            changed.append((completions.tokens != before).any(1).float().mean().item())
            assert torch.equal(completions.mask, completions.tokens != PAD)
            assert given.keys() == rewards.keys()
            return given

    changed: list[float] = []
    run = trainee("grpo")
    reported = stepped(run, 3, Seen(onset=1, length=1, share=1.0, seed=0))
    assert len(changed) == 1 and changed[0] > 0.5
    own = stepped(trainee("grpo"), 3, None)
    assert reported[0] == own[0] and reported[1] != own[1]
