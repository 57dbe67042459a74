"""Training scripts that are not ours, in `auto`: what went wrong on such scripts before, each on the script itself."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.support.attached import THIRD_PARTY
from tests.support.installed import installed

from oven_bench.foreign.case import Case
from oven_bench.foreign.script_run import DEFAULT, Pair, Task, play_pair

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY] + [pytest.mark.usefixtures("installed")]
__all__ = ["installed"]

SCRIPTS = DEFAULT


def played(script: str, case: Case) -> Pair:
    result = play_pair(Task(script, "test", str(SCRIPTS / f"{script}.py"), case, True))
    assert not result.controlled.error
    assert all(check.matches for check in result.checks), "a receipt says what the optimizer used"
    assert result.controlled.actions.same_place <= 2
    return result


@pytest.mark.parametrize("warmup", [0.0, 0.1])
def test_a_tuned_trainer_is_left_alone_with_and_without_a_warm_up(warmup: float) -> None:
    """Without one the first steps are a twentieth of the weights, which was taken for a rate that is far too high."""
    result = played("clm_trainer", Case("adamw", 2e-3, "linear", warmup, width=32, steps=60))
    assert result.controlled.actions.changes == []
    assert result.controlled.final is not None and result.controlled.final < 4.0, "it learns"


def test_at_ten_times_the_rate_no_run_is_sent_back_again_and_again() -> None:
    """There a rollback came every five ticks, and its cut was refused each time as no change."""
    result = played("clm_trainer", Case("adamw", 2e-2, "linear", 0.0, width=32, steps=60))
    back = [change for change in result.controlled.actions.changes if change.actuator == "run.rollback"]
    assert len(back) <= 2 and max(result.controlled.actions.steps[-1]) == 60


def test_a_loop_that_sets_its_rate_itself_rejects_whole_plans_and_says_how_to_mend_it() -> None:
    """Twice, and then no more is adopted. The receipt had said applied, and no step ever used the new rate."""
    result = played("nanogpt_loop", Case("sgd", 3.0, "cosine", 0.1, width=64, init_std=0.05, seed=101, steps=60))
    reading = result.controlled.actions
    assert reading.changes == []
    rates, rollbacks = reading.not_applied[::2], reading.not_applied[1::2]
    assert 1 <= len(rates) == len(rollbacks) <= 2
    assert all("your loop sets the rate itself" in why and "get_lr(step) * client.lr_scale" in why for why in rates)
    assert all(why.startswith("skipped run.rollback") and "a plan is all or nothing" in why for why in rollbacks)


def test_a_loop_at_a_tenth_of_its_rate_is_raised_and_ends_better() -> None:
    """By README's lines: without the gauges of `connect` no agent could say anything of it."""
    result = played("nanogpt_loop", Case("adamw", 4e-4, "constant", 0.0, width=32, init_std=0.02, seed=101, steps=120))
    changed = result.controlled.actions.changes
    assert changed and all(change.agent == "learning_rate" for change in changed)
    assert result.result.gain is not None and result.result.gain > 0
    assert not {"learning_rate", "divergence", "weight_decay", "best_checkpoint"} & set(
        result.controlled.actions.cannot_fire
    )


def test_grpo_is_held_out_by_its_reward_and_by_no_loss() -> None:
    """Its eval/loss is the KL term, which rises as the policy learns."""
    result = played("grpo_evaluated", Case("adamw", 3e-3, "constant", 0.0, width=32, steps=25))
    assert result.controlled.actions.held_out == [["eval/reward"]]
    assert result.controlled.actions.changes == []


def test_a_second_trainer_is_not_judged_by_the_first_ones_numbers() -> None:
    result = played("two_trainers", Case("adamw", 3e-3, "linear", 0.05, width=32, steps=40))
    assert result.controlled.actions.held_out == [["eval/loss"], ["eval/reward"]]
    assert [steps[-1] for steps in result.controlled.actions.steps] == [20, 20]
    assert result.controlled.actions.changes == []
