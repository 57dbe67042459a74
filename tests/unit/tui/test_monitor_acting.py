"""Keys that act: none does without --control, and what a knob's page and its question say."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.mesh_log import LR
from tests.support.monitor_log import recorded
from tests.unit.tui.test_monitor_keys import EVENTS, monitor, screen_text
from tests.unit.tui.test_monitor_view import fold

from oven_core.mesh.actuator_values import Fault, check_bounds, coerce
from oven_core.mesh.state_machine import Mesh
from oven_core.protocol.messages import ActuatorSpec
from oven_core.protocol.operator_messages import OperatorCommand
from oven_tui.acting_app import READ_ONLY_MESSAGE
from oven_tui.model import consequences
from oven_tui.model.commands import COMMANDS
from oven_tui.model.knob_edit import KnobEdit
from oven_tui.model.mesh_state import MeshState

LOG = ActuatorSpec(name="a", kind="scalar", scale="log", low=0.01, high=100, value=1.0)
LINEAR = ActuatorSpec(name="b", kind="scalar", low=-1, high=3, value=0.0)
OPEN = ActuatorSpec(name="c", kind="scalar", value=2.0)
MIXED = ActuatorSpec(name="d", kind="simplex", choices=("x", "y", "z"), low=0, high=1, value={"x": 1, "y": 0, "z": 0})
FLOORED = MIXED.model_copy(update={"low": 0.1, "value": {"x": 0.7, "y": 0.2, "z": 0.1}})
NAMED = ActuatorSpec(name="e", kind="choice", choices=("small", "large"), value="small")


async def test_without_control_no_key_acts_and_each_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    async with monitor(EVENTS) as (app, pilot):
        notices: list[str] = []
        monkeypatch.setattr(app, "notify", lambda words, **_: notices.append(words))
        acting = [command for command in COMMANDS if command.acts_on_run]
        for command in acting:
            await pilot.press(command.key_names()[0])
            assert len(app.screen_stack) == 1, command
        assert notices == [READ_ONLY_MESSAGE] * len(acting)
        assert "Approve" not in screen_text(app).splitlines()[-1]


@given(
    st.sampled_from((LOG, LINEAR, OPEN, MIXED, FLOORED, NAMED)), st.lists(st.integers(-30, 30), max_size=12), st.data()
)
def test_steps_stay_within_the_bounds_and_change_something(
    spec: ActuatorSpec, steps: list[int], data: st.DataObject
) -> None:
    edit = KnobEdit(spec, spec.value)
    for by in steps:
        if data.draw(st.booleans()):
            edit.pick(1)
        edit.move(by)
        value = coerce(spec, edit.value)
        assert not isinstance(value, Fault) and check_bounds(spec, value) is None


def test_typed_values_are_used_and_faults_are_explained() -> None:
    edit = KnobEdit(LOG, 1.0)
    assert all(map(edit.type_character, "2e1")) and edit.value == 20.0
    assert not edit.type_character("h") and not edit.type_character("enter")
    edit.type_character("-")
    with pytest.raises(ValueError, match="is not a number"):
        _ = edit.value
    edit.erase()
    edit.move(1)
    assert edit.value == 22.4 and not edit.typed_text
    mixed = KnobEdit(MIXED, {"x": 0.5, "y": 0.25, "z": 0.25})
    mixed.type_character("2")
    with pytest.raises(ValueError, match="between 0 and 1"):
        _ = mixed.value
    mixed.erase()
    for character in "0.8":
        mixed.type_character(character)
    assert mixed.value == pytest.approx({"x": 0.8, "y": 0.1, "z": 0.1})


def test_the_state_that_answers_a_preview_is_the_meshs() -> None:
    """Event by event, against the mesh that decided the run."""
    mesh, seen = Mesh("r"), MeshState()
    for event in recorded():
        mesh.step(event)
        seen.feed(event)
        for field in ("tick", "specs", "effective", "autonomy", "muted", "advised", "interventions", "cooldown_starts"):
            if not mesh.pending:  # what it has computed and not read back stands in its state already
                assert getattr(seen.state, field) == getattr(mesh.state, field), (event.seq, field)
    for value in (0.5, 4.0, 200.0, "warm"):
        command = OperatorCommand(id=f"c{value}", action="set", actuator=LR, value=value)
        before = dict(seen.state.advised)
        reply = seen.reply(command)
        assert reply is not None and reply.done == isinstance(coerce(seen.state.specs[LR], value), float) & (
            value in (0.5, 4.0)
        )
        assert seen.state.advised == before
    ruling = seen.ruling(LR, 4.0)
    assert ruling is not None and ruling.note.startswith("no change: from 4 to 4")
    assert seen.ruling(LR, 1e9) is None


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"action": "hold"}, "Training pauses after step 138 of 240"),
        ({"action": "stop"}, "138 of 240, with 102 steps left. A trainer saves a checkpoint first; your own loop"),
        (
            {"action": "set", "actuator": LR, "value": 2.0},
            "optimizer.lr_scale 4 → 2 (× 0.5) at the end of",
        ),
        ({"action": "set", "actuator": "run.rollback", "value": 60.0}, "from step 138"),
        ({"action": "set", "actuator": "run.undo_rollback"}, "The run returns to step"),
        ({"action": "veto", "of": LR}, "1 of 3 have voted"),
        ({"action": "mute", "agent": "lr"}, "votes of lr (2 proposals so far, 2 adopted decisions) are logged"),
        ({"action": "autonomy", "actuator": LR, "autonomy": "advise"}, "wait for approval"),
        ({"action": "approve", "of": "nothing"}, "is no longer in the monitor's list"),
    ],
)
def test_a_question_names_the_consequence_with_its_numbers(fields: dict[str, Any], words: str) -> None:
    text = consequences.describe_command(fold(recorded()), OperatorCommand(id="c", **fields))
    assert words in text, text
