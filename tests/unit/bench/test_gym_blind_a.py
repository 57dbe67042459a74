"""The first set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

import pytest
import torch
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.grpo.compound import OwnJudge, confidence
from oven_bench.gym.faults.grpo.judges import ErrorAnswers
from oven_bench.gym.faults.grpo.loss import ShiftedLogProbs
from oven_bench.gym.faults.grpo.prompts import DistinctKeys, distinct
from oven_bench.gym.faults.grpo.rewards import BrokenTies, ProbePrompts, ranks, spelt
from oven_bench.gym.faults.pretraining.gradients import MisalignedBucket
from oven_bench.gym.faults.pretraining.loss import CappedLogits, LateTeacher, capped, teacher
from oven_bench.gym.faults.pretraining.order import SeveralWriters, alternating
from oven_bench.gym.faults.pretraining.text import PlantedCanaries, RedactedWords, redacted
from oven_bench.gym.faults.pretraining.weights import RevivedUnits, RotatedBasis
from oven_bench.gym.sorting.scoring import Completions
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.tasks.grpo.policy_loss import policy_loss
from oven_bench.gym.tasks.pretraining.corpus import corpus, pair, pool


def test_long_words_are_blackened_letter_by_letter() -> None:
    assert redacted(b"if self.name == a1:", 3, "x") == b"if xxxx.xxxx == a1:"
    rows = pool(8, 0)
    case = RedactedWords(onset=2, length=3, share=1.0, least=3, mark="#", seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert apply_batch(case, rows, 2).shape == rows.shape and (apply_batch(case, rows, 2) == ord("#")).any()


def test_writers_take_turns_in_rows_of_their_sources_alone() -> None:
    assert alternating(torch.tensor([[1, 2, 3, 4, 5, 6], [7, 8, 9, 10, 11, 12]]), 2).tolist() == [1, 2, 7, 8, 3, 4]
    rows = torch.cat([corpus().train[source][100:102].long() for source in ("network", "tables")])
    case = SeveralWriters(onset=2, length=3, sources=("network",), writers=2, block=4, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    read = apply_batch(case, rows, 3)
    assert torch.equal(read[:2, :4], rows[:2, :4]) and torch.equal(read[:2, 8:12], rows[:2, 4:8])
    assert not torch.equal(read[:2], rows[:2]) and torch.equal(read[2:], rows[2:])


def test_a_cap_bounds_the_logits() -> None:
    assert capped(torch.tensor([0.0, 0.01, 100.0]), 2.0).tolist() == pytest.approx([0.0, 0.01, 2.0], abs=1e-4)
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(CappedLogits(onset=1, cap=2.0), loss, run) is loss
    own = float(run.loss_of(torch.stack(pair(run.read()))).detach())
    assert float(apply_loss(CappedLogits(onset=0, cap=1e4), loss, run).detach()) == pytest.approx(own, rel=1e-4)


def test_the_teacher_knows_pairs_of_bytes_and_has_its_share_of_the_loss() -> None:
    assert torch.allclose(teacher().sum(1), torch.ones(256))
    assert int(teacher()[ord("q")].argmax()) == ord("u")
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(LateTeacher(onset=1, share=0.5, late=1), loss, run) is loss
    whole, half = (
        float(apply_loss(LateTeacher(onset=0, share=share, late=1), loss, run).detach()) for share in (1.0, 0.5)
    )
    assert half == pytest.approx(1 + whole / 2)


def test_units_are_drawn_anew_and_their_moments_cleared() -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    parameters = dict(run.model.named_parameters())
    before = {name: weight.detach().clone() for name, weight in parameters.items()}
    with torch.no_grad():
        apply_weights(RevivedUnits(onset=1, every=2, rounds=3, share=0.5, seed=0), run)
        assert all(torch.equal(weight, before[name]) for name, weight in parameters.items())
        apply_weights(RevivedUnits(onset=0, every=2, rounds=3, share=0.5, seed=0), run)
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
        apply_gradients(MisalignedBucket(onset=1, length=5, begin=0.5, padding=8, size=1.0 - 0.5), run)
        assert torch.equal(torch.cat([one.flatten() for one in given]), flat)
        apply_gradients(MisalignedBucket(onset=0, length=5, begin=0.5, padding=8, size=1.0 - 0.5), run)
    half = len(flat) // 2
    read = torch.cat([one.flatten() for one in given])
    assert torch.equal(read[:half], flat[:half]) and torch.equal(read[half + 8 :], flat[half:-8])


def test_canaries_come_again() -> None:
    rows, case = pool(8, 0), PlantedCanaries(onset=2, length=9, every=4, rows=1, different=1, seed=0)
    assert (
        apply_batch(case, rows, 1) is rows
        and apply_batch(case, rows, 3) is rows
        and apply_batch(case, rows, 14) is rows
    )
    planted = [apply_batch(case, rows, cursor) for cursor in (2, 6)]
    (one,), (again,) = (read[(read != rows).any(1)].tolist() for read in planted)
    assert one == again


@pytest.mark.parametrize("momentum", [False, True])
def test_a_rotated_model_computes_the_same(momentum: bool) -> None:
    run = trainee("pretraining")
    stepped(run, 2, None)
    tokens, before = pair(run.read())[0], [one.detach().clone() for one in run.model.parameters()]
    own = run.model(tokens)
    with torch.no_grad():
        apply_weights(RotatedBasis(onset=2, angle=1.0, momentum=momentum, seed=0), run)
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
    assert (
        apply_rewards(BrokenTies(onset=1, length=5, share=1.0, judges=("exact",), seed=0), given, completions, run)
        is given
    )


def test_a_key_has_no_digit_twice() -> None:
    answers = torch.tensor([[1, 1, 3, END, PAD, PAD, PAD], [0, 2, 5, END, PAD, PAD, PAD]])
    assert distinct(answers).tolist() == [[1, 3, END, PAD, PAD, PAD, PAD], [0, 2, 5, END, PAD, PAD, PAD]]
    prompts, case = pools()[2], DistinctKeys(onset=2, length=3, share=1.0, seed=0)
    assert apply_batch(case, prompts, 1) is prompts and apply_batch(case, prompts, 5) is prompts
    assert torch.equal(apply_batch(case, prompts, 2).answers, distinct(prompts.answers))


def test_an_error_is_an_answer_and_the_critic_has_its_mark_for_it() -> None:
    completions, given = some(8 * [[1, 2, 3, END, PAD, PAD, PAD]]), {"exact": torch.zeros(8)}
    run = trainee("grpo")
    assert (
        apply_rewards(
            ErrorAnswers(onset=1, length=5, share=0.5, code="503", fallback=0.7, seed=0), given, completions, run
        )
        is given
    )
    said = apply_rewards(
        ErrorAnswers(onset=0, length=5, share=0.5, code="503", fallback=0.7, seed=0), given, completions, run
    )
    failed = (completions.tokens == torch.tensor([5, 0, 3, END, PAD, PAD, PAD])).all(1)
    assert failed.any() and not failed.all()
    assert said["critic"][failed].tolist() == pytest.approx([0.7] * int(failed.sum()))
    assert said["format"].all()


def test_the_critic_is_as_content_as_the_policy_is_sure() -> None:
    run = trainee("grpo")
    completions = some([[1, 2, 3, END, PAD, PAD, PAD], [7, END] + 5 * [PAD]])
    sure = confidence(run.policy, completions)
    said = run.policy(completions.prompts.digits, completions.tokens).detach()
    assert float(sure[1]) == pytest.approx(float((said[4, 7] + said[5, END]).div(2).exp()))
    given = {"exact": torch.zeros(2), "critic": torch.zeros(2)}
    assert apply_rewards(OwnJudge(onset=1, share=1.0, weight=0.7, seed=0), given, completions, run) is given
    assert torch.equal(
        apply_rewards(OwnJudge(onset=0, share=1.0, weight=0.7, seed=0), given, completions, run)["critic"], sure
    )
    apply_settings(OwnJudge(onset=0, share=1.0, weight=0.7, seed=0), run)
    assert [run.settings[f"reward.weights/{judge}"] for judge in ("exact", "format", "critic")] == pytest.approx(
        [0.2, 0.1, 0.7]
    )


def test_each_token_is_held_against_another_ones_probability() -> None:
    run, loss = trainee("grpo"), torch.tensor(0.0)
    assert apply_loss(ShiftedLogProbs(onset=1, length=5, share=1.0, by=1, seed=0), loss, run) is loss
    assert float(
        apply_loss(ShiftedLogProbs(onset=0, length=5, share=0.0, by=1, seed=0), loss, run).detach()
    ) == pytest.approx(0, abs=1e-6)
    step = run.step(ShiftedLogProbs(onset=0, length=5, share=0.0, by=1, seed=0))
    log_probs, credit = step.log_probs, step.credit
    wanted = policy_loss(log_probs, log_probs.roll(1), credit) - policy_loss(log_probs, log_probs, credit)
    assert float(
        apply_loss(ShiftedLogProbs(onset=0, length=5, share=1.0, by=1, seed=0), loss, run).detach()
    ) == pytest.approx(float(wanted.detach()), rel=1e-4)


def test_a_prompt_without_an_answer_is_worth_nothing_to_anyone() -> None:
    completions, run = some(4 * [[1, END] + 5 * [PAD]]), trainee("grpo")
    given = {"exact": torch.ones(4), "critic": torch.ones(4)}
    assert apply_rewards(ProbePrompts(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given
    assert not any(
        said.any()
        for said in apply_rewards(ProbePrompts(onset=0, length=5, share=1.0, seed=0), given, completions, run).values()
    )
    own, probed = (
        stepped(trainee("grpo"), 4, case) for case in (None, ProbePrompts(onset=2, length=9, share=0.5, seed=0))
    )
    assert probed[:2] == own[:2] and probed[2]["reward"] < own[2]["reward"]
