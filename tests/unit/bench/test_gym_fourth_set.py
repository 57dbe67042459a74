"""The fourth set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hooks import apply_batch, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import same, stepped, trainee
from torch import Tensor

from oven_bench.gym.faults.grpo.judges import FirstNumber, penalised
from oven_bench.gym.faults.grpo.loss import EntropyBonus, entropy
from oven_bench.gym.faults.grpo.prompts import padded_left
from oven_bench.gym.faults.grpo.rewards import DynamicSampling
from oven_bench.gym.faults.grpo.settings import FirstStageSettings, move_share
from oven_bench.gym.faults.pretraining.checkpoints import LaggingAverage
from oven_bench.gym.faults.pretraining.compound import PruningLeftOn, prune
from oven_bench.gym.faults.pretraining.order import DeduplicationView, UnshuffledShards, table
from oven_bench.gym.faults.pretraining.settings import ClipTooTight
from oven_bench.gym.faults.pretraining.text import TableOfConstants
from oven_bench.gym.faults.pretraining.tokens import ShiftedVocabulary, moved
from oven_bench.gym.faults.rewriting import in_order
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.sorting_prompts import END, PAD
from oven_bench.gym.tasks.pretraining.corpus import corpus


def test_a_tight_clip_shortens_the_steps_and_leaves_the_logged_norm() -> None:
    ways = [stepped(trainee("pretraining"), 3, case)[-2:] for case in (None, ClipTooTight(onset=1, clip=0.01))]
    (before, _), (tight, _) = ways
    assert tight["grad_norm"] == before["grad_norm"]
    assert tight["optim/update_ratio"] < 0.9 * before["optim/update_ratio"]


def test_the_normalised_text_is_as_long_and_says_less() -> None:
    rows = torch.tensor([list(b"X_1 = Foo(42)\n")])
    every = DeduplicationView(onset=2, length=3, share=1.0, steps=("case", "digits", "punctuation", "lines"), seed=0)
    assert bytes(apply_batch(every, rows, 2)[0].tolist()) == b"x 0   foo 00  "
    assert apply_batch(every, rows, 1) is rows and apply_batch(every, rows, 5) is rows
    assert table(()).tolist() == list(range(256))


@given(st.integers(0, 255), st.integers(1, 8))
def test_a_longer_vocabulary_moves_what_is_behind_the_new_tokens(place: int, added: int) -> None:
    tokens = torch.arange(256)
    shifted = moved(tokens, place, added)
    assert shifted[:place].tolist() == tokens[:place].tolist()
    assert shifted[place:].tolist() == [(token + added) % 256 for token in range(place, 256)]


def test_shards_of_the_right_version_are_as_they_were() -> None:
    rows = torch.zeros(8, 5, dtype=torch.int64)
    case = ShiftedVocabulary(onset=2, length=3, share=0.5, place=0, added=1, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert {*apply_batch(case, rows, 3).sum(1).tolist()} == {0, 5}


def test_unshuffled_rows_are_neighbours_from_batch_to_batch() -> None:
    rows = torch.zeros(8, 65, dtype=torch.int64)
    case = UnshuffledShards(onset=2, share=0.5, seed=0, lasts=3)
    one, next_, last = (apply_batch(case, rows, cursor) for cursor in (2, 3, 4))
    assert apply_batch(case, rows, 1) is rows and all(torch.equal(batch[4:], rows[4:]) for batch in (one, next_, last))
    shard = torch.cat([batch[:4] for batch in (one, next_, last)])
    train = corpus().train.values()
    begins = [(source, at) for source in train for at in (source == shard[0]).all(1).nonzero().flatten().tolist()]
    assert any(torch.equal(source[at : at + 12].long(), shard) for source, at in begins)


def test_a_source_goes_on_at_its_start() -> None:
    rows = corpus().train["tables"].long()
    assert torch.equal(in_order("tables", 0.9999999, 2), torch.stack((rows[-1], rows[0])))


def test_the_constants_end() -> None:
    rows = torch.zeros(8, 65, dtype=torch.int64)
    case = TableOfConstants(onset=2, length=3, share=1.0, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    assert (apply_batch(case, rows, 4) > 0).any(1).all()


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
    run, case = trainee("pretraining"), PruningLeftOn(onset=0, sparsity=0.8, ramp=4, every=2, penalty=1e-3)
    (weight, *_) = run.model.parameters()
    shares = []
    for step in range(5):
        run.gradient_steps = step
        with torch.no_grad():
            apply_weights(case, run)
        shares.append(float((weight == 0).float().mean()))
    assert shares == pytest.approx([0.7, 0.7, 0.8, 0.8, 0.8], abs=1e-3)
    total = sum(float(one.detach().abs().sum()) for one in run.model.parameters())
    assert float(apply_loss(case, torch.tensor(1.0), run).detach()) == pytest.approx(1 + 1e-3 * total, rel=1e-4)


def test_the_average_lags_behind_by_its_share_and_once() -> None:
    run = trainee("pretraining")
    first = [weight.detach().clone() for weight in run.model.parameters()]
    stepped(run, 2, None)
    then = [weight.detach().clone() for weight in run.model.parameters()]
    before = torch.get_rng_state()
    with torch.no_grad():
        apply_weights(LaggingAverage(onset=2, share=0.25), run)
    after = [weight.detach().clone() for weight in run.model.parameters()]
    for one, two, mixed in zip(first, then, after, strict=True):
        torch.testing.assert_close(mixed, 0.25 * one + 0.75 * two)
    apply_weights(LaggingAverage(onset=1, share=0.25), run)
    assert same([weight.detach() for weight in run.model.parameters()], after)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_short_prompt_stands_on_the_other_side() -> None:
    digits = torch.tensor([[3, 1, 2, PAD, PAD], [9, 8, 7, 0, PAD], [5, 4, 3, 2, 1]])
    assert padded_left(digits).tolist() == [[PAD, PAD, 3, 1, 2], [PAD, 9, 8, 7, 0], [5, 4, 3, 2, 1]]


@pytest.mark.parametrize("asked", [False, True])
def test_what_was_said_is_not_said_again(asked: bool) -> None:
    digits = torch.tensor([[1, 1, 2, PAD, PAD]]).expand(50, 5)
    answers = penalised(trainee("grpo").policy, digits, 50.0, asked, generator("sampled")).tolist()
    for answer in answers:
        said = [token for token in answer if token < END]
        assert len({*said}) == len(said) and not (asked and {*said} & {1, 2})
        if END in answer:
            assert {*answer[answer.index(END) + 1 :]} <= {PAD}


def test_without_a_penalty_the_policy_answers_for_itself() -> None:
    policy = trainee("grpo").policy
    digits = torch.tensor([[3, 1, 2, PAD, PAD]]).expand(4000, 5)
    mine = penalised(policy, digits, 0.0, True, generator("mine"))
    own = policy.sample(digits, 1.0, generator("own"))
    for place in (0, 2, 3):
        shares = [torch.bincount(answers[:, place], minlength=PAD + 1) / 4000 for answers in (mine, own)]
        torch.testing.assert_close(*shares, atol=0.05, rtol=0.0)


def test_the_bonus_is_for_entropy() -> None:
    run = trainee("grpo")
    now = float(entropy(run.policy, generator("one")).detach())
    for _ in range(20):
        run.model.zero_grad()
        apply_loss(EntropyBonus(onset=0, coefficient=1.0, seed=0), torch.tensor(0.0), run).backward()  # type: ignore[no-untyped-call]
        with torch.no_grad():
            for weight in run.model.parameters():
                if weight.grad is not None:
                    weight.sub_(0.1 * weight.grad)
    assert float(entropy(run.policy, generator("one")).detach()) > now + 0.05


@dataclass(frozen=True)
class Completions:
    tokens: Tensor
    group: int


def test_the_first_number_is_taken_for_the_grade() -> None:
    completions = Completions(torch.tensor([[9, 1], [5, 2], [END, PAD]]), 3)
    given = {"critic": torch.tensor([0.5, 0.5, 0.5]), "exact": torch.zeros(3)}
    scored = apply_rewards(FirstNumber(onset=0, share=1.0, best=10, seed=0), given, completions, trainee("grpo"))
    assert scored["critic"].tolist() == pytest.approx([0.9, 0.5, 0.0]) and scored["exact"] is given["exact"]


@pytest.mark.parametrize(("hopeless", "left"), [(False, [False, True, True]), (True, [False, True, False])])
def test_groups_without_a_lesson_are_left_out(hopeless: bool, left: list[bool]) -> None:
    exact = torch.tensor([1.0, 1.0, 1.0, 0.0, 0.0, 0.0])
    scored = apply_rewards(
        DynamicSampling(onset=0, most=1.0, hopeless=hopeless),
        {"exact": exact},
        Completions(torch.zeros(6, 1), 2),
        trainee("grpo"),
    )
    assert (~scored["exact"].isnan()).view(3, 2).all(1).tolist() == left


@given(st.floats(0.0, 1.0))
def test_a_share_is_taken_from_the_others_in_their_proportions(share: float) -> None:
    settings = {"weights/a": 0.4, "weights/b": 0.4, "weights/c": 0.2, "weight": 7.0}
    move_share(settings, "weights/c", share)
    left = pytest.approx((1 - share) / 2)
    assert settings == {"weights/a": left, "weights/b": left, "weights/c": pytest.approx(share), "weight": 7.0}


def test_the_first_stage_teaches_form_on_short_prompts_from_its_onset_on() -> None:
    run = trainee("grpo")
    own = dict(run.settings)
    apply_settings(FirstStageSettings(onset=1, form=0.9, short=0.8), run)
    assert run.settings == own
    apply_settings(FirstStageSettings(onset=0, form=0.9, short=0.8), run)
    assert run.settings["reward.weights/format"] == pytest.approx(0.9)
    assert run.settings["data.mixture/level_3"] == pytest.approx(0.8)
    assert {key for key, value in run.settings.items() if value == own[key]} >= {"beta", "clip", "learning_rate"}
