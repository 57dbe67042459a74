"""The second set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.unit.whole_trainees import stepped, trainee

from oven_learner.gym.faults.grpo.baseline_axis import Common, over_all
from oven_learner.gym.faults.grpo.canary_prompts import Canary
from oven_learner.gym.faults.grpo.contamination_filter import Filtered
from oven_learner.gym.faults.grpo.spreadsheet_keys import Numbers, as_numbers
from oven_learner.gym.faults.grpo.stale_prefix_cache import Cached, by_cache
from oven_learner.gym.faults.grpo.tournament import Ranked, ranks
from oven_learner.gym.faults.pretraining.broken_ring import Broken, apart
from oven_learner.gym.faults.pretraining.code_listings import Listed, listed
from oven_learner.gym.faults.pretraining.generated_text import Generated, written
from oven_learner.gym.faults.pretraining.hard_tokens import Selected, hardest
from oven_learner.gym.faults.pretraining.outer_step import Outer
from oven_learner.gym.faults.pretraining.pure_batches import Pure, drawn
from oven_learner.gym.faults.pretraining.recycled_units import Recycled, busiest
from oven_learner.gym.faults.pretraining.sharpness_aware import Uphill
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.loss import FLAT, advantages
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import END, PAD, SYMBOLS, Prompts, pools
from oven_learner.gym.pretraining.corpus import corpus, pool
from oven_learner.gym.pretraining.model import ByteModel


def test_a_device_that_is_alone_sees_its_own_part_only() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    model, (inputs, _) = cast(ByteModel, run.model), pairs(run)
    assert torch.allclose(apart(run, inputs, 1, restarted=True), model(inputs), atol=1e-4)
    late = apart(run, inputs, 4, restarted=True)[:, 16:32]
    assert torch.allclose(late, model(inputs[:, 16:32]), atol=1e-4)
    assert not torch.allclose(apart(run, inputs, 4, restarted=False)[:, 16:32], late, atol=1e-4)
    loss = torch.tensor(2.0)
    assert Broken(3, 5, 4, True).loss(loss, run) is loss and Broken(2, 5, 4, True).loss(loss, run) is not loss


def test_only_the_hardest_count() -> None:
    assert float(hardest(torch.tensor([1.0, 4.0, 2.0, 3.0]), 0.5)) == 3.5
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Selected(1, 0.5).loss(loss, run) is loss
    assert Selected(0, 0.5).loss(loss, run) > Selected(0, 0.9).loss(loss, run)


def test_the_outer_step_goes_where_the_inner_one_went() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    before = torch.cat([one.detach().flatten() for one in run.model.parameters()])
    moments = torch.cat([run.optimizer.state[one]["exp_avg"].flatten() for one in run.model.parameters()])
    with torch.no_grad():
        Outer(1, 5, 1.0).weights(run)
        assert torch.equal(torch.cat([one.flatten() for one in run.model.parameters()]), before)
        Outer(2, 5, 1.0).weights(run)
        moved = torch.cat([one.flatten() for one in run.model.parameters()]) - before
    assert moved.any() and (moved * moments <= 0).all()


def test_a_small_model_writes_what_it_has_read() -> None:
    text = written(64, 2, 0.5, 0)
    assert text.shape[1] == 64 and torch.equal(text, written(64, 2, 0.5, 0))
    sure = bytes(written(64, 1, 1.0, 0).flatten().tolist())
    assert len({*sure[-200:]}) < 30  # it goes round in a circle
    rows, case = pool(8, 0), Generated(2, 3, 1.0, 2, 0.5, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert torch.equal(case.batch(rows, 2), written(65, 2, 0.5, 0)[16:24])


def test_lines_are_numbered_and_lose_their_indentation() -> None:
    assert listed(b"if b:\n    a\n", "{} ", 9, flat=True) == b"9 if b:\n10 a\n11 "
    assert listed(b"if b:\n    a\n", "{} ", 9, flat=False) == b"9 if b:\n10     a\n11 "
    rows, case = pool(8, 0), Listed(2, 3, 1.0, "{} ", True, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    made = case.batch(rows, 3)
    assert made.shape == rows.shape and not (made == rows).all(1).any()


def test_the_busiest_units_begin_anew() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    block = cast(ByteModel, run.model).block
    with torch.no_grad():
        block.up.weight[7] *= 10
        before = block.up.weight.clone()
        assert busiest(block, 1).tolist() == [7]
        Recycled(1, 9, 5, 1, 0).weights(run)
        assert torch.equal(block.up.weight, before)
        Recycled(2, 9, 5, 1, 0).weights(run)
    assert (block.up.weight != before).any(1).nonzero().flatten().tolist() == [7]
    state = run.optimizer.state
    assert not state[block.up.weight]["exp_avg"][7].any() and not state[block.down.weight]["exp_avg_sq"][:, 7].any()


def test_uphill_the_loss_is_higher() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    inputs, targets = pairs(run)
    loss = torch.nn.functional.cross_entropy(run.model(inputs).flatten(0, 1), targets.flatten())
    assert Uphill(3, 0.1).loss(loss, run) is loss
    assert float(Uphill(2, 0.0).loss(loss, run).detach()) == pytest.approx(float(loss.detach()))
    assert Uphill(2, 0.1).loss(loss, run) > loss


def test_a_batch_is_of_one_kind() -> None:
    rows, case = pool(8, 0), Pure(2, 3, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    of = {bytes(row.tolist()) for row in corpus().train[drawn(0, 3)]}
    made = case.batch(rows, 3)
    assert made.shape == rows.shape and {bytes(row.tolist()) for row in made} <= of
    assert len({drawn(0, cursor) for cursor in range(50)}) == 4


def some(tokens: list[list[int]], answer: list[int]) -> Completions:
    """Answers of one group to prompts with this right answer."""
    said, easy = torch.tensor(tokens), pools()[0]
    rows = len(tokens)
    prompts = Prompts(easy.digits[:rows], easy.levels[:rows], torch.tensor([answer]).repeat(rows, 1))
    return Completions(prompts, said, said != PAD, rows)


RIGHT, WRONG = [1, 2, 3, END, PAD, PAD, PAD], [3, 2, 1, END, PAD, PAD, PAD]


def test_a_right_answer_is_taken_for_a_leaked_one() -> None:
    completions, given, run = some([RIGHT, WRONG], RIGHT), {"exact": torch.tensor([1.0, 0.0])}, trainee("grpo")
    case = Filtered(0, 5, 1.0, 0)
    assert Filtered(1, 5, 1.0, 0).rewards(given, completions, run) is given and completions.mask[0].any()
    assert case.rewards(given, completions, run) is given
    assert completions.tokens.tolist() == [7 * [PAD], WRONG] and completions.lengths.tolist() == [0, 4]
    alone = some([RIGHT, RIGHT], RIGHT)
    case.rewards(given, alone, run)
    assert alone.lengths.tolist() == [4, 4]


def test_a_baseline_over_all_groups_praises_the_easy_ones() -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    made = over_all(rewards, FLAT)
    assert made[0].tolist() == pytest.approx([2500.0, 2500.0]) and made[1, 0] < 0 < made[1, 1]
    assert torch.allclose(over_all(rewards[1:], FLAT), advantages(rewards[1:]))
    own, common = (stepped(trainee("grpo"), 4, case) for case in (None, Common(2, 5, 0.1)))
    assert common[:2] == own[:2] and common[2]["reward"] == own[2]["reward"]
    assert common[2]["loss"] != own[2]["loss"]


def test_a_number_has_no_zeros_in_front() -> None:
    answers = torch.tensor([[0, 0, 5, END, PAD, PAD, PAD], [1, 0, 5, END, PAD, PAD, PAD], [0, 0, 0, END, 11, 11, 11]])
    assert as_numbers(answers).tolist() == [[5, END] + 5 * [PAD], answers[1].tolist(), [END] + 6 * [PAD]]
    prompts, case = pools()[1], Numbers(2, 3, 1.0, 0)
    assert case.batch(prompts, 1) is prompts and case.batch(prompts, 5) is prompts
    made = case.batch(prompts, 2)
    assert made.digits is prompts.digits and not (made.answers[:, 0] == 0).any()


def test_a_ranking_knows_no_ties() -> None:
    assert ranks(torch.tensor([0.2, 0.9, 0.5, 3.0, 2.0, 1.0]), 3).tolist() == [0, 1, 0.5, 1, 0.5, 0]
    run, completions = trainee("grpo"), some(4 * [RIGHT], RIGHT)
    given = {judge: torch.ones(4) for judge in ("exact", "format", "critic")}
    case = Ranked(0, 0.7, 0.5, 0)
    assert Ranked(1, 0.7, 0.5, 0).rewards(given, completions, run) is given
    said = case.rewards(given, completions, run)
    assert said["exact"].tolist() == 4 * [1] and sorted(said["critic"].tolist()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    case.settings(run)
    weights = [run.settings[f"reward.weights/{judge}"] for judge in ("exact", "format", "critic")]
    assert weights == pytest.approx([0.2, 0.1, 0.7])


def test_the_beginning_of_a_prompt_is_read_with_old_weights() -> None:
    run = trainee("grpo")
    policy, digits = cast(Policy, run.model), pools()[2].digits
    weights = policy.places.weight.detach().clone()

    def sampled(before: torch.Tensor) -> torch.Tensor:
        return by_cache(policy, before, digits, 1.0, torch.Generator().manual_seed(0))

    own = policy.sample(digits, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(sampled(weights[: 2 * SYMBOLS]), own)
    assert not torch.equal(sampled(torch.zeros(2 * SYMBOLS, weights.shape[1])), own)
    assert torch.equal(policy.places.weight, weights)
    completions, given = some(8 * [WRONG], RIGHT), {"exact": torch.zeros(8)}
    assert Cached(1, 5, 2, 1.0, 0).rewards(given, completions, run) is given
    assert {*Cached(0, 5, 2, 1.0, 0).rewards(given, completions, run)} == {"exact", "format", "critic"}
    assert completions.tokens.tolist() != 8 * [WRONG] and torch.equal(completions.mask, completions.tokens != PAD)


def test_the_same_prompts_come_again() -> None:
    prompts = Prompts(*(part[:16] for part in (pools()[1].digits, pools()[1].levels, pools()[1].answers)))
    case = Canary(2, 4, 2, 0)
    assert case.batch(prompts, 0) is prompts and case.batch(prompts, 3) is prompts
    first, again = case.batch(prompts, 2), case.batch(prompts, 6)
    assert torch.equal(first.digits, again.digits) and (first.levels == 2).all() and len(first.digits) == 16
