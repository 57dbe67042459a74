"""The third set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.forward import logits
from oven_bench.gym.faults.grpo.loss import (
    DroppedRepeats,
    OtherAlgorithm,
    OverflowingCredit,
    behind,
    repeats,
    wrapped,
)
from oven_bench.gym.faults.grpo.prompts import RegradedLevels, disorder
from oven_bench.gym.faults.grpo.rewards import NoveltyBonus, novelty
from oven_bench.gym.faults.grpo.rollouts import TemperatureLadder, TrustedDraft, drafted, ladder
from oven_bench.gym.faults.pretraining.attention import KernelScale
from oven_bench.gym.faults.pretraining.gradients import PrivateGradients
from oven_bench.gym.faults.pretraining.loss import BalancedClasses, DetachedProbes, UnlearnedText, frequencies
from oven_bench.gym.faults.pretraining.text import DASHES, ENDS, QUOTES, TABS, OfficeExport, exported
from oven_bench.gym.faults.pretraining.tokens import FlippedRows
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.scoring import scores
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.sorting.two_layer_policy import Policy
from oven_bench.gym.tasks.pretraining.byte_model import HEADS, WIDTH, ByteModel
from oven_bench.gym.tasks.pretraining.corpus import pair, pool


def test_a_flipped_row_is_read_from_its_end() -> None:
    case, rows = FlippedRows(onset=2, length=3, share=1.0, seed=0), pool(8, 0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert bytes(apply_batch(case, rows, 2)[0].tolist()) == bytes(rows[0].tolist())[::-1]
    half = apply_batch(FlippedRows(onset=2, length=3, share=0.5, seed=0), rows, 3)
    assert 0 < int((half == rows).all(1).sum()) < 8


def test_rare_bytes_count_for_more_by_the_power() -> None:
    assert frequencies()[ord(" ")] > frequencies()[ord("e")] > frequencies()[ord("Q")] > 0
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    stepped(run, 2, None)
    assert apply_loss(BalancedClasses(onset=3, length=5, power=1.0), loss, run) is loss
    own = run.train_step(BalancedClasses(onset=0, length=5, power=0.0))["loss"]
    other = trainee("pretraining")
    stepped(other, 2, None)
    assert own == pytest.approx(other.train_step()["loss"], abs=1e-5)
    run, other = trainee("pretraining"), trainee("pretraining")
    stepped(run, 30, BalancedClasses(onset=0, length=50, power=0.75))
    stepped(other, 30, None)
    space, rare = ord(" "), ord("Q")
    said, usual = (cast(ByteModel, one.model)(pool(8, 0)[:, :-1]).softmax(-1).mean((0, 1)) for one in (run, other))
    assert said[space] < usual[space] and said[rare] > usual[rare]


def test_an_office_suite_has_its_own_signs() -> None:
    assert exported(b'f("a")\n', (QUOTES,)) == b"f(\x93a\x94)\n"
    assert exported(b"x = 'it' - ...", (QUOTES, DASHES)) == b"x = \x91it\x92 \x96 \x85"
    assert exported(b"if x:\n        y\n", (ENDS, TABS)) == b"if x:\r\n\t\ty\r\n"
    case, rows = OfficeExport(onset=2, length=3, share=1.0, changes=(ENDS, TABS), seed=0), pool(8, 0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    made = apply_batch(case, rows, 2)
    assert made.shape == rows.shape and int(made.max()) < 256
    assert torch.equal((made[:, 1:] == ord("\n")) & (made[:, :-1] != ord("\r")), torch.zeros(8, 64, dtype=torch.bool))


def test_the_model_with_its_own_scale_is_the_same() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    model, (inputs, _) = cast(ByteModel, run.model), pair(run.read())
    own, head = model(inputs), WIDTH // HEADS
    assert torch.allclose(logits(run.model, inputs, scale=head**-0.5), own, atol=1e-4)
    assert not torch.allclose(logits(run.model, inputs, scale=1.0), own, atol=1e-2)
    loss = torch.tensor(2.0)
    assert apply_loss(KernelScale(onset=3, length=5, scale=1.0), loss, run) is loss
    assert apply_loss(KernelScale(onset=2, length=5, scale=1.0), loss, run) is not loss


def test_the_loss_is_ascended_on_what_is_to_go() -> None:
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    own = float(run.loss_of(run.read()).detach())
    assert apply_loss(UnlearnedText(onset=1, length=5, share=1.0, strength=1.0, seed=0), loss, run) is loss
    assert apply_loss(UnlearnedText(onset=0, length=5, share=0.0, strength=1.0, seed=0), loss, run) is loss
    assert float(
        apply_loss(UnlearnedText(onset=0, length=5, share=1.0, strength=0.5, seed=0), loss, run).detach()
    ) == pytest.approx(-own / 2, abs=1e-4)


def test_noise_goes_to_every_weight_and_the_bound_holds() -> None:
    run = trainee("pretraining")
    stepped(run, 1, None)
    held = [one.grad for one in run.model.parameters() if one.grad is not None]
    for one in held:
        one.fill_(1.0)
    with torch.no_grad():
        apply_gradients(PrivateGradients(onset=2, length=5, bound=0.5, noise=3.0, seed=0), run)
        assert all((one == 1).all() for one in held)
        apply_gradients(PrivateGradients(onset=1, length=5, bound=0.5, noise=0.0, seed=0), run)
        assert float(torch.stack([one.norm() for one in held]).norm()) == pytest.approx(0.5, abs=1e-3)
        apply_gradients(PrivateGradients(onset=1, length=5, bound=0.5, noise=3.0, seed=0), run)
    assert float(torch.stack([one.norm() for one in held]).norm()) == pytest.approx(0.5 * 10**0.5, rel=0.02)


def test_a_probe_has_a_loss_and_no_gradient() -> None:
    run, case = trainee("pretraining"), DetachedProbes(onset=0, classes=256, pace=5.0, rest=0.5, every=20, seed=0)
    weight = torch.tensor(2.0, requires_grad=True)
    assert apply_loss(DetachedProbes(onset=1, classes=256, pace=5.0, rest=0.5, every=20, seed=0), weight, run) is weight
    shown = []
    for run.gradient_steps in (0, 10, 20):
        made = apply_loss(case, weight, run)
        assert torch.autograd.grad(made, weight)[0] == 1
        shown.append(float(made.detach()))
    assert shown[0] > 6 and 4 < shown[1] < 6 and shown[2] > 6


def test_the_step_computed_again_is_the_same() -> None:
    run = trainee("grpo")
    stepped(run, 2, None)
    step = run.step()
    assert float(step.grpo_loss().detach()) == pytest.approx(run.train_step()["loss"], abs=1e-5)


def test_credit_beyond_the_range_comes_out_at_the_other_end() -> None:
    made = wrapped(torch.tensor([-2.2, -1.0, 0.0, 1.9, 2.2]), 2.0)
    assert made.tolist() == pytest.approx([1.8, -1.0, 0.0, 1.9, -1.8], abs=1e-6)
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert apply_loss(OverflowingCredit(onset=1, length=5, limit=1.0), loss, run) is loss
    step = run.step()
    wide = float(apply_loss(OverflowingCredit(onset=0, length=5, limit=5.0), loss, run).detach())
    assert wide == pytest.approx(float(step.grpo_loss().detach()), abs=1e-5)


def test_a_draft_has_its_share_of_the_tokens() -> None:
    run, other = trainee("grpo"), Policy()
    digits = pools()[1].digits[:200]
    own = run.policy
    with torch.no_grad():
        own.head.bias[3] += 50.0
        other.head.bias[7] += 50.0
    for share, token in ((0.0, 3), (1.0, 7)):
        assert (drafted(own, other, digits, share, 1.0, generator("draft")) == token).all()
    mixed = drafted(own, other, digits, 0.3, 1.0, generator("draft"))
    assert 0.2 < float((mixed == 7).float().mean()) < 0.4
    other.head.bias.data[END] += 100.0
    ended = drafted(own, other, digits, 0.5, 1.0, generator("draft"))
    behind_end = (ended == END).cumsum(1) - (ended == END).int() > 0
    assert torch.equal(ended == PAD, behind_end)
    completions, given = run.step().completions, {"exact": torch.zeros(128)}
    assert apply_rewards(TrustedDraft(onset=1, length=5, share=0.5, seed=0), given, completions, run) is given
    assert {*apply_rewards(TrustedDraft(onset=0, length=5, share=0.5, seed=0), given, completions, run)} == {
        "exact",
        "format",
        "critic",
    }
    assert torch.equal(completions.mask, completions.tokens != PAD)


def test_what_nobody_else_said_has_a_bonus() -> None:
    same, other = [1, 2, END, PAD, PAD, PAD, PAD], [2, 1, END, PAD, PAD, PAD, PAD]
    tokens = torch.tensor([same, same, same, other, same, same])
    assert novelty(tokens, 3).tolist() == pytest.approx([0, 0, 0, 1, 0.5, 0.5])
    run = trainee("grpo")
    completions = run.step().completions
    given = scores(completions, run.seed, 0)
    assert (
        apply_rewards(NoveltyBonus(onset=1, length=5, judges=("exact",), share=0.5), given, completions, run) is given
    )
    made = apply_rewards(NoveltyBonus(onset=0, length=5, judges=("exact",), share=0.5), given, completions, run)
    assert made["format"] is given["format"]
    assert torch.allclose(made["exact"], given["exact"] / 2 + novelty(completions.tokens, 8) / 2)


def test_an_answer_that_the_group_has_already_is_dropped() -> None:
    answers = torch.tensor([[1, 2], [1, 3], [1, 2], [1, 2], [1, 3], [4, 5]])
    assert repeats(answers, 3).tolist() == [False, False, True, False, False, False]
    assert repeats(answers[:, :1], 3).tolist() == [False, True, True, False, True, False]
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert apply_loss(DroppedRepeats(onset=1, length=5, tokens=99, share=1.0, seed=0), loss, run) is loss
    step = run.step()
    none, every = (
        float(apply_loss(DroppedRepeats(onset=0, length=5, tokens=99, share=share, seed=0), loss, run).detach())
        for share in (0.0, 1.0)
    )
    assert none == pytest.approx(float(step.grpo_loss().detach()), abs=1e-5) != every


def test_the_credit_comes_from_the_end_and_pays_for_the_distance() -> None:
    mask = torch.tensor([[True, True, True, False], [True, False, False, False]])
    assert behind(mask).tolist() == [2, 1, 0, 0]
    run, loss = trainee("grpo"), torch.tensor(2.0)
    stepped(run, 3, None)
    step = run.step()
    own = float(step.grpo_loss().detach())
    assert apply_loss(OtherAlgorithm(onset=4, length=5, discount=0.5, price=0.0), loss, run) is loss
    assert float(
        apply_loss(OtherAlgorithm(onset=3, length=5, discount=1.0, price=0.0), loss, run).detach()
    ) == pytest.approx(own, abs=1e-5)
    priced = float(apply_loss(OtherAlgorithm(onset=3, length=5, discount=1.0, price=2.0), loss, run).detach())
    gap = float((step.log_probs.detach() - step.reference).mean())
    assert priced == pytest.approx(own + 2 * gap, abs=1e-4)


def test_levels_are_new_and_prompts_are_not() -> None:
    digits = torch.tensor([[1, 2, 3, PAD, PAD], [3, 2, 1, PAD, PAD], [1, 1, 1, PAD, PAD], [2, 1, 3, 1, PAD]])
    assert disorder(digits).tolist() == [0, 2, 0, 1]
    prompts = Prompts(*(torch.cat([getattr(one, part)[:4] for one in pools()]) for part in Prompts.__slots__))
    assert apply_batch(RegradedLevels(onset=2, rule="order", share=1.0, seed=0), prompts, 1) is prompts
    made = apply_batch(RegradedLevels(onset=2, rule="backwards", share=1.0, seed=0), prompts, 2)
    assert made.digits is prompts.digits and made.answers is prompts.answers
    assert made.levels.tolist() == 4 * [2] + 4 * [1] + 4 * [0]


def test_each_place_of_a_group_has_its_temperature() -> None:
    rungs = ladder(0.5, 2.0, 3)
    assert rungs.tolist() == pytest.approx([0.5, 1.0, 2.0])
    run = trainee("grpo")
    completions, given = run.step().completions, {"exact": torch.zeros(128)}
    assert apply_rewards(TemperatureLadder(onset=1, low=0.5, high=2.0, seed=0), given, completions, run) is given
    made = apply_rewards(TemperatureLadder(onset=0, low=1e-5, high=50.0, seed=0), given, completions, run)
    greedy = run.policy.sample(completions.prompts.digits, 1.0, None)
    assert torch.equal(completions.tokens[::8], greedy[::8])
    assert not torch.equal(completions.tokens[7::8], greedy[7::8])
    assert torch.equal(completions.mask, completions.tokens != PAD) and {*made} == {"exact", "format", "critic"}
