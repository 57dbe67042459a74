"""The seventh set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

import pytest
import torch
from tests.support.hooks import apply_batch, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.forward import logits
from oven_bench.gym.faults.grpo.compound import TokenPrice
from oven_bench.gym.faults.grpo.judges import MajorityAnswers, most
from oven_bench.gym.faults.grpo.prompts import CanonicalPrompts
from oven_bench.gym.faults.grpo.rewards import SignedRewards
from oven_bench.gym.faults.grpo.rollouts import BannedTokens, without
from oven_bench.gym.faults.grpo.weights import ReversedSync
from oven_bench.gym.faults.pretraining.attention import OpenMask, masks
from oven_bench.gym.faults.pretraining.loss import ConfigDefaults, ZLoss
from oven_bench.gym.faults.pretraining.order import SortedLines, by_line
from oven_bench.gym.faults.pretraining.settings import GrowingWeights
from oven_bench.gym.faults.pretraining.tokens import CountedPadding, filled
from oven_bench.gym.faults.pretraining.weights import ClearedSymbols, SaturatedWeights, unused
from oven_bench.gym.sorting.scoring import Completions
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.tasks.pretraining.corpus import pair, pool


def test_the_model_computed_in_another_way_is_the_same_without_a_change() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    inputs, _ = pair(run.read())
    own = run.model(inputs)
    assert torch.allclose(logits(run.model, inputs), own, atol=1e-4)
    assert not torch.allclose(logits(run.model, inputs, dropped=lambda x: x / 2), own, atol=1e-4)


def test_an_open_mask_shows_the_next_place_to_some_rows() -> None:
    assert masks(2, 1, 3, 1).int().tolist() == [
        [[[1, 1, 0], [1, 1, 1], [1, 1, 1]]],
        [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    ]
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(OpenMask(onset=1, length=5, rows=8, ahead=1), loss, run) is loss
    assert apply_loss(OpenMask(onset=0, length=5, rows=8, ahead=1), loss, run) is not loss


def test_defaults_change_the_loss_and_the_same_draw_gives_it_again() -> None:
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    stepped(run, 2, None)
    assert apply_loss(ConfigDefaults(onset=3, dropout=0.5, smooth=True, seed=0), loss, run) is loss
    one, again, other = (
        float(apply_loss(ConfigDefaults(onset=2, dropout=0.5, smooth=True, seed=salt), loss, run).detach())
        for salt in (0, 0, 1)
    )
    assert one == again != other


def test_a_short_document_is_filled_up() -> None:
    rows = torch.arange(1, 11).repeat(2, 1)
    assert filled(rows, torch.tensor([0.3, 0.0])).tolist() == [[1, 2, 3] + 7 * [0], [1, 2] + 8 * [0]]
    rows = pool(8, 0)
    case = CountedPadding(onset=2, length=3, shortest=0.2, seed=0, stretch=0.4 / 0.2)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert (apply_batch(case, rows, 2)[:, 40:] == 0).all()


def test_lines_are_sorted_and_none_comes_twice() -> None:
    assert by_line(b"if b:\n    a\nelse:\n    a\n") == b"\n    a\nelse:\nif b:"
    rows = pool(8, 0)
    case = SortedLines(onset=2, length=3, share=1.0, shuffled=False, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    text = bytes(apply_batch(case, rows, 3).flatten().tolist()).split(b"\n")[1:-1]
    assert text == sorted(set(text))


def test_large_weights_are_cut_off_where_the_format_ends() -> None:
    run = trainee("pretraining")
    parameters = dict(run.model.named_parameters())
    with torch.no_grad():
        apply_weights(SaturatedWeights(onset=1, length=5, largest=0.05, parts=("out.",)), run)
        assert parameters["out.weight"].abs().max() > 0.05
        apply_weights(SaturatedWeights(onset=0, length=5, largest=0.05, parts=("out.",)), run)
    assert float(parameters["out.weight"].detach().abs().max()) == pytest.approx(0.05)
    assert parameters["block.up.weight"].abs().max() > 0.05


def test_a_decay_of_the_wrong_sign_makes_the_weights_grow() -> None:
    own, growing = (stepped(trainee("pretraining"), 6, case) for case in (None, GrowingWeights(onset=2, growth=100.0)))
    assert growing[:2] == own[:2]
    assert growing[5]["optim/weight_norm"] > own[5]["optim/weight_norm"]


def test_the_squared_normaliser_comes_on_top_of_the_loss() -> None:
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    squared = float(run.model(pair(run.read())[0]).logsumexp(-1).square().mean().detach())
    assert apply_loss(ZLoss(onset=1, weight=0.1), loss, run) is loss
    assert float(apply_loss(ZLoss(onset=0, weight=0.1), loss, run).detach()) == pytest.approx(2 + 0.1 * squared)


def test_only_symbols_that_do_not_occur_are_cleared() -> None:
    gone = unused(256, 0)
    assert gone[0] and not gone[ord("e")]
    run = trainee("pretraining")
    out = dict(run.model.named_parameters())["out.weight"]
    with torch.no_grad():
        apply_weights(ClearedSymbols(onset=1, rows=256, most=0), run)
        assert out.any(1).all()
        apply_weights(ClearedSymbols(onset=0, rows=256, most=0), run)
    assert torch.equal(out.any(1), ~gone)


def test_a_canonical_prompt_is_its_own_answer() -> None:
    prompts = pools()[1]
    case = CanonicalPrompts(onset=2, length=3, share=1.0, seed=0)
    assert apply_batch(case, prompts, 1) is prompts and apply_batch(case, prompts, 5) is prompts
    made = apply_batch(case, prompts, 2)
    assert torch.equal(made.digits[:, :4], prompts.answers[:, :4]) and (made.digits[:, 4] == PAD).all()
    assert made.answers is prompts.answers


def some(tokens: list[list[int]]) -> Completions:
    """Answers of one group to prompts that do not matter."""
    said = torch.tensor(tokens)
    easy = pools()[0]
    prompts = Prompts(*(part[: len(tokens)].clone() for part in (easy.digits, easy.levels, easy.answers)))
    return Completions(prompts, said, said != PAD, len(tokens))


def test_a_banned_digit_is_never_said_and_the_policy_stays_as_it_is() -> None:
    run = trainee("grpo")
    policy = run.policy
    bias = policy.head.bias.detach().clone()
    draws = torch.Generator().manual_seed(0)
    tokens = without((3, 7), policy, pools()[2].digits, 1.0, draws)
    assert not ((tokens == 3) | (tokens == 7)).any() and (tokens == 5).any()
    assert torch.equal(policy.head.bias, bias)
    completions, given = some(8 * [[3, 3, 3, END, PAD, PAD, PAD]]), {"exact": torch.zeros(8)}
    assert apply_rewards(BannedTokens(onset=1, length=5, banned=(3,), seed=0), given, completions, run) is given
    assert {*apply_rewards(BannedTokens(onset=0, length=5, banned=(3,), seed=0), given, completions, run)} == {
        "exact",
        "format",
        "critic",
    }
    assert not (completions.tokens == 3).any() and torch.equal(completions.mask, completions.tokens != PAD)


def test_what_most_say_is_taken_to_be_right() -> None:
    common, rare = [4, 3, 1, END, PAD, PAD, PAD], [1, 3, 4, END, PAD, PAD, PAD]
    assert most(torch.tensor([rare, common, common])).tolist() == common
    completions, given, run = some([rare, common, common]), {"exact": torch.zeros(3)}, trainee("grpo")
    assert apply_rewards(MajorityAnswers(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given
    assert apply_rewards(MajorityAnswers(onset=0, length=5, share=1.0, seed=0), given, completions, run)[
        "exact"
    ].tolist() == [0, 1, 1]


def test_the_policy_goes_a_part_of_the_way_to_its_reference() -> None:
    run = trainee("grpo")
    stepped(run, 2, None)
    before = [one.detach().clone() for one in run.model.parameters()]
    apply_weights(ReversedSync(onset=1, length=5, every=4, share=0.25), run)
    assert all(torch.equal(one, was) for one, was in zip(run.model.parameters(), before, strict=True))
    apply_weights(ReversedSync(onset=2, length=5, every=4, share=0.25), run)
    for one, was, its in zip(run.model.parameters(), before, run.reference.parameters(), strict=True):
        assert torch.allclose(one, 0.75 * was + 0.25 * its)


def test_each_token_has_its_price_and_the_form_has_no_weight() -> None:
    completions, run = some([[1, 2, 3, END, PAD, PAD, PAD], [1, END] + 5 * [PAD]]), trainee("grpo")
    given = {"exact": torch.tensor([1.0, 0.0])}
    assert apply_rewards(TokenPrice(onset=1, price=0.1, form=0.0), given, completions, run) is given
    assert apply_rewards(TokenPrice(onset=0, price=0.1, form=0.0), given, completions, run)[
        "exact"
    ].tolist() == pytest.approx([0.6, -0.2])
    apply_settings(TokenPrice(onset=0, price=0.1, form=0.0), run)
    assert run.settings["reward.weights/format"] == 0


def test_another_scale_of_the_rewards_is_nothing_to_the_policy() -> None:
    own, signed = (stepped(trainee("grpo"), 4, case) for case in (None, SignedRewards(onset=2, scale=2.0, worst=0.5)))
    assert signed[:2] == own[:2]
    assert signed[2]["reward"] < own[2]["reward"] - 0.1
    assert signed[3]["entropy"] == pytest.approx(own[3]["entropy"], rel=1e-2)
