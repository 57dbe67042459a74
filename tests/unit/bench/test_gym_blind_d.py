"""The fourth set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from tests.support.hooks import apply_batch, apply_loss, apply_rewards, apply_settings, apply_weights
from tests.support.whole_trainees import stepped, trainee

from oven_bench.gym.faults.grpo.compound import SharedDirectory
from oven_bench.gym.faults.grpo.judges import BagOfTokens, echo, overlap
from oven_bench.gym.faults.grpo.loss import UndividedCredit
from oven_bench.gym.faults.grpo.prompts import UnclearedBuffer
from oven_bench.gym.faults.pretraining.attention import RestartedPositions, restarted
from oven_bench.gym.faults.pretraining.text import HEADERS, LicenceHeaders, LogLines, log
from oven_bench.gym.faults.pretraining.tokens import SwappedBytes, swapped
from oven_bench.gym.faults.pretraining.weights import SquareMatrix
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.sorting.scoring import Completions, form
from oven_bench.gym.sorting.sorting_prompts import END, PAD, Prompts, pools
from oven_bench.gym.sorting.warm_weights import warm_weights
from oven_bench.gym.tasks.pretraining.byte_model import WIDTH, ByteModel
from oven_bench.gym.tasks.pretraining.corpus import pool


def test_words_are_the_other_way_round() -> None:
    rows = torch.tensor([[1, 2, 3, 4, 5]])
    assert swapped(rows, 2).tolist() == [[2, 1, 4, 3, 5]]
    assert swapped(rows, 4).tolist() == [[4, 3, 2, 1, 5]]
    case, text = SwappedBytes(onset=2, length=3, word=2, share=1.0, seed=0), pool(8, 0)
    assert apply_batch(case, text, 1) is text and apply_batch(case, text, 5) is text
    assert torch.equal(swapped(apply_batch(case, text, 2), 2), text)


def test_a_row_begins_with_the_header_and_goes_on_as_before() -> None:
    case, text = LicenceHeaders(onset=2, length=3, header=HEADERS[0], shown=10, share=1.0, seed=0), pool(8, 0)
    assert apply_batch(case, text, 1) is text and apply_batch(case, text, 5) is text
    rows = apply_batch(case, text, 2)
    assert rows.shape == text.shape and torch.equal(rows[:, 10:], text[:, :-10])
    assert all(bytes(row[:10]) == HEADERS[0][:10] for row in rows.tolist())


def test_what_is_square_is_transposed_at_each_restart() -> None:
    run = trainee("pretraining")
    stepped(run, 3, None)
    block = cast(ByteModel, run.model).block
    mix, qkv = block.mix.weight.detach().clone(), block.qkv.weight.detach().clone()
    moment = run.optimizer.state[block.mix.weight]["exp_avg"].clone()
    case = SquareMatrix(onset=3, times=2, every=4, matrices=("v", "mix"), moments=True)
    with torch.no_grad():
        apply_weights(case, run)
        assert torch.equal(block.mix.weight, mix.T)
        assert torch.equal(run.optimizer.state[block.mix.weight]["exp_avg"], moment.T)
        assert torch.equal(block.qkv.weight[2 * WIDTH :], qkv[2 * WIDTH :].T)
        assert torch.equal(block.qkv.weight[: 2 * WIDTH], qkv[: 2 * WIDTH])
        for run.gradient_steps in (4, 11):
            apply_weights(case, run)
        assert torch.equal(block.mix.weight, mix.T)
        run.gradient_steps = 7
        apply_weights(case, run)
    assert torch.equal(block.mix.weight, mix) and torch.equal(block.qkv.weight, qkv)


def test_positions_begin_anew() -> None:
    begins = torch.tensor([[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]]).bool()
    assert restarted(begins).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert apply_loss(RestartedPositions(onset=1, length=5, every=5.0, share=1.0, seed=0), loss, run) is loss
    never, often = (
        float(apply_loss(RestartedPositions(onset=0, length=5, every=5.0, share=share, seed=0), loss, run).detach())
        for share in (0.0, 1.0)
    )
    assert never == pytest.approx(run.train_step()["loss"], abs=1e-5) and never != often


def test_logs_are_alike_and_not_the_same() -> None:
    made = [log(b"at %02d:%02d:%02d\n", 40, generator(seed)) for seed in range(2)]
    assert made[0] != made[1] and all(len(one) == 40 and one.count(b"\n") >= 3 for one in made)
    case, text = LogLines(onset=2, length=3, form=b"at %02d:%02d:%02d\n", share=0.5, seed=0), pool(8, 0)
    assert apply_batch(case, text, 1) is text and apply_batch(case, text, 5) is text
    changed = (apply_batch(case, text, 3) != text).any(1)
    assert 0 < int(changed.sum()) < 8


def some(tokens: list[list[int]], prompts: Prompts) -> Completions:
    """Answers of one group."""
    said = torch.tensor(tokens)
    return Completions(prompts, said, said != PAD, len(tokens))


def test_a_bag_has_no_order() -> None:
    easy = pools()[0]
    right = easy.answers[:1].repeat(3, 1)
    backwards, short = right[0].tolist(), [int(right[0, 0]), END, *5 * [PAD]]
    backwards[:3] = backwards[2::-1]
    prompts = Prompts(easy.digits[:1].repeat(3, 1), easy.levels[:1].repeat(3), right)
    completions, run = some([right[0].tolist(), backwards, short], prompts), trainee("grpo")
    assert overlap(completions).tolist() == pytest.approx([1, 1, 0.5])
    asked = prompts.digits[0].tolist()
    assert float(echo(some(3 * [asked + 2 * [PAD]], prompts))[0]) == 1
    given = {"exact": torch.zeros(3), "format": torch.ones(3)}
    assert (
        apply_rewards(
            BagOfTokens(onset=1, length=5, judges=("exact",), grounded=0.5, share=1.0, seed=0), given, completions, run
        )
        is given
    )
    made = apply_rewards(
        BagOfTokens(onset=0, length=5, judges=("exact",), grounded=0.5, share=1.0, seed=0), given, completions, run
    )
    assert made["exact"].tolist() == [1, 1, 0] and made["format"] is given["format"]


def test_the_other_jobs_files_and_settings_are_taken_up() -> None:
    run = trainee("grpo")
    stepped(run, 3, None)
    own = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    case = SharedDirectory(onset=3, times=1, every=5, other=900_001, files=("middle", "head"), rate=2.0, beta=0.5)
    rate = run.settings["learning_rate"]
    apply_settings(case, run)
    apply_weights(case, run)
    assert run.settings["learning_rate"] == 2 * rate
    theirs = warm_weights(900_001)
    for name, one in run.model.named_parameters():
        assert torch.equal(one, (theirs if name.startswith(("middle", "head")) else own)[name])
    apply_settings(SharedDirectory(onset=4, times=1, every=5, other=900_001, files=("",), rate=2.0, beta=0.5), run)
    assert run.settings["learning_rate"] == 2 * rate


def test_an_older_prompt_shows_behind_a_shorter_one() -> None:
    case, prompts, full = UnclearedBuffer(onset=2, length=3, share=1.0, seed=0), pools()[0], pools()[2]
    assert apply_batch(case, prompts, 1) is prompts and apply_batch(case, prompts, 5) is prompts
    made = apply_batch(case, prompts, 2)
    assert torch.equal(made.digits[:, :3], prompts.digits[:, :3]) and not (made.digits == PAD).any()
    assert torch.equal(made.answers, prompts.answers)
    assert torch.equal(apply_batch(case, full, 2).digits, full.digits)
    right = prompts.answers
    assert not form(Completions(made, right, right != PAD, 1)).any()


def test_credit_is_of_another_size() -> None:
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert apply_loss(UndividedCredit(onset=1, scale=3.0), loss, run) is loss
    norms = []
    for scale in (1.0, 4.0):
        run = trainee("grpo")
        run.settings["beta"] = 0.0
        norms.append(run.train_step(UndividedCredit(onset=0, scale=scale))["grad_norm"])
    assert 3 < norms[1] / norms[0] < 5
