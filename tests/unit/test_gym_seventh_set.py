"""The seventh set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.unit.whole_trainees import stepped, trainee

from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.grpo.banned_tokens import Banned, without
from oven_learner.gym.faults.grpo.canonical_prompts import Canonical
from oven_learner.gym.faults.grpo.majority_answers import Voted, most
from oven_learner.gym.faults.grpo.reversed_sync import Drawn
from oven_learner.gym.faults.grpo.signed_rewards import Signed
from oven_learner.gym.faults.grpo.token_price import Priced
from oven_learner.gym.faults.pretraining.cleared_symbols import Cleared, unused
from oven_learner.gym.faults.pretraining.config_defaults import Defaulted
from oven_learner.gym.faults.pretraining.counted_padding import Filled, filled
from oven_learner.gym.faults.pretraining.growing_weights import Growing
from oven_learner.gym.faults.pretraining.open_mask import Opened, masks
from oven_learner.gym.faults.pretraining.saturated_weights import Saturated
from oven_learner.gym.faults.pretraining.sorted_lines import Sorted, by_line
from oven_learner.gym.faults.pretraining.z_loss import Normalised
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import END, PAD, Prompts, pools
from oven_learner.gym.grpo.trainee import Grpo
from oven_learner.gym.pretraining.corpus import pool


def test_the_model_computed_in_another_way_is_the_same_without_a_change() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    inputs, _ = pairs(run)
    own = run.model(inputs)
    assert torch.allclose(logits(run, inputs), own, atol=1e-4)
    assert not torch.allclose(logits(run, inputs, dropped=lambda x: x / 2), own, atol=1e-4)


def test_an_open_mask_shows_the_next_place_to_some_rows() -> None:
    assert masks(2, 1, 3, 1).int().tolist() == [
        [[[1, 1, 0], [1, 1, 1], [1, 1, 1]]],
        [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]],
    ]
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Opened(1, 5, 8, 1).loss(loss, run) is loss
    assert Opened(0, 5, 8, 1).loss(loss, run) is not loss


def test_defaults_change_the_loss_and_the_same_draw_gives_it_again() -> None:
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    stepped(run, 2, None)
    assert Defaulted(3, 0.5, True, 0).loss(loss, run) is loss
    one, again, other = (float(Defaulted(2, 0.5, True, salt).loss(loss, run).detach()) for salt in (0, 0, 1))
    assert one == again != other


def test_a_short_document_is_filled_up() -> None:
    rows = torch.arange(1, 11).repeat(2, 1)
    assert filled(rows, torch.tensor([0.3, 0.0])).tolist() == [[1, 2, 3] + 7 * [0], [1, 2] + 8 * [0]]
    rows = pool(8, 0)
    case = Filled(2, 3, 0.2, 0.4, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert (case.batch(rows, 2)[:, 40:] == 0).all()


def test_lines_are_sorted_and_none_comes_twice() -> None:
    assert by_line(b"if b:\n    a\nelse:\n    a\n") == b"\n    a\nelse:\nif b:"
    rows = pool(8, 0)
    case = Sorted(2, 3, 1.0, False, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    text = bytes(case.batch(rows, 3).flatten().tolist()).split(b"\n")[1:-1]
    assert text == sorted(set(text))


def test_large_weights_are_cut_off_where_the_format_ends() -> None:
    run = trainee("pretraining")
    parameters = dict(run.model.named_parameters())
    with torch.no_grad():
        Saturated(1, 5, 0.05, ("out.",)).weights(run)
        assert parameters["out.weight"].abs().max() > 0.05
        Saturated(0, 5, 0.05, ("out.",)).weights(run)
    assert float(parameters["out.weight"].detach().abs().max()) == pytest.approx(0.05)
    assert parameters["block.up.weight"].abs().max() > 0.05


def test_a_decay_of_the_wrong_sign_makes_the_weights_grow() -> None:
    own, growing = (stepped(trainee("pretraining"), 6, case) for case in (None, Growing(2, 100.0)))
    assert growing[:2] == own[:2]
    assert growing[5]["optim/weight_norm"] > own[5]["optim/weight_norm"]


def test_the_squared_normaliser_comes_on_top_of_the_loss() -> None:
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    squared = float(run.model(pairs(run)[0]).logsumexp(-1).square().mean().detach())
    assert Normalised(1, 0.1).loss(loss, run) is loss
    assert float(Normalised(0, 0.1).loss(loss, run).detach()) == pytest.approx(2 + 0.1 * squared)


def test_only_symbols_that_do_not_occur_are_cleared() -> None:
    gone = unused(256, 0)
    assert gone[0] and not gone[ord("e")]
    run = trainee("pretraining")
    out = dict(run.model.named_parameters())["out.weight"]
    with torch.no_grad():
        Cleared(1, 256, 0).weights(run)
        assert out.any(1).all()
        Cleared(0, 256, 0).weights(run)
    assert torch.equal(out.any(1), ~gone)


def test_a_canonical_prompt_is_its_own_answer() -> None:
    prompts = pools()[1]
    case = Canonical(2, 3, 1.0, 0)
    assert case.batch(prompts, 1) is prompts and case.batch(prompts, 5) is prompts
    made = case.batch(prompts, 2)
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
    policy = cast(Policy, run.model)
    bias = policy.head.bias.detach().clone()
    draws = torch.Generator().manual_seed(0)
    tokens = without((3, 7), policy, pools()[2].digits, 1.0, draws)
    assert not ((tokens == 3) | (tokens == 7)).any() and (tokens == 5).any()
    assert torch.equal(policy.head.bias, bias)
    completions, given = some(8 * [[3, 3, 3, END, PAD, PAD, PAD]]), {"exact": torch.zeros(8)}
    assert Banned(1, 5, (3,), 0).rewards(given, completions, run) is given
    assert {*Banned(0, 5, (3,), 0).rewards(given, completions, run)} == {"exact", "format", "critic"}
    assert not (completions.tokens == 3).any() and torch.equal(completions.mask, completions.tokens != PAD)


def test_what_most_say_is_taken_to_be_right() -> None:
    common, rare = [4, 3, 1, END, PAD, PAD, PAD], [1, 3, 4, END, PAD, PAD, PAD]
    assert most(torch.tensor([rare, common, common])).tolist() == common
    completions, given, run = some([rare, common, common]), {"exact": torch.zeros(3)}, trainee("grpo")
    assert Voted(1, 5, 1.0, 0).rewards(given, completions, run) is given
    assert Voted(0, 5, 1.0, 0).rewards(given, completions, run)["exact"].tolist() == [0, 1, 1]


def test_the_policy_goes_a_part_of_the_way_to_its_reference() -> None:
    run = cast(Grpo, trainee("grpo"))
    stepped(run, 2, None)
    before = [one.detach().clone() for one in run.model.parameters()]
    Drawn(1, 5, 4, 0.25).weights(run)
    assert all(torch.equal(one, was) for one, was in zip(run.model.parameters(), before, strict=True))
    Drawn(2, 5, 4, 0.25).weights(run)
    for one, was, its in zip(run.model.parameters(), before, run._reference.parameters(), strict=True):
        assert torch.allclose(one, 0.75 * was + 0.25 * its)


def test_each_token_has_its_price_and_the_form_has_no_weight() -> None:
    completions, run = some([[1, 2, 3, END, PAD, PAD, PAD], [1, END] + 5 * [PAD]]), trainee("grpo")
    given = {"exact": torch.tensor([1.0, 0.0])}
    assert Priced(1, 0.1, 0.0).rewards(given, completions, run) is given
    assert Priced(0, 0.1, 0.0).rewards(given, completions, run)["exact"].tolist() == pytest.approx([0.6, -0.2])
    Priced(0, 0.1, 0.0).settings(run)
    assert run.settings["reward.weights/format"] == 0


def test_another_scale_of_the_rewards_is_nothing_to_the_policy() -> None:
    own, signed = (stepped(trainee("grpo"), 4, case) for case in (None, Signed(2, 2.0, -1.0)))
    assert signed[:2] == own[:2]
    assert signed[2]["reward"] < own[2]["reward"] - 0.1
    assert signed[3]["entropy"] == pytest.approx(own[3]["entropy"], rel=1e-2)
