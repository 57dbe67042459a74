"""Who is charged with clear harm, for which metric, and how much."""

from __future__ import annotations

import pytest
from tests.support.mesh_log import LR, Log
from tests.support.trust_log import charges, quiet, run

from oven_core.protocol.messages import MetricSpec


def test_clear_harm_is_charged_to_its_carriers_even_if_confounded() -> None:
    log = run("eve", "eva", newcomers="full")
    log.propose("eve", 10.0, confidence=1.0, target="loss", horizon=20)
    log.propose("eva", 10.0, confidence=1.0, target="loss", horizon=20)
    quiet(log, "lr")
    log.receipt(log.last)
    log.tick(3, loss=5.0)
    log.propose("lr", 0.5, actuator="grad.clip", confidence=0.9)  # another's change cuts the window short
    log.tick(3, loss=5.0)
    [charge] = charges(log)
    assert {line.agent for line in charge.lines} == {"eve", "eva"} and charge.gain == -4.0
    held = log.mesh.state.reputations
    assert held["eve"] < 0.5 and held.get("lr", 1.0) >= 1.0


CHOICE = (
    MetricSpec(name="loss", better="down"),
    MetricSpec(name="calm", better="up"),
    MetricSpec(name="eval/loss", better="down", held_out=True),
)
MIXTURE = {"web": 0.3, "code": 0.4, "math": 0.3}


def change(
    log: Log, agent: str, value: float, target: str, actuator: str = LR, supporter: str = "", calm: float = 1.0
) -> None:
    log.propose(agent, value, actuator=actuator, confidence=0.9, target=target, expected_change=0.1, horizon=20)
    if supporter:
        log.vote(supporter, "for", actuator=actuator, confidence=0.9)
    log.tick(3, loss=1.0, calm=calm)
    log.receipt(log.last)


def two_deciders(**metrics: float) -> Log:
    """`lr` decides alone on the rate, and `eve` on grad.clip."""
    log = run("eve", alone={"lr": (LR,), "eve": ("grad.clip",)}, metrics=CHOICE)
    log.tick(9, loss=1.0, calm=1.0, **metrics)
    return log


def mix(log: Log) -> None:
    """An operator sets a new mixture, which moves the loss and `calm` by construction."""
    log.operator("c1", "set", actuator="data.mixture", value=MIXTURE)
    log.receipt(log.last)


def test_the_author_of_harm_is_charged_more_than_an_honest_agent_whose_metric_it_hurts() -> None:
    log = two_deciders()
    change(log, "lr", 0.9, "loss")
    log.tick(14, loss=1.0, calm=1.0)
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(25, loss=5.0, calm=2.0)
    [charge] = charges(log)
    assert {line.agent: line.merit for line in charge.lines} == {"lr": -0.5, "eve": -1.0}
    [failed] = [outcome for outcome in log.outcomes if outcome.actuator == "grad.clip"]
    assert failed.scored and failed.beat == 0 and "clear harm to loss" in failed.reason
    held = log.mesh.state.reputations
    assert held["eve"] < 0.3 < held["lr"]


def test_harm_to_a_metric_that_only_the_repairing_agent_names_is_charged_to_its_author() -> None:
    log = two_deciders()
    change(log, "eve", 1.5, "loss", "grad.clip")
    log.tick(6, loss=1.0, calm=0.1)
    assert not charges(log), "no change in force named calm"
    change(log, "lr", 0.5, "calm", calm=0.1)
    log.tick(10, loss=1.0, calm=0.1)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == ["eve"]
    assert log.mesh.state.reputations.get("lr", 1.0) >= 0.7, "only the outcome of its own change counts"


@pytest.mark.parametrize("plan", [(), ("run.rollback", "grad.clip")])
def test_a_change_in_one_plan_with_a_rollback_does_not_answer_for_what_others_named(plan: tuple[str, ...]) -> None:
    log = two_deciders()
    change(log, "lr", 0.9, "loss")
    log.operator("c1", "trust", agent="eve", actuators=("run.rollback",))
    log.propose("eve", 1.5, "grad.clip", 0.9, target="calm", horizon=20, plan=plan)
    if plan:
        log.propose("eve", 10.0, "run.rollback", 0.9, target="calm", horizon=20, plan=plan)
    log.tick(3, loss=1.0, calm=1.0)
    for flight in list(log.mesh.state.in_flight.values()):
        log.receipt(flight.decision)
    log.tick(9, loss=5.0, calm=1.0)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == (["lr"] if plan else ["eve", "lr"])


def test_a_change_is_charged_once_for_harm_to_several_metrics() -> None:
    log = two_deciders(**{"eval/loss": 1.0})
    change(log, "eve", 1.5, "calm", "grad.clip")
    change(log, "lr", 0.9, "loss")
    log.tick(9, loss=5.0, calm=0.1, **{"eval/loss": 5.0})
    assert sorted(line.agent for charge in charges(log) for line in charge.lines) == ["eve", "lr"]


def test_a_vote_for_harm_is_charged_by_half() -> None:
    log = run("eve", alone={"lr": (LR,), "eve": ("grad.clip",)})
    change(log, "lr", 2.0, "loss", supporter="eve")
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    assert {line.agent: (line.stance, line.merit) for line in charge.lines} == {"lr": ("propose", -1.0)}
    log = run("eve", alone={"lr": (LR,), "eve": (LR,)})
    change(log, "lr", 2.0, "loss", supporter="eve")
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    expected = {"lr": ("propose", -1.0), "eve": ("for", -0.5)}
    assert {line.agent: (line.stance, line.merit) for line in charge.lines} == expected


def test_a_change_that_moves_its_own_metric_is_not_charged_for_it_and_no_other_agent_is() -> None:
    """A harder mixture lowers the reward by construction; its held-out metric still answers for it."""
    log = run("eve", alone={"lr": (LR,), "eve": ("data.mixture",)}, metrics=CHOICE)
    log.tick(20, loss=1.0, calm=1.0, **{"eval/loss": 1.0})
    change(log, "lr", 0.9, "loss")
    log.propose("eve", MIXTURE, actuator="data.mixture", confidence=0.9, target="eval/loss", horizon=20)
    log.tick(3, loss=1.0)
    log.receipt(log.last)
    log.tick(10, loss=2.0, **{"eval/loss": 1.0})
    assert not charges(log)
    log.tick(4, loss=2.0, **{"eval/loss": 5.0})
    [charge] = charges(log)
    assert charge.target == "eval/loss" and {line.agent for line in charge.lines} == {"lr", "eve"}


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_new_mixture_ends_the_comparison_of_the_loss_for_other_changes(by_operator: bool) -> None:
    log = run("eve", alone={"lr": (LR,), "eve": ("data.mixture",)}, metrics=CHOICE)
    log.tick(20, loss=1.0, **{"eval/loss": 1.0})
    change(log, "lr", 0.9, "loss")
    if by_operator:
        log.operator("c1", "set", actuator="data.mixture", value=MIXTURE)
    else:
        log.propose("eve", MIXTURE, actuator="data.mixture", confidence=0.9, target="eval/loss", horizon=20)
    log.tick(3, loss=1.0)
    log.receipt(log.last)
    log.tick(30, loss=2.0, **{"eval/loss": 1.0})
    [outcome] = [outcome for outcome in log.outcomes if outcome.actuator == LR]
    assert not outcome.scored and "confounded by data.mixture" in outcome.reason
    assert not charges(log)


def test_harm_to_the_loss_is_charged_although_no_change_named_it_and_ends_a_sole_quorum() -> None:
    log = two_deciders()
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(6, loss=5.0, calm=2.0)
    [charge] = charges(log)
    assert charge.target == "loss" and {line.agent: line.merit for line in charge.lines} == {"eve": -1.0}
    log.tick(6, loss=5.0)
    log.propose("eve", 3.0, actuator="grad.clip", confidence=1.0)
    quiet(log, "lr")
    log.tick(6, loss=5.0)
    assert log.verdict == "rejected" and "two independent kinds required" in log.last.reason
    log.operator("c1", "trust", agent="eve", actuators=("grad.clip",))
    assert not log.mesh.state.trust.decides_alone("eve", "grad.clip")
    log.operator("c2", "trust", agent="eve", actuators=("grad.clip",), alone=True)
    assert log.mesh.state.trust.decides_alone("eve", "grad.clip")


def test_a_new_mixture_is_not_charged_to_changes_that_are_first_compared_after_it() -> None:
    log = two_deciders()
    change(log, "eve", 1.5, "loss", "grad.clip")
    log.tick(4, loss=1.0, calm=1.0)
    mix(log)
    log.tick(6, loss=1.0, calm=0.1)
    change(log, "lr", 0.5, "calm", calm=0.1)
    log.tick(10, loss=1.0, calm=0.1)
    assert not charges(log)


def test_levels_from_before_a_new_mixture_are_not_healthy_levels_of_later_changes() -> None:
    log = two_deciders()
    log.propose("eve", 1.5, actuator="grad.clip", confidence=0.9, target="calm", horizon=20)
    log.tick(3, loss=1.0, calm=1.0)
    adopted = log.last
    mix(log)
    log.receipt(adopted)
    log.tick(10, loss=2.0, calm=0.1)
    assert not charges(log)


def test_a_rollback_to_before_a_new_mixture_does_not_restore_the_healthy_level() -> None:
    log = two_deciders()
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(4, loss=1.0, calm=1.0)
    mix(log)
    log.tick(3, loss=1.0, calm=0.1)
    log.operator("c2", "set", actuator="run.rollback", value=log.mesh.state.tick - 6)
    log.receipt(log.last, after=log.step - 6)
    log.tick(10, loss=1.0, calm=0.1)
    assert not charges(log)


def test_a_change_is_no_longer_in_force_after_two_horizons() -> None:
    log = two_deciders()
    change(log, "eve", 1.5, "calm", "grad.clip")
    log.tick(30, loss=1.0, calm=1.0)
    change(log, "lr", 0.9, "loss")
    log.tick(9, loss=1.0, calm=1.0)
    log.tick(6, loss=5.0, calm=1.0)
    [charge] = charges(log)
    assert [line.agent for line in charge.lines] == ["lr"]


def test_a_remedy_is_not_charged_for_an_earlier_fall() -> None:
    log = run("bob")
    for loss in (1.5, 2.0, 2.5, 3.0):
        log.tick(1, loss=loss)
    log.propose("lr", 0.5, confidence=0.9, target="loss", horizon=20)
    quiet(log, "bob")
    log.receipt(log.last)
    log.tick(10, loss=4.0)
    assert not charges(log)


def test_an_agent_that_vetoes_answers_for_the_consequences() -> None:
    log = run("eve", newcomers="full")
    log.propose("lr", 0.5, confidence=0.9, target="loss", horizon=20)
    log.vote("eve", "against", confidence=1.0)
    assert log.verdict == "rejected"
    log.tick(6, loss=5.0)
    [charge] = charges(log)
    assert [(line.agent, line.stance) for line in charge.lines] == [("eve", "against")]
