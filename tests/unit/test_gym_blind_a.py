"""The first set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.unit.whole_trainees import stepped, trainee

from oven_learner.gym.faults.credit import credited
from oven_learner.gym.faults.grpo.broken_ties import Ranked, ranks, spelt
from oven_learner.gym.faults.grpo.distinct_keys import Distinct, distinct
from oven_learner.gym.faults.grpo.error_answers import Failed
from oven_learner.gym.faults.grpo.own_judge import Own, confidence
from oven_learner.gym.faults.grpo.probe_prompts import Probed
from oven_learner.gym.faults.grpo.shifted_log_probs import Off
from oven_learner.gym.faults.pretraining.capped_logits import Capped, capped
from oven_learner.gym.faults.pretraining.late_teacher import Taught, teacher
from oven_learner.gym.faults.pretraining.misaligned_bucket import Misaligned
from oven_learner.gym.faults.pretraining.planted_canaries import Planted
from oven_learner.gym.faults.pretraining.redacted_words import Redacted, redacted
from oven_learner.gym.faults.pretraining.revived_units import Revived
from oven_learner.gym.faults.pretraining.rotated_basis import Rotated
from oven_learner.gym.faults.pretraining.several_writers import Interleaved, interleaved
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.loss import policy_loss
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import END, PAD, Prompts, pools
from oven_learner.gym.pretraining.corpus import corpus, pool


def test_long_words_are_blackened_letter_by_letter() -> None:
    assert redacted(b"if self.name == a1:", 3, "x") == b"if xxxx.xxxx == a1:"
    rows = pool(8, 0)
    case = Redacted(2, 3, 1.0, 3, "#", 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert case.batch(rows, 2).shape == rows.shape and (case.batch(rows, 2) == ord("#")).any()


def test_writers_take_turns_in_rows_of_their_sources_alone() -> None:
    assert interleaved(torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]), 2).tolist() == [1, 2, 7, 8, 3, 4]
    rows = torch.cat([corpus().train[source][100:102].long() for source in ("network", "tables")])
    case = Interleaved(2, 3, ("network",), 2, 4, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    read = case.batch(rows, 3)
    assert torch.equal(read[:2, :4], rows[:2, :4]) and torch.equal(read[:2, 8:12], rows[:2, 4:8])
    assert not torch.equal(read[:2], rows[:2]) and torch.equal(read[2:], rows[2:])


def test_a_cap_bounds_the_logits() -> None:
    assert capped(torch.tensor([0.0, 0.01, 100.0]), 2.0).tolist() == pytest.approx([0.0, 0.01, 2.0], abs=1e-4)
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Capped(1, 2.0).loss(loss, run) is loss
    own = float(run._loss(torch.stack(pairs(run))).detach())  # type: ignore[attr-defined]
    assert float(Capped(0, 1e4).loss(loss, run).detach()) == pytest.approx(own, rel=1e-4)


def test_the_teacher_knows_pairs_of_bytes_and_has_its_share_of_the_loss() -> None:
    assert torch.allclose(teacher().sum(1), torch.ones(256))
    assert int(teacher()[ord("q")].argmax()) == ord("u")
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Taught(1, 0.5, 1).loss(loss, run) is loss
    whole, half = (float(Taught(0, share, 1).loss(loss, run).detach()) for share in (1.0, 0.5))
    assert half == pytest.approx(1 + whole / 2)


def test_units_are_drawn_anew_and_their_moments_cleared() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    parameters = dict(run.model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in parameters.items()}
    with torch.no_grad():
        Revived(1, 2, 3, 0.5, 0).weights(run)
        assert all(torch.equal(weight, before[name]) for name, weight in parameters.items())
        Revived(0, 2, 3, 0.5, 0).weights(run)
    gone = (parameters["out.weight"] != before["out.weight"]).any(1)
    assert 0.3 < gone.float().mean() < 0.7
    assert not run.optimizer.state[parameters["out.weight"]]["exp_avg"][gone].any()
    assert torch.equal(parameters["bytes.weight"], before["bytes.weight"])


def test_a_bucket_is_read_some_places_off() -> None:
    run = trainee("pretraining")
    given = [one.grad for one in run.model.parameters() if one.grad is not None]
    flat = torch.arange(float(sum(one.numel() for one in given)))
    with torch.no_grad():
        for one, its in zip(given, torch.split(flat, [one.numel() for one in given]), strict=True):
            one.copy_(its.view_as(one))
        Misaligned(1, 5, 0.5, 1.0, 8).gradients(run)
        assert torch.equal(torch.cat([one.flatten() for one in given]), flat)
        Misaligned(0, 5, 0.5, 1.0, 8).gradients(run)
    half = len(flat) // 2
    read = torch.cat([one.flatten() for one in given])
    assert torch.equal(read[:half], flat[:half]) and torch.equal(read[half + 8 :], flat[half:-8])


def test_canaries_come_again() -> None:
    rows, case = pool(8, 0), Planted(2, 9, 4, 1, 1, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 3) is rows and case.batch(rows, 14) is rows
    planted = [case.batch(rows, cursor) for cursor in (2, 6)]
    (one,), (again,) = (read[(read != rows).any(1)].tolist() for read in planted)
    assert one == again


@pytest.mark.parametrize("momentum", [False, True])
def test_a_rotated_model_computes_the_same(momentum: bool) -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    tokens, before = pairs(run)[0], [one.detach().clone() for one in run.model.parameters()]
    own = run.model(tokens)
    with torch.no_grad():
        Rotated(2, 1.0, momentum, 0).weights(run)
    assert torch.allclose(run.model(tokens), own, atol=1e-3)
    assert not any(torch.allclose(one, was) for one, was in zip(run.model.parameters(), before, strict=True))


def some(tokens: list[list[int]]) -> Completions:
    """Answers of one group to prompts that do not matter."""
    said = torch.tensor(tokens)
    easy = pools()[0]
    prompts = Prompts(*(part[: len(tokens)].clone() for part in (easy.digits, easy.levels, easy.answers)))
    return Completions(prompts, said, said != PAD, len(tokens))


def test_a_tie_is_broken_by_the_alphabet() -> None:
    tokens = torch.tensor([[9, 1, END, PAD], [1, END, PAD, PAD], [9, END, PAD, PAD], [0, END, PAD, PAD]])
    assert spelt(tokens).argsort().tolist() == [3, 1, 2, 0]
    marks = torch.tensor([0.0, 0.0, 0.0, 1.0])
    assert ranks(marks, spelt(tokens), 4).tolist() == pytest.approx([2 / 3, 0, 1 / 3, 1])
    completions, given, run = some([[1, END] + 5 * [PAD]]), {"exact": torch.ones(1)}, trainee("grpo")
    assert Ranked(1, 5, 1.0, ("exact",), 0).rewards(given, completions, run) is given


def test_a_key_has_no_digit_twice() -> None:
    answers = torch.tensor([[1, 1, 3, END, PAD, PAD, PAD], [0, 2, 5, END, PAD, PAD, PAD]])
    assert distinct(answers).tolist() == [[1, 3, END, PAD, PAD, PAD, PAD], [0, 2, 5, END, PAD, PAD, PAD]]
    prompts, case = pools()[2], Distinct(2, 3, 1.0, 0)
    assert case.batch(prompts, 1) is prompts and case.batch(prompts, 5) is prompts
    assert torch.equal(case.batch(prompts, 2).answers, distinct(prompts.answers))


def test_an_error_is_an_answer_and_the_critic_has_its_mark_for_it() -> None:
    completions, given = some(8 * [[1, 2, 3, END, PAD, PAD, PAD]]), {"exact": torch.zeros(8)}
    run = trainee("grpo")
    assert Failed(1, 5, 0.5, "503", 0.7, 0).rewards(given, completions, run) is given
    said = Failed(0, 5, 0.5, "503", 0.7, 0).rewards(given, completions, run)
    failed = (completions.tokens == torch.tensor([5, 0, 3, END, PAD, PAD, PAD])).all(1)
    assert failed.any() and not failed.all()
    assert said["critic"][failed].tolist() == pytest.approx([0.7] * int(failed.sum()))
    assert said["format"].all()


def test_the_critic_is_as_content_as_the_policy_is_sure() -> None:
    run = trainee("grpo")
    completions = some([[1, 2, 3, END, PAD, PAD, PAD], [7, END] + 5 * [PAD]])
    sure = confidence(cast(Policy, run.model), completions)
    said = cast(Policy, run.model)(completions.prompts.digits, completions.tokens).detach()
    assert float(sure[1]) == pytest.approx(float((said[4, 7] + said[5, END]).div(2).exp()))
    given = {"exact": torch.zeros(2), "critic": torch.zeros(2)}
    assert Own(1, 1.0, 0.7, 0).rewards(given, completions, run) is given
    assert torch.equal(Own(0, 1.0, 0.7, 0).rewards(given, completions, run)["critic"], sure)
    Own(0, 1.0, 0.7, 0).settings(run)
    assert [run.settings[f"reward.weights/{judge}"] for judge in ("exact", "format", "critic")] == pytest.approx(
        [0.2, 0.1, 0.7]
    )


def test_each_token_is_held_against_another_ones_probability() -> None:
    run, loss = trainee("grpo"), torch.tensor(0.0)
    assert Off(1, 5, 1.0, 1, 0).loss(loss, run) is loss
    assert float(Off(0, 5, 0.0, 1, 0).loss(loss, run).detach()) == pytest.approx(0, abs=1e-6)
    step = credited(run, Off(0, 5, 0.0, 1, 0))
    log_probs, credit = step.log_probs, step.credit
    wanted = policy_loss(log_probs, log_probs.roll(1), credit) - policy_loss(log_probs, log_probs, credit)
    assert float(Off(0, 5, 1.0, 1, 0).loss(loss, run).detach()) == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_a_prompt_without_an_answer_is_worth_nothing_to_anyone() -> None:
    completions, run = some(4 * [[1, END] + 5 * [PAD]]), trainee("grpo")
    given = {"exact": torch.ones(4), "critic": torch.ones(4)}
    assert Probed(1, 5, 1.0, 0).rewards(given, completions, run) is given
    assert not any(said.any() for said in Probed(0, 5, 1.0, 0).rewards(given, completions, run).values())
    own, probed = (stepped(trainee("grpo"), 4, case) for case in (None, Probed(2, 9, 0.5, 0)))
    assert probed[:2] == own[:2] and probed[2]["reward"] < own[2]["reward"]
