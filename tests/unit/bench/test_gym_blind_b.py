"""The second set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.support.hooks import apply_batch, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.grpo.compound import Tournament, places
from oven_bench.gym.faults.grpo.judges import ContaminationFilter
from oven_bench.gym.faults.grpo.loss import BaselineAxis, over_all
from oven_bench.gym.faults.grpo.prompts import CanaryPrompts, SpreadsheetKeys, without_zeros
from oven_bench.gym.faults.grpo.rollouts import StalePrefixCache, by_cache
from oven_bench.gym.faults.pretraining.attention import BrokenRing, in_parts
from oven_bench.gym.faults.pretraining.checkpoints import OuterStep
from oven_bench.gym.faults.pretraining.loss import HardTokens, SharpnessAware, hardest
from oven_bench.gym.faults.pretraining.order import PureBatches, kind_of
from oven_bench.gym.faults.pretraining.text import CodeListings, GeneratedText, by_table, listed
from oven_bench.gym.faults.pretraining.weights import RecycledUnits, busiest
from oven_bench.gym.sorting.scoring import Completions
from oven_bench.gym.sorting.sorting_prompts import END, PAD, SYMBOLS, Prompts, pools
from oven_bench.gym.tasks.grpo.policy_loss import FLAT, advantages
from oven_bench.gym.tasks.pretraining.byte_model import ByteModel
from oven_bench.gym.tasks.pretraining.corpus import corpus, pair, pool


def test_a_device_that_is_alone_sees_its_own_part_only() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    model, (inputs, _) = cast(ByteModel, run.model), pair(run.read())
    assert torch.allclose(in_parts(model, inputs, 64, apart=True, restarted=True), model(inputs), atol=1e-4)
    late = in_parts(model, inputs, 16, apart=True, restarted=True)[:, 16:32]
    assert torch.allclose(late, model(inputs[:, 16:32]), atol=1e-4)
    assert not torch.allclose(in_parts(model, inputs, 16, apart=True, restarted=False)[:, 16:32], late, atol=1e-4)
    loss = torch.tensor(2.0)
    assert (
        apply_loss(BrokenRing(onset=3, length=5, devices=4, restarted=True), loss, run) is loss
        and apply_loss(BrokenRing(onset=2, length=5, devices=4, restarted=True), loss, run) is not loss
    )


def test_only_the_hardest_count() -> None:
    assert float(hardest(torch.tensor([1.0, 4.0, 2.0, 3.0]), 0.5)) == 3.5
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(HardTokens(onset=1, share=0.5), loss, run) is loss
    assert apply_loss(HardTokens(onset=0, share=0.5), loss, run) > apply_loss(HardTokens(onset=0, share=0.9), loss, run)


def test_the_outer_step_goes_where_the_inner_one_went() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    before = torch.cat([one.detach().flatten() for one in run.model.parameters()])
    moments = torch.cat([run.optimizer.state[one]["exp_avg"].flatten() for one in run.model.parameters()])
    with torch.no_grad():
        apply_weights(OuterStep(onset=1, every=5, reach=1.0), run)
        assert torch.equal(torch.cat([one.flatten() for one in run.model.parameters()]), before)
        apply_weights(OuterStep(onset=2, every=5, reach=1.0), run)
        moved = torch.cat([one.flatten() for one in run.model.parameters()]) - before
    assert moved.any() and (moved * moments <= 0).all()


def test_a_small_model_writes_what_it_has_read() -> None:
    text = by_table(64, 2, 0.5, 0)
    assert text.shape[1] == 64 and torch.equal(text, by_table(64, 2, 0.5, 0))
    sure = bytes(by_table(64, 1, 1.0, 0).flatten().tolist())
    assert len({*sure[-200:]}) < 30  # it goes round in a circle
    rows, case = pool(8, 0), GeneratedText(onset=2, length=3, share=1.0, memory=2, sure=0.5, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert torch.equal(apply_batch(case, rows, 2), by_table(65, 2, 0.5, 0)[16:24])


def test_lines_are_numbered_and_lose_their_indentation() -> None:
    assert listed(b"if b:\n    a\n", "{} ", 9, flat=True) == b"9 if b:\n10 a\n11 "
    assert listed(b"if b:\n    a\n", "{} ", 9, flat=False) == b"9 if b:\n10     a\n11 "
    rows, case = pool(8, 0), CodeListings(onset=2, length=3, share=1.0, style="{} ", flat=True, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    made = apply_batch(case, rows, 3)
    assert made.shape == rows.shape and not (made == rows).all(1).any()


def test_the_busiest_units_begin_anew() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    block = cast(ByteModel, run.model).block
    with torch.no_grad():
        block.up.weight[7] *= 10
        before = block.up.weight.clone()
        assert busiest(block, 1).tolist() == [7]
        apply_weights(RecycledUnits(onset=1, length=9, every=5, units=1, seed=0), run)
        assert torch.equal(block.up.weight, before)
        apply_weights(RecycledUnits(onset=2, length=9, every=5, units=1, seed=0), run)
    assert (block.up.weight != before).any(1).nonzero().flatten().tolist() == [7]
    state = run.optimizer.state
    assert not state[block.up.weight]["exp_avg"][7].any() and not state[block.down.weight]["exp_avg_sq"][:, 7].any()


def test_uphill_the_loss_is_higher() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    inputs, targets = pair(run.read())
    loss = torch.nn.functional.cross_entropy(run.model(inputs).flatten(0, 1), targets.flatten())
    assert apply_loss(SharpnessAware(onset=3, radius=0.1), loss, run) is loss
    assert float(apply_loss(SharpnessAware(onset=2, radius=0.0), loss, run).detach()) == pytest.approx(
        float(loss.detach())
    )
    assert apply_loss(SharpnessAware(onset=2, radius=0.1), loss, run) > loss


def test_a_batch_is_of_one_kind() -> None:
    rows, case = pool(8, 0), PureBatches(onset=2, length=3, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    of = {bytes(row.tolist()) for row in corpus().train[kind_of(0, 3)]}
    made = apply_batch(case, rows, 3)
    assert made.shape == rows.shape and {bytes(row.tolist()) for row in made} <= of
    assert len({kind_of(0, cursor) for cursor in range(50)}) == 4


def some(tokens: list[list[int]], answer: list[int]) -> Completions:
    """Answers of one group to prompts with this right answer."""
    said, easy = torch.tensor(tokens), pools()[0]
    rows = len(tokens)
    prompts = Prompts(easy.digits[:rows], easy.levels[:rows], torch.tensor([answer]).repeat(rows, 1))
    return Completions(prompts, said, said != PAD, rows)


RIGHT, WRONG = [1, 2, 3, END, PAD, PAD, PAD], [3, 2, 1, END, PAD, PAD, PAD]


def test_a_right_answer_is_taken_for_a_leaked_one() -> None:
    completions, given, run = some([RIGHT, WRONG], RIGHT), {"exact": torch.tensor([1.0, 0.0])}, trainee("grpo")
    case = ContaminationFilter(onset=0, length=5, share=1.0, seed=0)
    assert (
        apply_rewards(ContaminationFilter(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given
        and completions.mask[0].any()
    )
    assert apply_rewards(case, given, completions, run) is given
    assert completions.tokens.tolist() == [7 * [PAD], WRONG] and completions.lengths.tolist() == [0, 4]
    alone = some([RIGHT, RIGHT], RIGHT)
    apply_rewards(case, given, alone, run)
    assert alone.lengths.tolist() == [4, 4]


def test_a_baseline_over_all_groups_praises_the_easy_ones() -> None:
    rewards = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    made = over_all(rewards, FLAT)
    assert made[0].tolist() == pytest.approx([2500.0, 2500.0]) and made[1, 0] < 0 < made[1, 1]
    assert torch.allclose(over_all(rewards[1:], FLAT), advantages(rewards[1:]))
    own, common = (stepped(trainee("grpo"), 4, case) for case in (None, BaselineAxis(onset=2, length=5, least=0.1)))
    assert common[:2] == own[:2] and common[2]["reward"] == own[2]["reward"]
    assert common[2]["loss"] != own[2]["loss"]


def test_a_number_has_no_zeros_in_front() -> None:
    answers = torch.tensor([[0, 0, 5, END, PAD, PAD, PAD], [1, 0, 5, END, PAD, PAD, PAD], [0, 0, 0, END, 11, 11, 11]])
    assert without_zeros(answers).tolist() == [[5, END] + 5 * [PAD], answers[1].tolist(), [END] + 6 * [PAD]]
    prompts, case = pools()[1], SpreadsheetKeys(onset=2, length=3, share=1.0, seed=0)
    assert apply_batch(case, prompts, 1) is prompts and apply_batch(case, prompts, 5) is prompts
    made = apply_batch(case, prompts, 2)
    assert made.digits is prompts.digits and not (made.answers[:, 0] == 0).any()


def test_a_ranking_knows_no_ties() -> None:
    assert places(torch.tensor([0.2, 0.9, 0.5, 3.0, 2.0, 1.0]), 3).tolist() == [0, 1, 0.5, 1, 0.5, 0]
    run, completions = trainee("grpo"), some(4 * [RIGHT], RIGHT)
    given = {judge: torch.ones(4) for judge in ("exact", "format", "critic")}
    case = Tournament(onset=0, weight=0.7, blur=0.5, seed=0)
    assert apply_rewards(Tournament(onset=1, weight=0.7, blur=0.5, seed=0), given, completions, run) is given
    said = apply_rewards(case, given, completions, run)
    assert said["exact"].tolist() == 4 * [1] and sorted(said["critic"].tolist()) == pytest.approx([0, 1 / 3, 2 / 3, 1])
    apply_settings(case, run)
    weights = [run.settings[f"reward.weights/{judge}"] for judge in ("exact", "format", "critic")]
    assert weights == pytest.approx([0.2, 0.1, 0.7])


def test_the_beginning_of_a_prompt_is_read_with_old_weights() -> None:
    run = trainee("grpo")
    policy, digits = run.policy, pools()[2].digits
    weights = policy.places.weight.detach().clone()

    def sampled(before: torch.Tensor) -> torch.Tensor:
        return by_cache(policy, before, digits, 1.0, torch.Generator().manual_seed(0))

    own = policy.sample(digits, 1.0, torch.Generator().manual_seed(0))
    assert torch.equal(sampled(weights[: 2 * SYMBOLS]), own)
    assert not torch.equal(sampled(torch.zeros(2 * SYMBOLS, weights.shape[1])), own)
    assert torch.equal(policy.places.weight, weights)
    completions, given = some(8 * [WRONG], RIGHT), {"exact": torch.zeros(8)}
    assert (
        apply_rewards(StalePrefixCache(onset=1, length=5, places=2, share=1.0, seed=0), given, completions, run)
        is given
    )
    assert {
        *apply_rewards(StalePrefixCache(onset=0, length=5, places=2, share=1.0, seed=0), given, completions, run)
    } == {"exact", "format", "critic"}
    assert completions.tokens.tolist() != 8 * [WRONG] and torch.equal(completions.mask, completions.tokens != PAD)


def test_the_same_prompts_come_again() -> None:
    prompts = Prompts(*(part[:16] for part in (pools()[1].digits, pools()[1].levels, pools()[1].answers)))
    case = CanaryPrompts(onset=2, every=4, level=2, seed=0)
    assert apply_batch(case, prompts, 0) is prompts and apply_batch(case, prompts, 3) is prompts
    first, again = apply_batch(case, prompts, 2), apply_batch(case, prompts, 6)
    assert torch.equal(first.digits, again.digits) and (first.levels == 2).all() and len(first.digits) == 16
