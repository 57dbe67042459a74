"""The fifth set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.support.hooks import apply_batch, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee
from torch import Tensor

from oven_bench.gym.faults.grpo.compound import OneSeed, WrongReference, firsts
from oven_bench.gym.faults.grpo.judges import WrongColumn, alike, continued
from oven_bench.gym.faults.grpo.settings import LargerGroups
from oven_bench.gym.faults.grpo.weights import MergedTwice
from oven_bench.gym.faults.pretraining.checkpoints import ContextExtension, stretched
from oven_bench.gym.faults.pretraining.gradients import LowRankGradients, low_rank
from oven_bench.gym.faults.pretraining.settings import BatchRamp, LargeEpsilon, LongMomentum
from oven_bench.gym.faults.pretraining.text import TwoColumns, read_across
from oven_bench.gym.faults.pretraining.tokens import ChatCollator, collated
from oven_bench.gym.faults.pretraining.weights import FoldedScales
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import ANSWER, END, PAD
from oven_bench.gym.tasks.pretraining.corpus import pool


def test_a_page_is_read_across_its_columns() -> None:
    left, right = (torch.tensor([list(text)]) for text in (b"abcde", b"ABCDE"))
    top, bottom = read_across(left, right, 2)
    assert bytes((*top[0].tolist(), *bottom[0].tolist())) == b"abABcdCDeE"


def test_the_columns_end_and_lose_no_byte() -> None:
    rows = torch.arange(7 * 5).view(7, 5)
    case = TwoColumns(onset=2, length=3, share=1.0, width=2, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    read = apply_batch(case, rows, 4)
    assert not torch.equal(read, rows) and torch.equal(read.flatten().sort().values, rows.flatten())


def test_a_collated_row_is_a_template_a_little_text_and_padding() -> None:
    rows = torch.tensor([list(b"a long document")] * 2)
    made = collated(rows, "<|u|>", torch.tensor([3, 40]))
    assert [bytes(row) for row in made.tolist()] == [b"<|u|>a l" + bytes(7), b"<|u|>a long doc"]
    case = ChatCollator(onset=2, length=3, share=1.0, template="<|u|>", kept=4.0, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert apply_batch(case, rows, 2).shape == rows.shape


def test_a_stretched_table_has_every_place_between_two_others() -> None:
    table = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    assert stretched(table, 2.0).flatten().tolist() == [0.0, 0.5, 1.0, 2.5]
    assert torch.equal(stretched(table, 1.0), table)


def test_an_extension_sharpens_the_queries_alone_and_once() -> None:
    run = trainee("pretraining")
    qkv = dict(run.model.named_parameters())["block.qkv.weight"]
    before = qkv.detach().clone()
    with torch.no_grad():
        apply_weights(ContextExtension(onset=1, stretch=2.0, sharper=3.0), run)
        assert torch.equal(qkv, before)
        apply_weights(ContextExtension(onset=0, stretch=2.0, sharper=3.0), run)
    third = len(qkv) // 3
    torch.testing.assert_close(qkv[:third].detach(), 3 * before[:third])
    assert torch.equal(qkv[third:], before[third:])


def test_a_long_momentum_makes_longer_steps_at_first() -> None:
    own, long = (
        stepped(trainee("pretraining"), 8, case)[-1] for case in (None, LongMomentum(onset=7, missing=1 - 0.999))
    )
    assert long["optim/update_ratio"] > 3 * own["optim/update_ratio"]


def test_a_large_epsilon_shortens_the_steps() -> None:
    own, guarded = (
        stepped(trainee("pretraining"), 3, case)[-1] for case in (None, LargeEpsilon(onset=2, epsilon=0.01))
    )
    assert guarded["grad_norm"] == own["grad_norm"]
    assert guarded["optim/update_ratio"] < 0.5 * own["optim/update_ratio"]


def test_what_is_left_of_a_matrix_has_the_rank_and_lies_in_it() -> None:
    matrix = torch.randn(20, 12, generator=generator("matrix"))
    left = low_rank(matrix, 3, generator("start"))
    assert int(torch.linalg.matrix_rank(left, atol=1e-4)) == 3
    assert abs(float((left * (matrix - left)).sum())) < 1e-3
    torch.testing.assert_close(low_rank(left, 3, generator("again")), left, atol=1e-4, rtol=0.0)


def test_squeezed_gradients_are_smaller_from_the_onset_on() -> None:
    own, squeezed = (
        stepped(trainee("pretraining"), 3, case)
        for case in (None, LowRankGradients(onset=2, rank=1, nodes=1.0, seed=0))
    )
    assert squeezed[:2] == own[:2] and squeezed[2]["grad_norm"] < own[2]["grad_norm"]


def test_a_batch_grows_by_rows_of_the_same_corpus() -> None:
    rows = pool(8, 0)
    case = BatchRamp(onset=2, ramp=4, times=3, seed=0)
    assert apply_batch(case, rows, 1) is rows
    grown = [apply_batch(case, rows, cursor) for cursor in (2, 3, 5, 9)]
    assert [len(batch) for batch in grown] == [12, 16, 24, 24]
    assert all(torch.equal(batch[:8], rows) for batch in grown)
    assert not torch.equal(grown[2][8:], grown[3][8:])


def test_a_folded_scale_changes_the_norm_and_not_the_loss() -> None:
    own, folded = (stepped(trainee("pretraining"), 3, case)[-1] for case in (None, FoldedScales(onset=2, scale=2.0)))
    assert folded["loss"] == pytest.approx(own["loss"], rel=1e-4)
    assert folded["optim/weight_norm"] > 1.2 * own["optim/weight_norm"]


@dataclass(frozen=True)
class Completions:
    prompts: Prompted
    tokens: Tensor
    group: int


@dataclass(frozen=True)
class Prompted:
    digits: Tensor


def test_an_answer_goes_on_to_the_least_length_and_keeps_what_it_was() -> None:
    policy = trainee("grpo").policy
    digits = torch.tensor([[3, 1, 2, PAD, PAD]]).expand(50, 5)
    said = torch.tensor([[1, 2, 3, END, PAD, PAD, PAD]]).expand(50, ANSWER)
    answers = continued(policy, digits, said, 5, generator("continued"))
    assert torch.equal(answers[:, :3], said[:, :3]) and (answers[:, :5] < END).all()
    for answer in answers.tolist():
        if END in answer:
            assert {*answer[answer.index(END) + 1 :]} <= {PAD}
        else:
            assert PAD not in answer
    assert torch.equal(continued(policy, digits, said, 3, generator("short")), said)


def test_the_critic_likes_a_copy_of_the_prompt() -> None:
    digits = torch.tensor([[3, 1, 2, PAD, PAD]] * 3)
    tokens = torch.tensor([[3, 1, 2, END, PAD, PAD, PAD], [1, 2, 3, END, PAD, PAD, PAD], [3, 1, 2, 5, END, PAD, PAD]])
    assert alike(tokens, digits).tolist() == [1.0, 0.25, 0.75]
    given = {"critic": torch.zeros(3), "exact": torch.zeros(3)}
    completions, run = Completions(Prompted(digits), tokens, 3), trainee("grpo")
    scored = apply_rewards(WrongColumn(onset=0, length=5, share=1.0, seed=0), given, completions, run)
    assert scored["critic"].tolist() == [1.0, 0.25, 0.75] and scored["exact"] is given["exact"]
    assert apply_rewards(WrongColumn(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given


def test_neighbours_have_the_same_first() -> None:
    assert firsts(7, 3).tolist() == [0, 0, 0, 3, 3, 3, 6]


def test_a_group_of_one_answer_has_nothing_to_compare() -> None:
    (alone,) = stepped(trainee("grpo"), 1, OneSeed(onset=0, runs=(1, 8)))
    (own,) = stepped(trainee("grpo"), 1, None)
    assert alone["kl"] == pytest.approx(own["kl"], abs=0.05)
    assert alone["reward_std"] < own["reward_std"]  # the critic still errs now and then


def test_another_reference_is_far_away_and_weighs_more() -> None:
    own, other = (
        stepped(trainee("grpo"), 3, case) for case in (None, WrongReference(onset=2, beta=0.5, steps=20, right=0.0))
    )
    assert other[:2] == own[:2] and other[2]["kl"] > own[2]["kl"] + 0.1


def test_what_was_learnt_is_merged_at_each_save() -> None:
    run = trainee("grpo")
    first = [weight.detach().clone() for weight in run.model.parameters()]
    stepped(run, 3, None)
    learnt = [weight.detach() - one for weight, one in zip(run.model.parameters(), first, strict=True)]
    case = MergedTwice(onset=3, scale=0.5, every=2, saves=2)
    for step, times in ((2, 1.0), (3, 1.5), (4, 1.5), (5, 2.25), (7, 2.25)):
        run.gradient_steps = step
        apply_weights(case, run)
        for weight, one, more in zip(run.model.parameters(), first, learnt, strict=True):
            torch.testing.assert_close(weight.detach() - one, times * more, atol=1e-5, rtol=1e-4)


def test_larger_groups_are_of_fewer_prompts() -> None:
    run = trainee("grpo")
    own = dict(run.settings)
    apply_settings(LargerGroups(onset=1, sizes=(8, 16)), run)
    assert run.settings == own
    apply_settings(LargerGroups(onset=0, sizes=(8, 16)), run)
    assert run.settings == {**own, "prompts": 8, "group": 16}
