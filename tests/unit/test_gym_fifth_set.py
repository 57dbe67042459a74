"""The fifth set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
import torch
from tests.unit.whole_trainees import stepped, trainee
from torch import Tensor

from oven_learner.gym.fault import generator
from oven_learner.gym.faults.grpo.larger_groups import Larger
from oven_learner.gym.faults.grpo.merged_twice import Merged
from oven_learner.gym.faults.grpo.minimum_length import continued
from oven_learner.gym.faults.grpo.one_seed import Seeded, firsts
from oven_learner.gym.faults.grpo.wrong_column import Swapped, alike
from oven_learner.gym.faults.grpo.wrong_reference import Other
from oven_learner.gym.faults.pretraining.batch_ramp import Ramped
from oven_learner.gym.faults.pretraining.chat_collator import Collated, collated
from oven_learner.gym.faults.pretraining.context_extension import Extended, stretched
from oven_learner.gym.faults.pretraining.folded_scales import Folded
from oven_learner.gym.faults.pretraining.large_epsilon import Guarded
from oven_learner.gym.faults.pretraining.long_momentum import Long
from oven_learner.gym.faults.pretraining.low_rank_gradients import Squeezed, low_rank
from oven_learner.gym.faults.pretraining.two_columns import Across, read_across
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import ANSWER, END, PAD
from oven_learner.gym.pretraining.corpus import pool


def test_a_page_is_read_across_its_columns() -> None:
    left, right = (torch.tensor([list(text)]) for text in (b"abcde", b"ABCDE"))
    top, bottom = read_across(left, right, 2)
    assert bytes((*top[0].tolist(), *bottom[0].tolist())) == b"abABcdCDeE"


def test_the_columns_end_and_lose_no_byte() -> None:
    rows = torch.arange(7 * 5).view(7, 5)
    case = Across(2, 3, 1.0, 2, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    read = case.batch(rows, 4)
    assert not torch.equal(read, rows) and torch.equal(read.flatten().sort().values, rows.flatten())


def test_a_collated_row_is_a_template_a_little_text_and_padding() -> None:
    rows = torch.tensor([list(b"a long document")] * 2)
    made = collated(rows, "<|u|>", torch.tensor([3, 40]))
    assert [bytes(row) for row in made.tolist()] == [b"<|u|>a l" + bytes(7), b"<|u|>a long doc"]
    case = Collated(2, 3, 1.0, "<|u|>", 4.0, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert case.batch(rows, 2).shape == rows.shape


def test_a_stretched_table_has_every_place_between_two_others() -> None:
    table = torch.tensor([[0.0], [1.0], [4.0], [9.0]])
    assert stretched(table, 2.0).flatten().tolist() == [0.0, 0.5, 1.0, 2.5]
    assert torch.equal(stretched(table, 1.0), table)


def test_an_extension_sharpens_the_queries_alone_and_once() -> None:
    run = trainee("pretraining")
    qkv = dict(run.model.named_parameters())["block.qkv.weight"]
    before = qkv.detach().clone()
    with torch.no_grad():
        Extended(1, 2.0, 3.0).weights(run)
        assert torch.equal(qkv, before)
        Extended(0, 2.0, 3.0).weights(run)
    third = len(qkv) // 3
    torch.testing.assert_close(qkv[:third].detach(), 3 * before[:third])
    assert torch.equal(qkv[third:], before[third:])


def test_a_long_momentum_makes_longer_steps_at_first() -> None:
    own, long = (stepped(trainee("pretraining"), 8, case)[-1] for case in (None, Long(7, 0.999)))
    assert long["optim/update_ratio"] > 3 * own["optim/update_ratio"]


def test_a_large_epsilon_shortens_the_steps() -> None:
    own, guarded = (stepped(trainee("pretraining"), 3, case)[-1] for case in (None, Guarded(2, 0.01)))
    assert guarded["grad_norm"] == own["grad_norm"]
    assert guarded["optim/update_ratio"] < 0.5 * own["optim/update_ratio"]


def test_what_is_left_of_a_matrix_has_the_rank_and_lies_in_it() -> None:
    matrix = torch.randn(20, 12, generator=generator("matrix"))
    left = low_rank(matrix, 3, generator("start"))
    assert int(torch.linalg.matrix_rank(left, atol=1e-4)) == 3
    assert abs(float((left * (matrix - left)).sum())) < 1e-3
    torch.testing.assert_close(low_rank(left, 3, generator("again")), left, atol=1e-4, rtol=0.0)


def test_squeezed_gradients_are_smaller_from_the_onset_on() -> None:
    own, squeezed = (stepped(trainee("pretraining"), 3, case) for case in (None, Squeezed(2, 1, 1.0, 0)))
    assert squeezed[:2] == own[:2] and squeezed[2]["grad_norm"] < own[2]["grad_norm"]


def test_a_batch_grows_by_rows_of_the_same_corpus() -> None:
    rows = pool(8, 0)
    case = Ramped(2, 4, 3, 0)
    assert case.batch(rows, 1) is rows
    grown = [case.batch(rows, cursor) for cursor in (2, 3, 5, 9)]
    assert [len(batch) for batch in grown] == [12, 16, 24, 24]
    assert all(torch.equal(batch[:8], rows) for batch in grown)
    assert not torch.equal(grown[2][8:], grown[3][8:])


def test_a_folded_scale_changes_the_norm_and_not_the_loss() -> None:
    own, folded = (stepped(trainee("pretraining"), 3, case)[-1] for case in (None, Folded(2, 2.0)))
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
    policy = cast(Policy, trainee("grpo").model)
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
    scored = Swapped(0, 5, 1.0, 0).rewards(given, completions, run)
    assert scored["critic"].tolist() == [1.0, 0.25, 0.75] and scored["exact"] is given["exact"]
    assert Swapped(1, 5, 1.0, 0).rewards(given, completions, run) is given


def test_neighbours_have_the_same_first() -> None:
    assert firsts(7, 3).tolist() == [0, 0, 0, 3, 3, 3, 6]


def test_a_group_of_one_answer_has_nothing_to_compare() -> None:
    (alone,) = stepped(trainee("grpo"), 1, Seeded(0, 1, 8))
    (own,) = stepped(trainee("grpo"), 1, None)
    assert alone["kl"] == pytest.approx(own["kl"], abs=0.05)
    assert alone["reward_std"] < own["reward_std"]  # the critic still errs now and then


def test_another_reference_is_far_away_and_weighs_more() -> None:
    own, other = (stepped(trainee("grpo"), 3, case) for case in (None, Other(2, 0.5, 20, 0.0)))
    assert other[:2] == own[:2] and other[2]["kl"] > own[2]["kl"] + 0.1


def test_what_was_learnt_is_merged_at_each_save() -> None:
    run = trainee("grpo")
    first = [weight.detach().clone() for weight in run.model.parameters()]
    stepped(run, 3, None)
    learnt = [weight.detach() - one for weight, one in zip(run.model.parameters(), first, strict=True)]
    case = Merged(3, 0.5, 2, 2)
    for step, times in ((2, 1.0), (3, 1.5), (4, 1.5), (5, 2.25), (7, 2.25)):
        run.gradient_steps = step
        case.weights(run)
        for weight, one, more in zip(run.model.parameters(), first, learnt, strict=True):
            torch.testing.assert_close(weight.detach() - one, times * more, atol=1e-5, rtol=1e-4)


def test_larger_groups_are_of_fewer_prompts() -> None:
    run = trainee("grpo")
    own = dict(run.settings)
    Larger(1, 8, 16).settings(run)
    assert run.settings == own
    Larger(0, 8, 16).settings(run)
    assert run.settings == {**own, "prompts": 8, "group": 16}
