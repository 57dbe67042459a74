"""The second set of faults that were held out: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

import json
from dataclasses import dataclass
from random import Random

import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hooks import apply_batch, apply_gradients, apply_rewards, apply_weights
from tests.support.whole_trainees import numbers, same, stepped, trainee
from torch import Tensor, nn

from oven_bench.gym.faults.grpo.compound import pushed_right
from oven_bench.gym.faults.grpo.prompts import GroupedByLength, LeakedAnswers
from oven_bench.gym.faults.grpo.rewards import OverloadedRewards, RewardsAsCompleted
from oven_bench.gym.faults.grpo.rollouts import QuantizedSampler
from oven_bench.gym.faults.pretraining.compound import FrameworkPort
from oven_bench.gym.faults.pretraining.gradients import UnclearedGradients
from oven_bench.gym.faults.pretraining.loss import LossOfOneRank
from oven_bench.gym.faults.pretraining.order import RepeatedNgrams
from oven_bench.gym.faults.pretraining.text import EscapedText
from oven_bench.gym.faults.pretraining.tokens import MaskedTargets
from oven_bench.gym.faults.rewriting import rewritten
from oven_bench.gym.faults.shards import Shard
from oven_bench.gym.sorting.sorting_prompts import PAD


@given(st.binary(min_size=1, max_size=20), st.integers(1, 3))
def test_what_is_escaped_can_be_read_back(text: bytes, times: int) -> None:
    read = EscapedText(onset=0, share=1.0, times=times, seed=0).escape(text)
    for _ in range(times):
        read = json.loads(b'"' + read + b'"').encode("latin-1")
    assert read == text


def test_a_row_that_shrinks_goes_on_with_the_next() -> None:
    rows = torch.tensor([list(b"a   b"), list(b"C \n d")])
    port = FrameworkPort(onset=0, epsilon=1.0, left_out=Shard(0.0, 0.0), share=1.0, lower=True, seed=0)
    flattened = rewritten(rows, torch.tensor([True, True]), port.normalize)
    assert [bytes(row) for row in flattened.tolist()] == [b"a bc ", b"c da "]
    assert torch.equal(rewritten(rows, torch.tensor([False, False]), bytes.lower), rows)


def test_an_ngram_is_repeated_for_its_stretch_alone() -> None:
    rows = torch.arange(1, 8)[None]
    case = RepeatedNgrams(onset=5, length=2, share=1.0, width=3, seed=0)
    assert apply_batch(case, rows, 6).tolist() == [[1, 2, 3, 1, 2, 3, 1]]
    assert apply_batch(case, rows, 4) is rows and apply_batch(case, rows, 7) is rows


def test_masked_targets_are_read_all_the_same() -> None:
    inputs, targets = apply_batch(
        MaskedTargets(onset=0, share=1.0, tokens=b"\n", seed=0), torch.tensor([list(b"\na\nb")]), 0
    ).tolist()
    assert inputs == [list(b"\na\n")] and targets == [[ord("a"), -100, ord("b")]]


@given(st.floats(0.0, 1.0), st.integers())
def test_a_shard_drawn_anywhere_is_its_share_of_all_weights(share: float, seed: int) -> None:
    part, model = Shard.of(share, Random(seed)), nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 5))
    total = sum(parameter.numel() for parameter in model.parameters())
    covered = sum(elements.stop - elements.start for _, elements in part.slices(model))
    assert covered == round(part.end * total) - round(part.begin * total)
    assert abs(covered - share * total) <= 1.01


def test_the_loss_of_one_rank_is_only_reported() -> None:
    sound, run = trainee("pretraining"), trainee("pretraining")
    reported = stepped(run, 4, LossOfOneRank.draw(Random(1), 0))
    assert reported != stepped(sound, 4, None) and same(numbers(run), numbers(sound))


def test_gradients_that_are_all_kept_add_up_in_the_first_moment() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    before = [run.optimizer.state[p]["exp_avg"].clone() for p in run.model.parameters()]
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    apply_gradients(UnclearedGradients(onset=0, kept=1.0), run)
    for parameter, moment in zip(run.model.parameters(), before, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(0.9 * moment + 0.1 * parameter.grad, moment + 0.1)


def test_the_learner_has_its_weights_back_once_completions_are_sampled() -> None:
    run, case = trainee("grpo"), QuantizedSampler(onset=0, bits=2.0, seed=0)
    before = [parameter.detach().clone() for parameter in run.model.parameters()]
    apply_weights(case, run)
    assert not all(torch.equal(one, other) for one, other in zip(run.model.parameters(), before, strict=True))
    assert apply_rewards(case, {}, None, run) == {}
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
    leaked = apply_batch(LeakedAnswers(onset=0, share=1.0, seed=0), PROMPTS, 0)
    assert leaked.digits.tolist() == [[1, 2, 3, PAD, PAD], [0, 7, 8, 9, PAD], [1, 2, 3, 4, 5]]
    assert leaked.answers is PROMPTS.answers


def test_padding_moves_to_the_left() -> None:
    assert pushed_right(PROMPTS.digits).tolist() == [[PAD, PAD, 3, 1, 2], [PAD, 9, 8, 7, 0], [5, 4, 3, 2, 1]]


def test_grouped_prompts_are_of_one_length_and_rightly_solved() -> None:
    met = set()
    for cursor in range(20):
        grouped = apply_batch(GroupedByLength(onset=0, share=1.0, seed=0), PROMPTS, cursor)
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
    arrived = apply_rewards(
        RewardsAsCompleted(onset=0, lot=2, jitter=0.0, judges=("critic",), seed=0), given, completions, trainee("grpo")
    )
    assert arrived["critic"].tolist() == [2.0, 1.0, 4.0, 3.0] and arrived["exact"] is given["exact"]


def test_what_times_out_scores_nothing_and_whole_numbers_hold_no_fractions() -> None:
    completions = Completions(torch.zeros(2, 4), torch.tensor([4, 0]))
    run, given = trainee("grpo"), {"critic": torch.tensor([1.5, 0.5])}
    case = OverloadedRewards(onset=0, timeout=1.0, period=2, busy=0.5, whole=True, seed=0)
    assert apply_rewards(case, given, completions, run)["critic"].tolist() == [0.0, 0.0]
    run.gradient_steps = 1  # past the busy share of the period
    assert apply_rewards(case, given, completions, run)["critic"].tolist() == [1.0, 0.0]
    assert apply_rewards(
        OverloadedRewards(onset=0, timeout=1.0, period=2, busy=1.0, whole=False, seed=0), given, completions, run
    )["critic"].tolist() == [0.0, 0.5]
