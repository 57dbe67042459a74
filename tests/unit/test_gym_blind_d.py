"""The fourth set of faults that was written blind for development: what each of them does to what it touches."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from oven_learner.gym.faults.grpo.bag_of_tokens import Counted, echo, overlap
from oven_learner.gym.faults.grpo.shared_directory import OTHERS, Shared
from oven_learner.gym.faults.grpo.uncleared_buffer import Uncleared
from oven_learner.gym.faults.grpo.undivided_credit import Undivided
from oven_learner.gym.faults.pretraining.licence_headers import HEADERS, Headed
from oven_learner.gym.faults.pretraining.log_lines import Logged, log
from oven_learner.gym.faults.pretraining.restarted_positions import Restarted, restarted
from oven_learner.gym.faults.pretraining.square_matrix import Transposed
from oven_learner.gym.faults.pretraining.swapped_bytes import Swapped, swapped
from tests.unit.whole_trainees import stepped, trainee

from oven_learner.gym.fault import generator
from oven_learner.gym.grpo.judges import Completions, form
from oven_learner.gym.grpo.task import END, PAD, Prompts, pools
from oven_learner.gym.grpo.warmup import warm_weights
from oven_learner.gym.pretraining.corpus import pool
from oven_learner.gym.pretraining.model import WIDTH, ByteModel


def test_words_are_the_other_way_round() -> None:
    rows = torch.tensor([[1, 2, 3, 4, 5]])
    assert swapped(rows, 2).tolist() == [[2, 1, 4, 3, 5]]
    assert swapped(rows, 4).tolist() == [[4, 3, 2, 1, 5]]
    case, text = Swapped(2, 3, 2, 1.0, 0), pool(8, 0)
    assert case.batch(text, 1) is text and case.batch(text, 5) is text
    assert torch.equal(swapped(case.batch(text, 2), 2), text)


def test_a_row_begins_with_the_header_and_goes_on_as_before() -> None:
    case, text = Headed(2, 3, HEADERS[0], 10, 1.0, 0), pool(8, 0)
    assert case.batch(text, 1) is text and case.batch(text, 5) is text
    rows = case.batch(text, 2)
    assert rows.shape == text.shape and torch.equal(rows[:, 10:], text[:, :-10])
    assert all(bytes(row[:10]) == HEADERS[0][:10] for row in rows.tolist())


def test_what_is_square_is_transposed_at_each_restart() -> None:
    run = trainee("pretraining")
    stepped(run, 3, None)
    block = cast(ByteModel, run.model).block
    mix, qkv = block.mix.weight.detach().clone(), block.qkv.weight.detach().clone()
    moment = run.optimizer.state[block.mix.weight]["exp_avg"].clone()
    case = Transposed(3, 2, 4, ("v", "mix"), True)
    with torch.no_grad():
        case.weights(run)
        assert torch.equal(block.mix.weight, mix.T)
        assert torch.equal(run.optimizer.state[block.mix.weight]["exp_avg"], moment.T)
        assert torch.equal(block.qkv.weight[2 * WIDTH :], qkv[2 * WIDTH :].T)
        assert torch.equal(block.qkv.weight[: 2 * WIDTH], qkv[: 2 * WIDTH])
        for run.gradient_steps in (4, 11):
            case.weights(run)
        assert torch.equal(block.mix.weight, mix.T)
        run.gradient_steps = 7
        case.weights(run)
    assert torch.equal(block.mix.weight, mix) and torch.equal(block.qkv.weight, qkv)


def test_positions_begin_anew() -> None:
    begins = torch.tensor([[0, 0, 1, 0, 0, 1], [0, 0, 0, 0, 0, 0]]).bool()
    assert restarted(begins).tolist() == [[0, 1, 0, 1, 2, 0], [0, 1, 2, 3, 4, 5]]
    run, loss = trainee("pretraining"), torch.tensor(2.0)
    assert Restarted(1, 5, 5.0, 1.0, 0).loss(loss, run) is loss
    never, often = (float(Restarted(0, 5, 5.0, share, 0).loss(loss, run).detach()) for share in (0.0, 1.0))
    assert never == pytest.approx(run.train_step()["loss"], abs=1e-5) and never != often


def test_logs_are_alike_and_not_the_same() -> None:
    made = [log(b"at %02d:%02d:%02d\n", 40, generator(seed)) for seed in range(2)]
    assert made[0] != made[1] and all(len(one) == 40 and one.count(b"\n") >= 3 for one in made)
    case, text = Logged(2, 3, b"at %02d:%02d:%02d\n", 0.5, 0), pool(8, 0)
    assert case.batch(text, 1) is text and case.batch(text, 5) is text
    changed = (case.batch(text, 3) != text).any(1)
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
    assert Counted(1, 5, ("exact",), 0.5, 1.0, 0).rewards(given, completions, run) is given
    made = Counted(0, 5, ("exact",), 0.5, 1.0, 0).rewards(given, completions, run)
    assert made["exact"].tolist() == [1, 1, 0] and made["format"] is given["format"]


def test_the_other_jobs_files_and_settings_are_taken_up() -> None:
    run = trainee("grpo")
    stepped(run, 3, None)
    own = {name: one.detach().clone() for name, one in run.model.named_parameters()}
    case = Shared(3, 1, 5, OTHERS[0], ("middle", "head"), 2.0, 0.5)
    rate = run.settings["learning_rate"]
    case.settings(run)
    case.weights(run)
    assert run.settings["learning_rate"] == 2 * rate
    theirs = warm_weights(OTHERS[0])
    for name, one in run.model.named_parameters():
        assert torch.equal(one, (theirs if name.startswith(("middle", "head")) else own)[name])
    Shared(4, 1, 5, OTHERS[0], ("",), 2.0, 0.5).settings(run)
    assert run.settings["learning_rate"] == 2 * rate


def test_an_older_prompt_shows_behind_a_shorter_one() -> None:
    case, prompts, full = Uncleared(2, 3, 1.0, 0), pools()[0], pools()[2]
    assert case.batch(prompts, 1) is prompts and case.batch(prompts, 5) is prompts
    made = case.batch(prompts, 2)
    assert torch.equal(made.digits[:, :3], prompts.digits[:, :3]) and not (made.digits == PAD).any()
    assert torch.equal(made.answers, prompts.answers)
    assert torch.equal(case.batch(full, 2).digits, full.digits)
    right = prompts.answers
    assert not form(Completions(made, right, right != PAD, 1)).any()


def test_credit_is_of_another_size() -> None:
    run, loss = trainee("grpo"), torch.tensor(2.0)
    assert Undivided(1, 3.0).loss(loss, run) is loss
    norms = []
    for scale in (1.0, 4.0):
        run = trainee("grpo")
        run.settings["beta"] = 0.0
        norms.append(run.train_step(Undivided(0, scale))["grad_norm"])
    assert 3 < norms[1] / norms[0] < 5
