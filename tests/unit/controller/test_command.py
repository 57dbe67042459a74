"""What an operator types, and what the command line makes of what the log says."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_controller.cli.operator import parse_value
from oven_core.protocol.messages import Decision, Message, Receipt, RunEnded
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_runs.log.command_result import CommandResult


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.5", 0.5),
        ("-3", -3),
        ("1e-4", 1e-4),
        ("b", "b"),
        ("large model", "large model"),
        ('"8"', "8"),
        ("true", "true"),
        ("null", "null"),
        ("7b-instruct", "7b-instruct"),
        ('{"easy": 0.5, "hard": 0.5}', {"easy": 0.5, "hard": 0.5}),
        (None, None),
    ],
)
def test_values_as_a_person_writes_them(text: str | None, value: Any) -> None:
    assert parse_value(text) == value


@given(st.one_of(st.floats(allow_nan=False), st.text(), st.dictionaries(st.text(), st.floats(0, 1))))
def test_json_comes_back_as_it_is(value: Any) -> None:
    assert parse_value(json.dumps(value)) == value


def result(action: Any, *messages: Message) -> CommandResult:
    outcome = CommandResult("r", OperatorCommand(id="c", action=action), "within 5 s", logged_seq=7)
    for body in messages:
        outcome.feed(body)  # type: ignore[arg-type]
    return outcome


def answer(done: bool = True, reason: str = "set a to 2", **more: Any) -> CommandAnswer:
    fields = {"command": "c", "operator": "operator", "action": "set", "done": done, "reason": reason, "tick": 1}
    return CommandAnswer.model_validate(fields | more)


def decision(**more: Any) -> Decision:
    fields = {"id": "d", "ballot": "", "actuator": "a", "verdict": "adopted", "value": 2.0, "reason": "", "tally": ()}
    fields |= {"tick": 1, "apply_at_tick": 2, "expires_at_tick": 9, "command": "c"}
    return Decision.model_validate(fields | more)


def receipt(status: str = "applied", **more: Any) -> Receipt:
    fields = {"incarnation": 1, "n": 1, "actuator": "a", "status": status, "before": 1.0, "after": 2.0}
    return Receipt.model_validate(fields | {"tick": 2, "step": 3, "decision_id": "d"} | more)


OTHERS = (
    answer(command="x"),
    decision(id="e", command="x"),
    decision(id="f", command=""),
    receipt(decision_id="e"),
    receipt(decision_id="", command="x"),
)


@given(st.permutations([answer(decision="d"), decision(), receipt(), *OTHERS]))
def test_a_set_is_done_after_its_receipt_in_any_order_of_messages(messages: list[Message]) -> None:
    outcome = result("set", *messages)
    assert (outcome.is_final, outcome.code) == (True, 0)
    assert outcome.line() == "set: applied, a 1 → 2 at step 3"
    assert outcome.fields()["receipt"]["decision_id"] == "d"


@pytest.mark.parametrize(
    ("action", "messages", "code", "line"),
    [
        ("hold", [receipt(decision_id="", command="c", reason="a look")], 0, "hold: applied at step 3: a look"),
        (
            "stop",
            [receipt("expired", decision_id="", command="c", reason="too late")],
            1,
            "stop: expired at step 3: too",
        ),
        (
            "hold",
            [],
            3,
            "hold: logged as event 7 of r; no receipt from the learner within 5 s: it comes at the end of a",
        ),
        (
            "mute",
            [],
            3,
            "mute: logged as event 7 of r; no answer from the mesh within 5 s: a mesh acts on it as soon as it runs",
        ),
        ("set", [answer(False, "1 > 0.5")], 1, "set: refused: 1 > 0.5"),
        ("set", [answer(decision="d"), decision()], 3, "set: logged as event 7 of r and decided as d; no receipt from"),
        (
            "approve",
            [answer(decision="d"), decision(), receipt("rejected", reason="kept")],
            1,
            "approve: rejected, a 1 → 2",
        ),
        (
            "set",
            [answer(decision="d"), decision(), receipt(after=77.0, reason="the trainer took another value")],
            1,
            "set: applied, a 1 → 77 at step 3: the trainer took another value",
        ),
        ("set", [answer(decision="d"), decision(), receipt(after=float("nan"))], 1, "set: applied, a 1 → nan"),
        (
            "set",
            [answer(decision="d"), decision(), RunEnded(incarnation=1, n=9, reason="failed", tick=3, step=3)],
            3,
            "set: logged as event 7 of r; the run ended before it was confirmed",
        ),
        (
            "set",
            [answer(decision="d", reason="set a to 2, although b is in flight"), decision(), receipt("noop")],
            0,
            "set: noop, a 1 → 2 at step 3 (set a to 2, although b is in flight)",
        ),
    ],
)
def test_exit_codes_and_lines(action: str, messages: list[Message], code: int, line: str) -> None:
    outcome = result(action, *messages)
    assert (outcome.code, outcome.fields()["code"]) == (code, code)
    assert outcome.line().startswith(line) and "\n" not in outcome.line()
