"""The fourth set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.whole_trainees import same, stepped, trainee
from torch import Tensor

from oven_learner.gym.fault import generator
from oven_learner.gym.faults.grpo.dynamic_sampling import Filtered
from oven_learner.gym.faults.grpo.entropy_bonus import Bonus, entropy
from oven_learner.gym.faults.grpo.first_number import Misread
from oven_learner.gym.faults.grpo.first_stage_settings import FirstStage
from oven_learner.gym.faults.grpo.padding_side import padded_left
from oven_learner.gym.faults.grpo.repetition_penalty import sampled
from oven_learner.gym.faults.pretraining.clip_too_tight import Tight
from oven_learner.gym.faults.pretraining.deduplication_view import Normalised, table
from oven_learner.gym.faults.pretraining.lagging_average import Lagging
from oven_learner.gym.faults.pretraining.pruning_left_on import Pruned, prune
from oven_learner.gym.faults.pretraining.shifted_vocabulary import Shifted, moved
from oven_learner.gym.faults.pretraining.table_of_constants import Constants
from oven_learner.gym.faults.pretraining.unshuffled_shards import Unshuffled
from oven_learner.gym.faults.shares import moved_to
from oven_learner.gym.faults.sources import in_order
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import END, PAD
from oven_learner.gym.pretraining.corpus import corpus


def test_a_tight_clip_shortens_the_steps_and_leaves_the_logged_norm() -> None:
    ways = [stepped(trainee("pretraining"), 3, case)[-2:] for case in (None, Tight(1, 0.01))]
    (before, _), (tight, _) = ways
    assert tight["grad_norm"] == before["grad_norm"]
    assert tight["optim/update_ratio"] < 0.9 * before["optim/update_ratio"]


def test_the_normalised_text_is_as_long_and_says_less() -> None:
    rows = torch.tensor([list(b"X_1 = Foo(42)\n")])
    every = Normalised(2, 3, 1.0, ("case", "digits", "punctuation", "lines"), 0)
    assert bytes(every.batch(rows, 2)[0].tolist()) == b"x 0   foo 00  "
    assert every.batch(rows, 1) is rows and every.batch(rows, 5) is rows
    assert table(()).tolist() == list(range(256))


@given(st.integers(0, 255), st.integers(1, 8))
def test_a_longer_vocabulary_moves_what_is_behind_the_new_tokens(place: int, added: int) -> None:
    tokens = torch.arange(256)
    shifted = moved(tokens, place, added)
    assert shifted[:place].tolist() == tokens[:place].tolist()
    assert shifted[place:].tolist() == [(token + added) % 256 for token in range(place, 256)]


def test_shards_of_the_right_version_are_as_they_were() -> None:
    rows = torch.zeros(8, 5, dtype=torch.int64)
    case = Shifted(2, 3, 0.5, 0, 1, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert {*case.batch(rows, 3).sum(1).tolist()} == {0, 5}


def test_unshuffled_rows_are_neighbours_from_batch_to_batch() -> None:
    rows = torch.zeros(8, 65, dtype=torch.int64)
    case = Unshuffled(2, 3, 0.5, 0)
    one, next_, last = (case.batch(rows, cursor) for cursor in (2, 3, 4))
    assert case.batch(rows, 1) is rows and all(torch.equal(batch[4:], rows[4:]) for batch in (one, next_, last))
    shard = torch.cat([batch[:4] for batch in (one, next_, last)])
    train = corpus().train.values()
    begins = [(source, at) for source in train for at in (source == shard[0]).all(1).nonzero().flatten().tolist()]
    assert any(torch.equal(source[at : at + 12].long(), shard) for source, at in begins)


def test_a_source_goes_on_at_its_start() -> None:
    rows = corpus().train["tables"].long()
    assert torch.equal(in_order("tables", 0.9999999, 2), torch.stack((rows[-1], rows[0])))


def test_the_constants_end() -> None:
    rows = torch.zeros(8, 65, dtype=torch.int64)
    case = Constants(2, 3, 1.0, 0)
    assert case.batch(rows, 1) is rows and case.batch(rows, 5) is rows
    assert (case.batch(rows, 4) > 0).any(1).all()


@given(st.floats(0.0, 0.99))
def test_the_smallest_weights_are_pruned(share: float) -> None:
    weight = torch.randn(10, 10, generator=generator("pruned"))
    pruned = weight.clone()
    prune(pruned, share)
    gone = pruned == 0
    assert int(gone.sum()) == int(share * 100) and torch.equal(pruned[~gone], weight[~gone])
    if gone.any():
        assert weight[gone].abs().max() <= weight[~gone].abs().min()


def test_the_sparsity_rises_and_the_penalty_is_there_at_once() -> None:
    run, case = trainee("pretraining"), Pruned(0, 0.8, 4, 2, 1e-3)
    (weight, *_) = run.model.parameters()
    shares = []
    for step in range(5):
        run.gradient_steps = step
        with torch.no_grad():
            case.weights(run)
        shares.append(float((weight == 0).float().mean()))
    assert shares == pytest.approx([0.7, 0.7, 0.8, 0.8, 0.8], abs=1e-3)
    total = sum(float(one.detach().abs().sum()) for one in run.model.parameters())
    assert float(case.loss(torch.tensor(1.0), run).detach()) == pytest.approx(1 + 1e-3 * total, rel=1e-4)


def test_the_average_lags_behind_by_its_share_and_once() -> None:
    run = trainee("pretraining")
    first = [weight.detach().clone() for weight in run.model.parameters()]
    stepped(run, 2, None)
    then = [weight.detach().clone() for weight in run.model.parameters()]
    before = torch.get_rng_state()
    with torch.no_grad():
        Lagging(2, 0.25).weights(run)
    after = [weight.detach().clone() for weight in run.model.parameters()]
    for one, two, mixed in zip(first, then, after, strict=True):
        torch.testing.assert_close(mixed, 0.25 * one + 0.75 * two)
    Lagging(1, 0.25).weights(run)
    assert same([weight.detach() for weight in run.model.parameters()], after)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_short_prompt_stands_on_the_other_side() -> None:
    digits = torch.tensor([[3, 1, 2, PAD, PAD], [9, 8, 7, 0, PAD], [5, 4, 3, 2, 1]])
    assert padded_left(digits).tolist() == [[PAD, PAD, 3, 1, 2], [PAD, 9, 8, 7, 0], [5, 4, 3, 2, 1]]


@pytest.mark.parametrize("asked", [False, True])
def test_what_was_said_is_not_said_again(asked: bool) -> None:
    digits = torch.tensor([[1, 1, 2, PAD, PAD]]).expand(50, 5)
    answers = sampled(cast(Policy, trainee("grpo").model), digits, 50.0, asked, generator("sampled")).tolist()
    for answer in answers:
        said = [token for token in answer if token < END]
        assert len({*said}) == len(said) and not (asked and {*said} & {1, 2})
        if END in answer:
            assert {*answer[answer.index(END) + 1 :]} <= {PAD}


def test_without_a_penalty_the_policy_answers_for_itself() -> None:
    policy = cast(Policy, trainee("grpo").model)
    digits = torch.tensor([[3, 1, 2, PAD, PAD]]).expand(4000, 5)
    mine = sampled(policy, digits, 0.0, True, generator("mine"))
    own = policy.sample(digits, 1.0, generator("own"))
    for place in (0, 2, 3):
        shares = [torch.bincount(answers[:, place], minlength=PAD + 1) / 4000 for answers in (mine, own)]
        torch.testing.assert_close(*shares, atol=0.05, rtol=0.0)


def test_the_bonus_is_for_entropy() -> None:
    run = trainee("grpo")
    now = float(entropy(run, generator("one")).detach())
    for _ in range(20):
        run.model.zero_grad()
        Bonus(0, 1.0, 0).loss(torch.tensor(0.0), run).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in run.model.parameters():
                if weight.grad is not None:
                    weight.sub_(0.1 * weight.grad)
    assert float(entropy(run, generator("one")).detach()) > now + 0.05


@dataclass(frozen=True)
class Completions:
    tokens: Tensor
    group: int


def test_the_first_number_is_taken_for_the_grade() -> None:
    completions = Completions(torch.tensor([[9, 1], [5, 2], [END, PAD]]), 3)
    given = {"critic": torch.tensor([0.5, 0.5, 0.5]), "exact": torch.zeros(3)}
    scored = Misread(0, 1.0, 10, 0).rewards(given, completions, trainee("grpo"))
    assert scored["critic"].tolist() == pytest.approx([0.9, 0.5, 0.0]) and scored["exact"] is given["exact"]


@pytest.mark.parametrize(("hopeless", "left"), [(False, [False, True, True]), (True, [False, True, False])])
def test_groups_without_a_lesson_are_left_out(hopeless: bool, left: list[bool]) -> None:
    exact = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    scored = Filtered(0, 1.0, hopeless).rewards({"exact": exact}, Completions(torch.zeros(6, 1), 2), trainee("grpo"))
    assert (~scored["exact"].isnan()).view(3, 2).all(1).tolist() == left


@given(st.floats(0.0, 1.0))
def test_a_share_is_taken_from_the_others_in_their_proportions(share: float) -> None:
    settings = {"weights/a": 0.4, "weights/b": 0.4, "weights/c": 0.2, "weight": 7.0}
    moved_to(settings, "weights/c", share)
    left = pytest.approx((1 - share) / 2)
    assert settings == {"weights/a": left, "weights/b": left, "weights/c": pytest.approx(share), "weight": 7.0}


def test_the_first_stage_teaches_form_on_short_prompts_from_its_onset_on() -> None:
    run = trainee("grpo")
    own = dict(run.settings)
    FirstStage(1, 0.9, 0.8).settings(run)
    assert run.settings == own
    FirstStage(0, 0.9, 0.8).settings(run)
    assert run.settings["reward.weights/format"] == pytest.approx(0.9)
    assert run.settings["data.mixture/level_3"] == pytest.approx(0.8)
    assert {key for key, value in run.settings.items() if value == own[key]} >= {"beta", "clip", "learning_rate"}
