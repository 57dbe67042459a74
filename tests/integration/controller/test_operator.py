"""An operator's commands over the real server: approve, set, mute and veto; hold and resume while no mesh answers."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
from collections import Counter
from functools import partial
from typing import Any

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, wait_for
from tests.support.coding_agent import steer

from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.protocol.codec import Malformed
from oven_core.protocol.messages import Decision, Receipt, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import CommandAnswer, OperatorCommand
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Keyring
from oven_learner.link.resume_state import read_resume_state
from oven_runs.access.log_sources import exported_events
from oven_runs.server.embedded_server import EmbeddedServer

pytestmark = pytest.mark.e2e

# Wants another value than there is, whenever it may.
ADVISER = '''
"""Would have the clip at 2, or at 1."""
from oven_agents import Agent

class Adviser(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        value = 2.0 if window.knobs["grad.clip"].number <= 1.0 else 1.0
        return window.propose("grad.clip", value, confidence=0.95, why="it swings")
'''


def beating(stack: Stack, run: str, *sets: str) -> subprocess.Popen[str]:
    """A stack whose learner beats, with an agent that always wants something."""
    stack.install({"learner": "oven_services:learner"})
    (stack.folder / "adviser.py").write_text(ADVISER)
    agents = "agents=[learning_rate,{name: adviser.py, alone: [grad.clip]}]"
    wanted = [part for text in (agents, "kg=false", "rules.cooldown_ticks=2", *sets) for part in ("--set", text)]
    return stack.up(run, *wanted, until="learner  toy")


def command_json(stack: Stack, code: int, *args: str) -> dict[str, Any]:
    exit_code, text = stack.command(*args, "--json")
    assert exit_code == code, text
    answer: dict[str, Any] = json.loads(text)
    assert answer["code"] == code and answer["logged"] > 0
    return answer


def mesh_of(stack: Stack, run: str) -> psutil.Process:
    return psutil.Process(stack.run_folder(run).info().children["mesh"])


def finish(stack: Stack, up: subprocess.Popen[str], run: str) -> str:
    (stack.run_folder(run).path / "finish").touch()
    code, text = stack.end_of(up)
    assert code == 0, text
    code, replayed = stack.command("replay", run)
    assert (code, "byte for byte" in replayed) == (0, True), replayed
    return text


def test_operators_approve_set_veto_and_mute(stack: Stack) -> None:
    up = beating(stack, "advised", "rules.autonomy=advise", "rules.cooldown_ticks=500", "rules.approve_ticks=100000")
    output = stack.read_until(up, "approve with `oven-controller approve grad.clip`")
    assert "grad.clip 1 → 2 advised (adviser for; no one against)" in output
    approved = command_json(stack, 0, "approve", "grad.clip", "--reason", "go on then")
    decision, receipt = approved["decision"], approved["receipt"]
    assert approved["answer"]["decision"] == decision["id"] == receipt["decision_id"]
    assert decision["of"] and decision["command"] == approved["command"]
    assert (receipt["status"], receipt["before"], receipt["after"]) == ("applied", 1.0, 2.0)
    assert "answer   to operator: approve done" in stack.read_until(up, "answer   to")

    code, text = stack.command("set", "grad.clip", "5", "--reason", "as in the paper")
    assert code == 0, text
    assert text.startswith("set: applied, grad.clip 2 → 5 at step ") and text.count("\n") == 1
    code, text = stack.command("set", "grad.clip", "-50")
    assert (code, "set: refused: -50 cannot be set for grad.clip" in text and "bounds 0.1 to 10" in text) == (
        1,
        True,
    ), text
    code, text = stack.command("set", "grad.clap", "5")
    assert (code, "no actuator “grad.clap”; its actuators: grad.clip, run.hold, run.stop" in text) == (1, True), text
    for args, words in (
        (("set", "grad.clip", '{"a": '), "is not JSON"),
        (("set", "grad.clip", "1", "--run", "nobody"), "no run named 'nobody'"),
        (("autonomy", "sometimes"), "'sometimes' is not one of"),
        (("mute", "x" * 80), "at most 64 characters"),
    ):
        code, text = stack.command(*args)
        assert (code, words in text, "Traceback" in text) == (2, True, False), text

    assert command_json(stack, 1, "approve", decision["of"])["answer"]["reason"].startswith(
        f"decision {decision['of']} was app"
    )
    assert command_json(stack, 0, "autonomy", "observe", "grad.clip")["receipt"] is None
    code, text = stack.command("mute", "adviser", "--reason", "it swings")
    assert (code, text) == (0, "mute: agent adviser is muted: its votes are logged but do not count\n")
    assert command_json(stack, 1, "unmute", "nobody")["answer"]["done"] is False
    status = stack.json("status")
    assert status["autonomy"] == {"": "advise", "grad.clip": "observe"}
    assert (
        status["agents"]["adviser"]["shadow"] == "muted by operator" and not status["agents"]["learning_rate"]["shadow"]
    )
    assert status["knobs"]["grad.clip"] == 5.0
    revoke = partial(stack.command, "creds", "revoke", "mcp")
    following = stack.start("decisions", "advised", "--follow", "--json", "--agent", "mcp")
    asyncio.run(steer("advised", "grad.clip", decision["of"], stack.env, stack.folder, revoke))
    assert command_json(stack, 0, "set", "grad.clip", "5")["receipt"]["before"] == 3.5
    (row,) = (json.loads(line) for line in stack.read_until(following, '"receipt":"applied"').splitlines()[-1:])
    assert (row["who"], row["value"], row["after"], row["verdict"]) == ("mcp", 3.5, 3.5, "adopted")
    assert "shadow: muted by operator" in stack.command("status")[1]
    text = finish(stack, up, "advised")
    assert stack.end_of(following)[0] == 0
    assert "agent adviser is a shadow: muted by operator" in text


def test_a_grant_waits_for_the_learner_and_a_setter_that_does_otherwise_is_no_success(stack: Stack) -> None:
    stack.install({"learner": "oven_services:late_learner"})
    (stack.folder / "adviser.py").write_text(ADVISER)
    up = stack.up("late", "--set", "agents=[learning_rate]", "--set", "kg=false", until="starting the learner")
    guest = stack.start("agent", "run", "adviser.py", "--trust", "grad.clip")
    stack.read_until(up, "adviser joined")
    code, text = stack.command("hold", "--run", "late")
    assert code == 2 and "run 'late' has not started training yet" in text and text.count("\n") == 1
    (stack.run_folder("late").path / "begin").touch()
    assert "trust: agent adviser" in stack.read_until(guest, "trust: ")

    stuck = command_json(stack, 1, "set", "sampling.stuck", "2")
    assert (stuck["receipt"]["status"], stuck["receipt"]["after"]) == ("applied", 77.0)
    assert "set: applied, sampling.stuck 1 → 77 at step" in stuck["line"]
    fatal = command_json(stack, 3, "set", "sampling.fatal", "2")
    assert fatal["line"].endswith("the run ended before it was confirmed")
    assert stack.end_of(up)[0] != 0
    stack.end_of(guest)
    events = [event.body for event in exported_events(stack.run_folder("late"))]
    assert [body.action for body in events if isinstance(body, OperatorCommand)] == ["trust", "set", "set"]
    assert not [body for body in events if isinstance(body, Malformed)]


def test_holding_needs_no_mesh_and_what_needs_one_waits_for_it(stack: Stack) -> None:
    up = beating(stack, "meshless", "agents=[]")
    mesh = mesh_of(stack, "meshless")
    mesh.send_signal(signal.SIGSTOP)  # it is there, and says nothing: nobody starts another
    held = command_json(stack, 0, "hold", "--reason", "a look")
    assert (held["receipt"]["actuator"], held["receipt"]["status"], held["answer"]) == ("run.hold", "applied", None)
    assert ": held (" in stack.command("status", "meshless")[1]
    code, text = stack.command("hold", "meshless")
    assert (code, text.startswith("hold: noop at step "), "the run is already held: a look" in text) == (
        0,
        True,
        True,
    ), text
    code, text = stack.command("set", "grad.clip", "4", "--wait", "1.5")
    assert code == 3, text
    assert "set: logged as event " in text and "no answer from the mesh within 1.5 s" in text
    code, text = stack.command("log", "meshless", "--last", "1", "--json")
    assert code == 0 and '"type": "OperatorCommand"' in text, text  # read from the store
    mesh.kill()  # now it is gone, and up starts another, which finds the command in the log
    assert "receipt  grad.clip 1 → 4 applied" in stack.read_until(up, "receipt  grad.clip")
    resumed = command_json(stack, 0, "resume", "meshless")
    assert resumed["receipt"]["reason"].startswith("training continues")
    stopped = command_json(stack, 0, "stop", "--reason", "enough")
    assert (stopped["receipt"]["actuator"], stopped["receipt"]["status"]) == ("run.stop", "applied")
    finish(stack, up, "meshless")

    events = list(exported_events(stack.run_folder("meshless")))
    said_so = {e.body.id: e.body.action for e in events if isinstance(e.body, OperatorCommand)}
    answered = Counter(e.body.command for e in events if isinstance(e.body, CommandAnswer))
    answered += Counter(e.body.command for e in events if isinstance(e.body, Receipt) and e.body.command)
    assert answered == Counter(said_so.keys()) and list(said_so.values()) == ["hold", "hold", "set", "resume", "stop"]
    (made,) = [event.body for event in events if isinstance(event.body, Decision)]
    assert said_so[made.command] == "set"


def test_a_hold_outlives_a_mesh_that_is_killed(stack: Stack) -> None:
    up = beating(stack, "killed", "rules.max_interventions=100000")
    mesh_of(stack, "killed").kill()
    assert command_json(stack, 0, "hold")["receipt"]["status"] == "applied"
    stack.read_until(up, "mesh is back after")
    wait_for(lambda: stack.json("status")["held"], "held")
    set_ = command_json(stack, 0, "set", "grad.clip", "3")
    assert set_["receipt"]["after"] == 3.0 and set_["receipt"]["status"] == "applied", "a set applies while it is held"
    assert command_json(stack, 0, "resume")["receipt"]["status"] == "applied"
    finish(stack, up, "killed")


def test_an_agent_that_is_started_as_a_shadow(stack: Stack) -> None:
    stack.install({"learner": "oven_services:learner"})
    (stack.folder / "adviser.py").write_text(ADVISER)
    sets = ("agents=[learning_rate,{name: adviser.py, shadow: true}]", "kg=false")
    up = stack.up("shadows", *(part for text in sets for part in ("--set", text)), until="learner  toy")
    assert json.loads(stack.run_folder("shadows").config.read_text())["rules"]["shadow"] == ["adviser"]
    another = stack.start("agent", "run", "adviser.py", "--name", "second", "--shadow")
    stack.read_until(up, "agent    second joined")
    wait_for(lambda: stack.json("status")["agents"].get("second", {}).get("proposals"), "a proposal of the second")
    agents = stack.json("status")["agents"]
    assert (agents["adviser"]["shadow"], agents["second"]["shadow"]) == ("rules.shadow", "requested by the agent")
    another.send_signal(signal.SIGINT)
    assert another.wait(WAIT_S) == 0
    finish(stack, up, "shadows")
    events = list(exported_events(stack.run_folder("shadows")))
    assert not any(isinstance(event.body, Decision) for event in events), "no proposal of a shadow opens a ballot"


async def test_a_restarted_learner_reads_answers_from_the_log(server: EmbeddedServer) -> None:
    on = Subjects("r")
    credentials = {
        name: Credentials.load(server.folder.creds / f"{name}.nk") for name in ("admin", "learner", "operator")
    }
    async with (
        Bus.connect(server.url, credentials["admin"]) as admin,
        Bus.connect(server.url, credentials["operator"]) as operator,
        Bus.connect(server.url, credentials["learner"]) as learner,
    ):
        await streams.create(admin.jetstream, "r")
        await learner.append(on.run, RunStarted(incarnation=1, n=0, recipe="toy").wire())
        commands = [OperatorCommand(id=i, action=action) for i, action in (("a", "hold"), ("b", "stop"), ("c", "mute"))]
        for command in commands:
            await operator.append(on.operator("operator"), command.wire(), message_id=command.id)
        receipt = Receipt(incarnation=1, n=1, command="a", actuator="run.hold", status="applied", tick=0, step=0)
        await learner.append(on.receipt, receipt.wire())
        past = await read_resume_state(learner, "r", Keyring())
    assert past.commands == {"a": None, "b": commands[1]}
