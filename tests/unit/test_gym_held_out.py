"""The faults that are held out: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from oven_learner.gym.held_out.canaries import LEAD, Planted
from oven_learner.gym.held_out.common import again, pairs
from oven_learner.gym.held_out.coupled_decay import Coupled
from oven_learner.gym.held_out.crossed_caches import Crossed, crossed
from oven_learner.gym.held_out.dropout_left_on import Dropped, dropout
from oven_learner.gym.held_out.interleaved_writers import Interleaved, interleaved
from oven_learner.gym.held_out.late_mask import Late, place
from oven_learner.gym.held_out.ranked_rewards import Ranked, ranks
from oven_learner.gym.held_out.sequence_shards import Sharded, sharded
from oven_learner.gym.held_out.souped_weights import Souped
from oven_learner.gym.held_out.strange_teacher import Taught, teacher
from oven_learner.gym.held_out.trailing_newline import Trailing
from oven_learner.gym.held_out.turned_basis import Turned, basis
from oven_learner.gym.held_out.units import shuffled
from oven_learner.gym.held_out.widest_spread import Widest, ends
from oven_learner.gym.held_out.wrapped_lines import Wrapped, wrapped
from tests.unit.whole_trainees import stepped, trainee

from oven_learner.gym.fault import Case, generator
from oven_learner.gym.grpo.judges import Completions, form, scores
from oven_learner.gym.grpo.task import END, PAD, Prompts, pools
from oven_learner.gym.grpo.trainee import Grpo
from oven_learner.gym.pretraining.corpus import pool
from oven_learner.gym.pretraining.model import WIDTH, ByteModel


def test_a_shard_that_is_the_whole_sequence_changes_nothing() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    model, (inputs, _) = cast(ByteModel, run.model), pairs(run)
    own = model(inputs)
    assert torch.allclose(sharded(model, inputs, 64, True), own, atol=1e-4)
    parts = sharded(model, inputs, 16, True)
    assert torch.allclose(parts[:, :16], own[:, :16], atol=1e-4)
    assert torch.allclose(parts[:, 16:32], model(inputs[:, 16:32]), atol=1e-4)
    loss = torch.tensor(2.0)
    assert Sharded(3, 5, 8, True).loss(loss, run) is loss
    assert Sharded(2, 5, 8, True).loss(loss, run) is not loss


def test_writers_take_turns() -> None:
    rows = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]])
    assert interleaved(rows, 2, 1).tolist() == [[1, 6, 2, 7, 3], [6, 1, 7, 2, 8]]
    assert interleaved(rows, 2, 2).tolist() == [[1, 2, 6, 7, 3], [6, 7, 1, 2, 8]]
    case, text = Interleaved(2, 3, 4, 5, 1.0, 0), pool(8, 0)
    assert case.batch(text, 1) is text and case.batch(text, 5) is text
    assert torch.equal(case.batch(text, 2)[:, :5], text[:, :5])


def test_long_lines_are_broken() -> None:
    assert wrapped(b"return\n  if", 4, b"") == b"retu\nrn\n  if"
    assert wrapped(b"return", 4, b"-") == b"ret-\nurn"
    case, text = Wrapped(2, 3, 10, b"", 1.0, 0), pool(8, 0)
    assert case.batch(text, 1) is text and case.batch(text, 5) is text
    assert all(len(line) <= 10 for row in case.batch(text, 2).tolist() for line in bytes(row).split(b"\n"))


def test_the_decay_goes_through_the_gradient_and_by_the_knob() -> None:
    run = trainee("pretraining")
    out = dict(run.model.named_parameters())["out.weight"]
    assert out.grad is not None
    with torch.no_grad():
        Coupled(1, 2.0, ("",)).gradients(run)
        Coupled(0, 2.0, ("bytes.",)).gradients(run)
        assert not out.grad.any()
        Coupled(0, 2.0, ("out.",)).gradients(run)
        assert torch.allclose(out.grad, 0.2 * out)
        run.actuators.apply("optimizer.weight_decay", 0.0)
        Coupled(0, 2.0, ("out.",)).gradients(run)
    assert torch.allclose(out.grad, 0.2 * out)


def test_the_other_model_is_as_good_and_the_mean_is_not() -> None:
    run = trainee("pretraining")
    stepped(run, 10, None)
    own = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    before, other = run.quality(), shuffled(own, generator("other"))
    case = Souped(10, 0.5, 2, 5, 0)
    with torch.no_grad():
        for name, one in run.model.named_parameters():
            one.copy_(other[name])
        assert run.quality() == pytest.approx(before, abs=1e-3)
        run.gradient_steps = 11
        case.weights(run)
        assert run.quality() == pytest.approx(before, abs=1e-3)
        run.gradient_steps = 15
        case.weights(run)
    assert run.quality() > before + 0.01


def test_a_teacher_has_its_share_of_the_loss() -> None:
    assert torch.allclose(teacher().sum(1), torch.ones(256))
    assert teacher()[ord("q")].argmax() == ord("u")
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Taught(1, 5, 0.5).loss(loss, run) is loss
    half, whole = (float(Taught(0, 5, share).loss(loss, run).detach()) for share in (0.5, 1.0))
    assert half == pytest.approx((2 + whole) / 2)


def test_a_canary_has_a_lead_and_comes_now_and_then() -> None:
    case, text = Planted(2, 3, 2, b"01", 0), pool(8, 0)
    assert all(case.batch(text, cursor) is text for cursor in (0, 1, 3, 4, 6))
    rows = case.batch(text, 5)
    assert torch.equal(rows[2:], text[2:])
    planted = [bytes(row) for row in rows[:2].tolist()]
    assert all(row.startswith(LEAD) and {*row[len(LEAD) :]} == {*b"01"} for row in planted)
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
        Turned(5, True, 0).weights(run)
    assert run.quality() == pytest.approx(quality, abs=1e-3)
    assert not any(torch.allclose(one, before[name], atol=1e-3) for name, one in run.model.named_parameters())


def some(tokens: list[list[int]]) -> Completions:
    """Answers of one group to prompts that do not matter."""
    said = torch.tensor(tokens)
    easy = pools()[0]
    prompts = Prompts(*(part[: len(tokens)].clone() for part in (easy.digits, easy.levels, easy.answers)))
    return Completions(prompts, said, said != PAD, len(tokens))


def test_the_step_computed_once_more_is_the_same() -> None:
    run = cast(Grpo, trainee("grpo"))
    stepped(run, 2, None)
    step = again(run, Case())
    loss = step.loss(run._knobs.beta, step.log_probs.detach(), torch.ones_like(step.tokens, dtype=torch.bool))
    assert float(loss.detach()) == pytest.approx(run.train_step()["loss"], abs=1e-5)


def test_a_late_mask_passes_over_the_first_tokens() -> None:
    assert place(torch.tensor([0, 0, 0, 2, 2, 5])).tolist() == [0, 1, 2, 0, 1, 0]
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert Late(1, 5, 2, 1.0, 0).loss(loss, run) is loss
    assert Late(0, 5, 99, 1.0, 0).loss(loss, run) is loss
    assert float(Late(0, 5, 2, 1.0, 0).loss(loss, run).detach()) != 2


def test_ties_go_by_the_text() -> None:
    low, high, short = (
        [1, 2, END, PAD, PAD, PAD, PAD],
        [2, 1, END, PAD, PAD, PAD, PAD],
        [2, END, PAD, PAD, PAD, PAD, PAD],
    )
    tokens = torch.tensor([high, low, short, low])
    assert ranks(torch.zeros(4), tokens, 4).tolist() == pytest.approx([1, 0, 2 / 3, 1 / 3])
    assert ranks(torch.tensor([0.0, 1.0, 0.0, 0.0]), tokens, 4).tolist() == pytest.approx([2 / 3, 1, 1 / 3, 0])
    completions, run = some([high, low]), trainee("grpo")
    given = {"exact": torch.zeros(2), "format": torch.ones(2)}
    assert Ranked(1, 5, ("exact",), 0.5).rewards(given, completions, run) is given
    made = Ranked(0, 5, ("exact",), 0.5).rewards(given, completions, run)
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
    assert Crossed(1, 5, 1.0, 0).rewards(given, completions, run) is given
    assert {*Crossed(0, 5, 1.0, 0).rewards(given, completions, run)} == {"exact", "format", "critic"}


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
    assert Dropped(1, 5, 0.3, ("places",), 0).loss(loss, run) is loss
    plain, hit = (float(Dropped(0, 5, share, ("places",), 0).loss(loss, run).detach()) for share in (0.0, 0.3))
    assert abs(plain) < 0.03 < abs(hit)


def test_a_newline_stands_behind_the_prompt_and_is_counted() -> None:
    case, prompts, full = Trailing(2, 3, 1.0, 0), pools()[1], pools()[2]
    assert case.batch(prompts, 1) is prompts and case.batch(prompts, 5) is prompts
    made = case.batch(prompts, 2)
    assert torch.equal(made.digits[:, :4], prompts.digits[:, :4]) and (made.digits[:, 4] == END).all()
    assert torch.equal(case.batch(full, 2).digits, full.digits)
    right = prompts.answers
    assert form(Completions(prompts, right, right != PAD, 1)).all()
    assert not form(Completions(made, right, right != PAD, 1)).any()


def test_the_best_and_the_worst_are_kept() -> None:
    kept = ends(torch.tensor([[0.5, 0.0, 1.0, 0.4, 0.9, 0.1]]), 4)
    assert sorted(kept[0].tolist()) == [1, 2, 4, 5]
    run = cast(Grpo, trainee("grpo"))
    own, wide = run._sampled(Case()), run._sampled(Case())
    given = scores(own, run.seed, 0)
    assert Widest(1, 3, 0).rewards(given, wide, run) is given
    made = Widest(0, 3, 0).rewards(given, wide, run)
    assert torch.equal(wide.mask, wide.tokens != PAD)
    spread = [sum(one.values()).view(-1, own.group).std(1).mean() for one in (given, made)]
    assert spread[1] > spread[0]
    assert torch.equal(made["exact"], (wide.tokens == wide.prompts.answers).all(1).float())
