"""The sixth set of held-out faults: what each of them does to a row, a weight, a gradient or a score."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from tests.support.hooks import apply_batch, apply_gradients, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.fault import due
from oven_bench.gym.faults.grpo.judges import NumberColumn, as_numbers
from oven_bench.gym.faults.grpo.loss import HeavyDemonstrations, demonstrations
from oven_bench.gym.faults.grpo.prompts import AlikePrompts, ReviewPrompts, narrowed, solved
from oven_bench.gym.faults.grpo.rollouts import TokenBudget, fitting
from oven_bench.gym.faults.grpo.settings import WeightsByName
from oven_bench.gym.faults.pretraining.checkpoints import ReshardedMoments, TiedOnLoad, shifted
from oven_bench.gym.faults.pretraining.gradients import FrozenLayers, LostCollectives
from oven_bench.gym.faults.pretraining.loss import SmoothedLabels
from oven_bench.gym.faults.pretraining.order import WeakGenerator, chained
from oven_bench.gym.faults.pretraining.text import ProseCleaning, cleaned
from oven_bench.gym.faults.pretraining.tokens import FillInMiddle, infilled
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.scoring import Completions
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.tasks.pretraining.corpus import pool


def test_a_job_restarts_so_often_and_no_more() -> None:
    assert [step for step in range(40) if due(step - 5, 10, 3)] == [5, 15, 25]


@pytest.mark.parametrize(
    ("spaces", "lower", "expected"),
    [
        ("lines", False, b"If A:\nB  C\n"),
        ("all", False, b"If A: B C If A:"),
        ("all", True, b"if a: b c if a:"),
        ("none", True, b"if a:\n    b  c"),
    ],
)
def test_a_cleaned_row_has_lost_lines_or_capitals(spaces: str, lower: bool, expected: bytes) -> None:
    text = torch.tensor(list(b"If A:\n    B  C\n"))
    assert bytes(cleaned(text, spaces, lower, len(expected)).tolist()) == expected


def test_the_cleaned_data_end() -> None:
    rows = pool(8, 0)
    case = ProseCleaning(onset=2, length=3, share=1.0, seed=0, kept=("all", True))
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    made = apply_batch(case, rows, 3)
    assert made.shape == rows.shape and not (made == ord("\n")).any()


def test_a_written_row_has_only_pairs_that_the_source_has() -> None:
    pairs = {(one, two) for one, two in pool(1024, 0).flatten().unfold(0, 2, 1).tolist()}
    row = chained(1, 65, generator("written", "salt", 3)).tolist()
    assert len(row) == 65 and {*pairwise(row)} <= pairs
    rows = pool(8, 0)
    case = WeakGenerator(onset=2, length=3, share=0.5, order=2, seed=0)
    assert apply_batch(case, rows, 1) is rows and apply_batch(case, rows, 5) is rows
    kept = (apply_batch(case, rows, 2) == rows).all(1).tolist()
    assert any(kept) and not all(kept)


def test_an_infilled_row_has_its_middle_last() -> None:
    row = torch.tensor(list(b"abcdefghijk"))
    assert bytes(infilled(row, 2, 5).tolist()) == b"\x01ab\x02fgh\x03cde"
    rows = pool(8, 0)
    assert apply_batch(FillInMiddle(onset=2, share=1.0, seed=0), rows, 1) is rows
    assert (apply_batch(FillInMiddle(onset=2, share=1.0, seed=0), rows, 2)[:, 0] == 1).all()


def test_the_output_layer_becomes_the_embedding() -> None:
    run = trainee("pretraining")
    parameters = dict(run.model.named_parameters())
    said, out = parameters["bytes.weight"], parameters["out.weight"]
    with torch.no_grad():
        apply_weights(TiedOnLoad(onset=1, every=5, times=1, share=1.0, seed=0), run)
        assert not torch.equal(said, out)
        apply_weights(TiedOnLoad(onset=0, every=5, times=1, share=1.0, seed=0), run)
    assert torch.equal(said, out) and said.data_ptr() != out.data_ptr()


def test_a_stretch_of_the_moments_is_off() -> None:
    assert shifted(torch.arange(10), 0.5, 0.4, 1).tolist() == [0, 1, 2, 6, 3, 4, 5, 7, 8, 9]
    run = trainee("pretraining")
    stepped(run, 2, None)
    states = [run.optimizer.state[parameter] for parameter in run.model.parameters()]
    before = torch.cat([state["exp_avg_sq"].flatten() for state in states]).clone()
    with torch.no_grad():
        apply_weights(ReshardedMoments(onset=2, every=5, times=1, start=0.0, share=1.0, offset=7), run)
    assert torch.equal(torch.cat([state["exp_avg_sq"].flatten() for state in states]), before.roll(7))


def test_a_frozen_layer_has_no_gradient_and_the_others_have() -> None:
    run = trainee("pretraining")
    for parameter in run.model.parameters():
        parameter.grad = torch.ones_like(parameter)
    apply_gradients(FrozenLayers(onset=1, length=5, parts=("block.",)), run)
    assert all(bool(parameter.grad.all()) for parameter in run.model.parameters() if parameter.grad is not None)
    apply_gradients(FrozenLayers(onset=0, length=5, parts=("block.",)), run)
    for name, parameter in run.model.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.any()) != name.startswith("block.")


def test_a_smoothed_loss_is_part_of_the_way_to_that_of_all_symbols() -> None:
    run = trainee("pretraining")
    stepped(run, 3, None)
    spread = -run.model(run.read()[:, :-1]).log_softmax(-1).mean()
    loss = torch.tensor(2.0)
    assert apply_loss(SmoothedLabels(onset=4, smoothing=0.25), loss, run) is loss
    assert float(apply_loss(SmoothedLabels(onset=3, smoothing=0.25), loss, run).detach()) == pytest.approx(
        0.75 * 2 + 0.25 * float(spread.detach())
    )


def test_a_lost_gradient_is_small_for_a_step_and_the_next_is_not() -> None:
    own, lost = (
        stepped(trainee("pretraining"), 4, case)
        for case in (None, LostCollectives(onset=2, length=1, share=1.0, left=0.001, seed=0))
    )
    assert lost[:2] == own[:2]
    assert lost[2]["grad_norm"] == pytest.approx(0.001 * own[2]["grad_norm"], rel=1e-3)
    assert lost[3]["grad_norm"] > 0.5 * own[3]["grad_norm"]


def test_narrow_prompts_have_few_digits_and_right_answers() -> None:
    digits = torch.tensor([[9, 0, 4, 1, PAD], [2, 2, 3, PAD, PAD]])
    narrow = narrowed(digits, torch.tensor([7, 5]))
    assert narrow.tolist() == [[5, 7, 7, 5, PAD], [7, 7, 5, PAD, PAD]]
    assert solved(narrow).tolist() == [[5, 5, 7, 7, END, PAD, PAD], [5, 7, 7, END, PAD, PAD, PAD]]
    whole = pools()[2]
    assert torch.equal(solved(whole.digits), whole.answers)
    case = AlikePrompts(onset=2, length=3, share=1.0, kinds=3, seed=0)
    assert apply_batch(case, whole, 1) is whole and apply_batch(case, whole, 5) is whole
    assert len(apply_batch(case, whole, 2).digits.unique()) == 3


def some(tokens: list[list[int]]) -> Completions:
    """Answers to prompts that do not matter."""
    said = torch.tensor(tokens)
    easy = pools()[0]
    prompts = Prompts(*(part[: len(tokens)] for part in (easy.digits, easy.levels, easy.answers)))
    return Completions(prompts, said, said != PAD, len(tokens))


def test_a_number_has_no_zeros_before_it() -> None:
    tokens = [
        [0, 0, 3, 0, END, PAD, PAD],
        [0, 0, 0, END, PAD, PAD, PAD],
        [1, 0, 2, END, PAD, PAD, PAD],
        [END] + 6 * [PAD],
    ]
    expected = [[3, 0, END, PAD, PAD, PAD, PAD], [0, END, PAD, PAD, PAD, PAD, PAD], *tokens[2:]]
    assert as_numbers(torch.tensor(tokens)).tolist() == expected
    completions, given, run = some(tokens), {"exact": torch.zeros(4)}, trainee("grpo")
    assert apply_rewards(NumberColumn(onset=1, length=5, share=1.0, seed=0), given, completions, run) is given
    assert completions.tokens.tolist() == tokens
    assert apply_rewards(NumberColumn(onset=0, length=5, share=1.0, seed=0), given, completions, run) is given
    assert completions.tokens.tolist() == expected and completions.lengths.tolist() == [3, 2, 4, 1]


def test_the_longest_answers_are_in_no_loss() -> None:
    assert fitting(torch.tensor([4, 6, 3, 5]), 12).tolist() == [True, False, True, True]
    completions, run = some([[1, 2, 3, END, PAD, PAD, PAD], [1, 2, END, PAD, PAD, PAD, PAD]]), trainee("grpo")
    apply_rewards(TokenBudget(onset=0, length=5, budget=5), {}, completions, run)
    assert completions.lengths.tolist() == [0, 3]


def test_each_judge_gets_the_weight_of_another() -> None:
    run = trainee("grpo")
    own = dict(run.settings)
    case = WeightsByName(onset=1, order=("critic", "exact", "format"), exact=0.7, part=0.1 / (1 - 0.7))
    apply_settings(case, run)
    assert run.settings == own
    run.gradient_steps = 1
    apply_settings(case, run)
    weights = {"reward.weights/critic": 0.7, "reward.weights/exact": 0.1, "reward.weights/format": 0.2}
    assert run.settings == pytest.approx({**own, **weights})


def test_a_demonstration_is_an_answer_or_a_copy_and_weighs_in_the_loss() -> None:
    right, copied = (demonstrations(copies, 0, 1) for copies in (0.0, 1.0))
    assert torch.equal(right[1], solved(right[0]))
    assert torch.equal(copied[1].sort(1).values, right[1].sort(1).values) and not torch.equal(copied[1], right[1])
    run, loss = trainee("grpo"), torch.tensor(0.5)
    policy = run.policy
    assert apply_loss(HeavyDemonstrations(onset=1, weight=2.0, copies=0.5, seed=0), loss, run) is loss
    digits, answers = demonstrations(0.5, 0, 0)
    nll = -policy(digits, answers).gather(1, answers[answers != PAD].unsqueeze(1)).mean()
    assert float(
        apply_loss(HeavyDemonstrations(onset=0, weight=2.0, copies=0.5, seed=0), loss, run).detach()
    ) == pytest.approx(0.5 + 2 * float(nll.detach()))


def test_easy_prompts_come_on_top() -> None:
    prompts = pools()[2]
    case = ReviewPrompts(onset=2, added=5, level=0, seed=0)
    assert apply_batch(case, prompts, 1) is prompts
    more = apply_batch(case, prompts, 2)
    assert torch.equal(more.digits[:-5], prompts.digits) and more.levels[-5:].tolist() == [0] * 5
