"""Knobs: set, read back, and say what really happened."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_core.errors import ConfigError, UnknownNameError
from oven_learner.actuators import Actuators


class Trainer:
    def __init__(self) -> None:
        self.beta = 0.1
        self.mixture = {"easy": 0.5, "hard": 0.5}
        self.mode = "on"


def knobs(trainer: Trainer) -> Actuators:
    actuators = Actuators()
    actuators.scalar("beta", lambda: trainer.beta, lambda v: setattr(trainer, "beta", v), low=0.01, high=1, scale="log")
    actuators.simplex("mixture", lambda: trainer.mixture, lambda v: setattr(trainer, "mixture", v))
    actuators.choice("mode", lambda: trainer.mode, lambda v: setattr(trainer, "mode", v), ("on", "off"))
    return actuators


def test_a_change_is_applied_and_read_back() -> None:
    trainer = Trainer()
    applied = knobs(trainer).apply("beta", 0.2)
    assert (applied.status, applied.before, applied.after) == ("applied", 0.1, 0.2)
    assert trainer.beta == 0.2


def test_the_same_value_is_a_noop() -> None:
    assert knobs(Trainer()).apply("beta", 0.1).status == "noop"


def test_a_trainer_that_keeps_its_old_value_is_reported() -> None:
    actuators = Actuators()
    actuators.scalar("deaf", lambda: 0.5, lambda v: None, low=0, high=1)
    applied = actuators.apply("deaf", 0.7)
    assert applied.status == "rejected" and "kept" in applied.reason


def test_a_trainer_that_raises_is_a_rejection_with_its_text() -> None:
    def refuse(value: float) -> None:
        raise RuntimeError("not while generating")

    actuators = Actuators()
    actuators.scalar("busy", lambda: 0.5, refuse, low=0, high=1)
    assert "not while generating" in actuators.apply("busy", 0.7).reason


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("beta", 2.0, "outside the bounds"),
        ("beta", float("nan"), "not a finite number"),
        ("beta", "high", "not a finite number"),
        ("mode", "maybe", "not one of on, off"),
        ("mixture", {"easy": 1.0}, "exactly the components easy, hard"),
        ("mixture", {"easy": 0.9, "hard": 0.9}, "sum to 1"),
        ("gamma", 1.0, "no actuator 'gamma'"),
    ],
)
def test_an_invalid_value_is_rejected_and_changes_nothing(name: str, value: object, says: str) -> None:
    trainer = Trainer()
    applied = knobs(trainer).apply(name, value)  # type: ignore[arg-type]
    assert applied.status == "rejected" and says in applied.reason
    assert (trainer.beta, trainer.mode) == (0.1, "on")


def test_the_receipt_of_an_action_has_its_result() -> None:
    actuators = Actuators()
    actuators.action("run.rollback", lambda tick: (9.0, tick))
    applied = actuators.apply("run.rollback", 4.0)
    assert (applied.status, applied.before, applied.after) == ("applied", 9.0, 4.0)


def test_registering_twice_or_out_of_bounds_is_an_error_at_start_up() -> None:
    actuators = knobs(Trainer())
    with pytest.raises(ConfigError, match="already registered"):
        actuators.choice("mode", lambda: "on", lambda v: None, ("on",))
    with pytest.raises(ConfigError, match="outside its bounds"):
        actuators.scalar("far", lambda: 5.0, lambda v: None, low=0, high=1)
    with pytest.raises(UnknownNameError, match="beta"):
        actuators.read("bet")


@given(st.floats(0.01, 1.0))
def test_every_value_within_the_bounds_is_applied(value: float) -> None:
    trainer = Trainer()
    assert knobs(trainer).apply("beta", value).status in ("applied", "noop")
    assert trainer.beta == pytest.approx(value, rel=1e-5)


def test_an_unknown_name_error_survives_pickling() -> None:
    error = UnknownNameError("actuator", "rat", {"rate": 1})
    again = pickle.loads(pickle.dumps(error))
    assert isinstance(again, UnknownNameError) and (str(again), again.name) == (str(error), "rat")
