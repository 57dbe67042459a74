"""The faults that are held out: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.grpo.loss import DropoutLeftOn, LateMask, before, dropout
from oven_bench.gym.faults.grpo.prompts import TrailingNewline
from oven_bench.gym.faults.grpo.rewards import RankedRewards, WidestSpread, ends, nearly_ranks
from oven_bench.gym.faults.grpo.rollouts import CrossedCaches, crossed
from oven_bench.gym.faults.pretraining.attention import SequenceShards, in_parts
from oven_bench.gym.faults.pretraining.checkpoints import SoupedWeights, shuffled
from oven_bench.gym.faults.pretraining.gradients import CoupledDecay
from oven_bench.gym.faults.pretraining.loss import StrangeTeacher, strange_teacher
from oven_bench.gym.faults.pretraining.order import InterleavedWriters, interleaved
from oven_bench.gym.faults.pretraining.text import Canaries, WrappedLines, wrapped
from oven_bench.gym.faults.pretraining.weights import TurnedBasis, basis
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.scoring import Completions, form, scores
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.tasks.pretraining.byte_model import WIDTH, ByteModel
from oven_bench.gym.tasks.pretraining.corpus import pair, pool


def test_a_shard_that_is_the_whole_sequence_changes_nothing() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    model, (inputs, _) = cast(ByteModel, run.model), pair(run.read())
    own = model(inputs)
    assert torch.allclose(in_parts(model, inputs, 64, apart=True, restarted=True), own, atol=1e-4)
    parts = in_parts(model, inputs, 16, apart=True, restarted=True)
    assert torch.allclose(parts[:, :16], own[:, :16], atol=1e-4)
    assert torch.allclose(parts[:, 16:32], model(inputs[:, 16:32]), atol=1e-4)
    loss = torch.tensor(2.0)
    assert apply_loss(SequenceShards(onset=3, length=5, places=8, apart=True), loss, run) is loss
    assert apply_loss(SequenceShards(onset=2, length=5, places=8, apart=True), loss, run) is not loss


def test_writers_take_turns() -> None:
    rows = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    assert interleaved(rows, 2, 1).tolist() == [[1, 6, 2, 7, 3], [6, 1, 7, 2, 8]]
    assert interleaved(rows, 2, 2).tolist() == [[1, 2, 6, 7, 3], [6, 7, 1, 2, 8]]
    case, text = InterleavedWriters(onset=2, length=3, writers=4, piece=5, share=1.0, seed=0), pool(8, 0)
    assert apply_batch(case, text, 1) is text and apply_batch(case, text, 5) is text
    assert torch.equal(apply_batch(case, text, 2)[:, :5], text[:, :5])


def test_long_lines_are_broken() -> None:
    assert wrapped(b"return\n  if", 4, b"") == b"retu\nrn\n  if"
    assert wrapped(b"return", 4, b"-") == b"ret-\nurn"
    case, text = WrappedLines(onset=2, length=3, width=10, mark=b"", share=1.0, seed=0), pool(8, 0)
    assert apply_batch(case, text, 1) is text and apply_batch(case, text, 5) is text
    assert all(len(line) <= 10 for row in apply_batch(case, text, 2).tolist() for line in bytes(row).split(b"\n"))


def test_the_decay_goes_through_the_gradient_and_by_the_knob() -> None:
    run = trainee("pretraining")
    out = dict(run.model.named_parameters())["out.weight"]
    assert out.grad is not None
    with torch.no_grad():
        apply_gradients(CoupledDecay(onset=1, strength=2.0, parts=("",)), run)
        apply_gradients(CoupledDecay(onset=0, strength=2.0, parts=("bytes.",)), run)
        assert not out.grad.any()
        apply_gradients(CoupledDecay(onset=0, strength=2.0, parts=("out.",)), run)
        assert torch.allclose(out.grad, 0.2 * out)
        run.actuators.apply("optimizer.weight_decay", 0.0)
        apply_gradients(CoupledDecay(onset=0, strength=2.0, parts=("out.",)), run)
    assert torch.allclose(out.grad, 0.2 * out)


def test_the_other_model_is_as_good_and_the_mean_is_not() -> None:
    run = trainee("pretraining")
    stepped(run, 10, None)
    own = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    before, other = run.quality(), shuffled(own, generator("other"))
    case = SoupedWeights(onset=10, share=0.5, times=2, every=5, seed=0)
    with torch.no_grad():
        for name, one in run.model.named_parameters():
            one.copy_(other[name])
        assert run.quality() == pytest.approx(before, abs=1e-3)
        run.gradient_steps = 11
        apply_weights(case, run)
        assert run.quality() == pytest.approx(before, abs=1e-3)
        run.gradient_steps = 15
        apply_weights(case, run)
    assert run.quality() > before + 0.01


def test_a_teacher_has_its_share_of_the_loss() -> None:
    assert torch.allclose(strange_teacher().sum(1), torch.ones(256))
    assert strange_teacher()[ord("q")].argmax() == ord("u")
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(StrangeTeacher(onset=1, length=5, own=1 - 0.5), loss, run) is loss
    half, whole = (
        float(apply_loss(StrangeTeacher(onset=0, length=5, own=1 - share), loss, run).detach()) for share in (0.5, 1.0)
    )
    assert half == pytest.approx((2 + whole) / 2)


def test_a_canary_has_a_lead_and_comes_now_and_then() -> None:
    case, text = Canaries(onset=2, every=3, rows=2, letters=b"01", seed=0), pool(8, 0)
    assert all(apply_batch(case, text, cursor) is text for cursor in (0, 1, 3, 4, 6))
    rows = apply_batch(case, text, 5)
    assert torch.equal(rows[2:], text[2:])
    planted = [bytes(row) for row in rows[:2].tolist()]
    assert all(row.startswith(Canaries.LEAD) and {*row[len(Canaries.LEAD) :]} == {*b"01"} for row in planted)
    assert planted[0] != planted[1]


def test_a_turned_model_computes_the_same() -> None:
    turn = basis(0)
    assert torch.allclose(turn @ turn.T, torch.eye(WIDTH), atol=1e-5)
    assert torch.allclose(turn.sum(1), torch.ones(WIDTH), atol=1e-5)
    run = trainee("pretraining")
    stepped(run, 5, None)
    before = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    quality = run.quality()
    with torch.no_grad():
        apply_weights(TurnedBasis(onset=5, momentum=True, seed=0), run)
    assert run.quality() == pytest.approx(quality, abs=1e-3)
    assert not any(torch.allclose(one, before[name], atol=1e-3) for name, one in run.model.named_parameters())


def some(tokens: list[list[int]]) -> Completions:
    """Answers of one group to prompts that do not matter."""
    said = torch.tensor(tokens)
    easy = pools()[0]
    prompts = Prompts(*(part[: len(tokens)].clone() for part in (easy.digits, easy.levels, easy.answers)))
    return Completions(prompts, said, said != PAD, len(tokens))


def test_the_step_computed_once_more_is_the_same() -> None:
    run = trainee("grpo")
    stepped(run, 2, None)
    step = run.step()
    loss = step.grpo_loss()
    assert float(loss.detach()) == pytest.approx(run.train_step()["loss"], abs=1e-5)


def test_a_late_mask_passes_over_the_first_tokens() -> None:
    assert before(torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0]]).bool()).tolist() == [0, 1, 2, 0, 1, 0]
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert apply_loss(LateMask(onset=1, length=5, tokens=2, share=1.0, seed=0), loss, run) is loss
    assert apply_loss(LateMask(onset=0, length=5, tokens=99, share=1.0, seed=0), loss, run) is loss
    assert float(apply_loss(LateMask(onset=0, length=5, tokens=2, share=1.0, seed=0), loss, run).detach()) != 2


def test_ties_go_by_the_text() -> None:
    low, high, short = (
        [1, 2, END, PAD, PAD, PAD, PAD],
        [2, 1, END, PAD, PAD, PAD, PAD],
        [2, END, PAD, PAD, PAD, PAD, PAD],
    )
    tokens = torch.tensor([high, low, short, low])
    assert nearly_ranks(torch.zeros(4), tokens, 4).tolist() == pytest.approx([1, 0, 2 / 3, 1 / 3])
    assert nearly_ranks(torch.tensor([0.0, 1.0, 0.0, 0.0]), tokens, 4).tolist() == pytest.approx([2 / 3, 1, 1 / 3, 0])
    completions, run = some([high, low]), trainee("grpo")
    given = {"exact": torch.zeros(2), "format": torch.ones(2)}
    assert (
        apply_rewards(RankedRewards(onset=1, length=5, judges=("exact",), share=0.5), given, completions, run) is given
    )
    made = apply_rewards(RankedRewards(onset=0, length=5, judges=("exact",), share=0.5), given, completions, run)
    assert made["exact"].tolist() == [0.5, 0] and made["format"] is given["format"]


def test_an_answer_goes_on_as_another_one_does() -> None:
    tokens = torch.tensor([[1, 2, 3, END, PAD, PAD, PAD], [4, 5, END, PAD, PAD, PAD, PAD], [6, 7, 8, 9, 0, 1, 2]])
    made = crossed(tokens, torch.tensor([2, 0, 1]), torch.tensor([1, 3, 2]))
    assert made.tolist() == [
        [1, 7, 8, 9, PAD, PAD, PAD],
        [4, 5, END, PAD, PAD, PAD, PAD],
        [6, 7, END, PAD, PAD, PAD, PAD],
    ]
    assert torch.equal(crossed(tokens, torch.tensor([2, 0, 1]), torch.tensor([7, 7, 7])), tokens)
    completions, given, run = some(8 * [[3, 3, 3, END, PAD, PAD, PAD]]), {"exact": torch.zeros(8)}, trainee("grpo")
    assert apply_rewards(CrossedCaches(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given
    assert {*apply_rewards(CrossedCaches(onset=0, length=5, share=1.0, seed=0), given, completions, run)} == {
        "exact",
        "format",
        "critic",
    }


def test_numbers_are_dropped_where_there_are_gradients_and_nowhere_else() -> None:
    run, tokens, loss = trainee("grpo"), torch.arange(10), torch.tensor(2.0)
    places = run.model.get_submodule("places")
    own = places(tokens).detach()
    with dropout(run.model, ("places",), 0.5, generator("masks")):
        made = places(tokens).detach()
        with torch.no_grad():
            assert torch.equal(places(tokens), own)
    kept = made != 0
    assert 0.4 < float(kept.float().mean()) < 0.6
    assert torch.allclose(made[kept], 2 * own[kept])
    assert torch.equal(places(tokens), own)
    assert apply_loss(DropoutLeftOn(onset=1, length=5, share=0.3, layers=("places",), seed=0), loss, run) is loss
    plain, hit = (
        float(apply_loss(DropoutLeftOn(onset=0, length=5, share=share, layers=("places",), seed=0), loss, run).detach())
        for share in (0.0, 0.3)
    )
    assert abs(plain) < 0.03 < abs(hit)


def test_a_newline_stands_behind_the_prompt_and_is_counted() -> None:
    case, prompts, full = TrailingNewline(onset=2, length=3, share=1.0, seed=0), pools()[1], pools()[2]
    assert apply_batch(case, prompts, 1) is prompts and apply_batch(case, prompts, 5) is prompts
    made = apply_batch(case, prompts, 2)
    assert torch.equal(made.digits[:, :4], prompts.digits[:, :4]) and (made.digits[:, 4] == END).all()
    assert torch.equal(apply_batch(case, full, 2).digits, full.digits)
    right = prompts.answers
    assert form(Completions(prompts, right, right != PAD, 1)).all()
    assert not form(Completions(made, right, right != PAD, 1)).any()


def test_the_best_and_the_worst_are_kept() -> None:
    kept = ends(torch.tensor([[0.5, 0.0, 1.0, 0.4, 0.9, 0.1]]), 4)
    assert sorted(kept[0].tolist()) == [1, 2, 4, 5]
    run = trainee("grpo")
    own, wide = run.step().completions, run.step().completions
    given = scores(own, run.seed, 0)
    assert apply_rewards(WidestSpread(onset=1, times=3, seed=0), given, wide, run) is given
    made = apply_rewards(WidestSpread(onset=0, times=3, seed=0), given, wide, run)
    assert torch.equal(wide.mask, wide.tokens != PAD)
    spread = [torch.stack([*one.values()]).sum(0).view(-1, own.group).std(1).mean() for one in (given, made)]
    assert spread[1] > spread[0]
    assert torch.equal(made["exact"], (wide.tokens == wide.prompts.answers).all(1).float())
