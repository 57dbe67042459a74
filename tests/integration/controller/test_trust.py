"""Trust on a real stack: granted by the command that starts an agent, by the settings, and taken back."""

from __future__ import annotations

import json

import pytest
from tests.integration.conftest import Stack, wait_for

CUTS = '''
"""Wants half the rate whenever it may."""
from oven_agents import Agent


class Cuts(Agent):
    moves = ("optimizer.lr_scale",)

    def vote(self, window):
        knob = window.knobs["optimizer.lr_scale"]
        why = f"it asks at tick {window.tick}"
        return window.propose(knob.spec.name, knob.bounded(knob.number / 2), confidence=0.9, why=why)
'''


def decided(stack: Stack, verdict: str) -> str:
    """What the log says of the first decision with this verdict, once it is there."""
    reasons: list[str] = []

    def there() -> bool:
        lines = stack.command("log", "r", "--json")[1].splitlines()
        bodies = [json.loads(line)["data"] for line in lines if '"type":"Decision"' in line.replace(" ", "")]
        reasons[:] = [body["reason"] for body in bodies if body["verdict"] == verdict]
        return bool(reasons)

    wait_for(there, f"a decision is {verdict}")
    return reasons[0]


def cuts(stack: Stack) -> str:
    (stack.folder / "cuts.py").write_text(CUTS)
    return "cuts.py"


@pytest.mark.e2e
def test_a_newcomers_proposal_waits_for_an_operator_who_may_trust_it(stack: Stack) -> None:
    up = stack.up("r", "--set", "recipe_options.mode=wait", until="step   12/12")
    guest = stack.start("agent", "run", cuts(stack))
    advice = decided(stack, "advised")
    assert "only untrusted agents propose it (cuts): run `oven-controller trust cuts optimizer.lr_scale`" in advice
    assert stack.json("status", "r")["agents"]["cuts"]["newcomer"] is True
    code, output = stack.command("trust", "cuts", "optimizer.lr_scale")
    assert (code, output.splitlines()[-1][:38]) == (0, "trust: agent cuts is trusted with opti"), output
    code, output = stack.command("distrust", "cuts")
    assert code == 0 and "is on probation with all actuators" in output
    code, output = stack.command("trust", "ghost")
    assert code == 1 and "no agent “ghost” has joined this run" in output and "start it before you trust it" in output
    sure = stack.start("agent", "run", "cuts.py", "--name", "sure", "--trust", "optimizer.lr_scale", "--alone")
    answer = stack.read_until(sure, "is trusted with")
    assert "agent sure is trusted with optimizer.lr_scale" in answer and "needs no second kind of evidence" in answer
    assert stack.command("down", "r")[0] == 0
    assert [stack.end_of(process)[0] for process in (guest, sure, up)] == [0, 0, 0]


@pytest.mark.e2e
def test_the_settings_grant_an_agent_and_refuse_a_grant_to_nobody(stack: Stack) -> None:
    config = stack.folder / "oven.yaml"
    config.write_text(f"agents: [{{name: {cuts(stack)}, alone: [optimizer.lr_scale]}}]\n")
    stack.up("r", "--config", str(config), "--set", "recipe_options.mode=wait", until="step   12/12")
    assert "may decide alone" in decided(stack, "adopted")
    assert stack.command("down", "r")[0] == 0
    config.write_text("rules: {trusted: {ghost: [optimizer.lr_scale]}}\n")
    code, output = stack.command("up", "--recipe", "toy", "--dry-run", "--config", str(config))
    assert code == 2 and "rules.trusted names 'ghost', which is not an agent of this run; add it to `agents`" in output
