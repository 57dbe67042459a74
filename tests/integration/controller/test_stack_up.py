"""`up` with the real server, mesh and agents; the learner is a stand-in."""

from __future__ import annotations

import json
import signal
import sys

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family

pytestmark = pytest.mark.e2e


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ([], "the script did not connect"),
        (["--tap"], "nothing was observed, because the script called no logger that --tap knows"),
        (["--auto-attach"], "nothing was attached, because the script used no trainer that --auto-attach knows"),
    ],
)
def test_a_script_that_is_not_watched_is_told_why_in_one_line(stack: Stack, flags: list[str], reason: str) -> None:
    code, output = stack.command("run", *flags, "--", sys.executable, "-c", "print('trained')")
    assert code == 0 and "trained" in output and reason in output.splitlines()[-1], output
    assert "left: asked to stop" not in output


def test_a_run_from_start_to_end(stack: Stack) -> None:
    code, output = stack.command("up", "--headless", "--recipe", "toy", "--run", "one", "--steps", "12", "--seed", "1")
    assert code == 0, output
    lines = output.splitlines()
    assert lines[0] == "DRILL slow: everything was made slow. Staged on purpose; no agent is told."
    assert "step   12/12  reward 1.000  eval/accuracy 0.750" in output
    assert "1 agent has nothing to do in this run: `oven-controller agent list --run one`" in output
    assert "eval/accuracy 0.521 → 0.750 (+0.229)" in output

    folder = stack.run_folder("one")
    events = [json.loads(line) for line in folder.export.read_text().splitlines()]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert events[-1]["type"] in ("RunEnded", "AgentStatus")
    assert sum(event["type"] == "Observation" for event in events) == 12
    assert json.loads(folder.config.read_text())["seed"] == 1

    assert stack.json("runs")[0] | {"created": "", "folder": ""} == {
        "run": "one",
        "status": "completed",
        "recipe": "toy",
        "start": "drill:slow",
        "drill": "everything was made slow",
        "created": "",
        "url": folder.info().url,
        "folder": "",
    }
    status = stack.json("status", "one")
    assert (status["status"], status["step"], status["processes"]) == ("completed", 12, [])
    code, output = stack.command("replay", "one")
    assert (code, "byte for byte" in output) == (0, True)
    assert stack.json("replay", "one") | {"first": None, "run": "one", "same": True} == stack.json("replay", "one")
    code, output = stack.command("log", "one")
    assert "Observation" in output
    code, output = stack.command("up", "--headless", "--recipe", "toy", "--run", "one")
    assert (code, "choose another name with --run" in output) == (2, True)


def test_ctrl_c_ends_in_order_with_a_checkpoint(stack: Stack) -> None:
    up = stack.up("two", "--set", "recipe_options.mode=wait", until="step   12/12")
    processes = family(up.pid)
    assert len(processes) >= 6  # up, guard, server, mesh, two agents, learner
    up.send_signal(signal.SIGINT)
    code, output = stack.end_of(up)
    assert code == 130, output
    assert "learner  stopped at step 12" in output
    assert (stack.run_folder("two").checkpoints / "last").read_text() == "all of it"
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert stack.run_folder("two").status() == "stopped"


def test_kill_minus_nine_leaves_nothing_behind_and_the_log_is_kept(stack: Stack) -> None:
    up = stack.up("three", "--set", "recipe_options.mode=wait", until="step   12/12")
    processes = family(up.pid)
    up.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert stack.json("runs")[0]["status"] == "interrupted"
    code, output = stack.command("log", "three", "--json")
    assert code == 0, output
    assert sum('"Observation"' in line for line in output.splitlines()) == 12

    code, output = stack.command("up", "--headless", "--resume", "--run", "three", "--set", "recipe_options.mode=end")
    assert code == 0, output
    exported = stack.run_folder("three").export.read_text()
    assert exported.count('"type": "RunStarted"') == 2
    code, output = stack.command("replay", "three")
    assert code == 0, output


def test_a_dead_learner_ends_the_run(stack: Stack) -> None:
    code, output = stack.command(
        "up", "--headless", "--recipe", "toy", "--run", "four", "--set", "recipe_options.mode=die"
    )
    assert code == 3, output
    assert "the learner failed (exit code 7)" in output
    assert "out of memory, says the learner" in output
    assert stack.run_folder("four").status() == "failed"
    code, output = stack.command("replay", "four")
    assert (code, "has no RunStarted" in output) == (2, True)  # nothing ran: that is no pass


def test_a_learner_that_cannot_start_is_one_line_and_leaves_no_run(stack: Stack) -> None:
    code, output = stack.command("up", "--headless", "--recipe", "toy", "--set", "recipe_options.mode=misses_package")
    assert code == 2 and "error: it needs the package 'torch'\n" in output, output
    assert "Traceback" not in output and "decisions" not in output and stack.json("runs") == []


def test_an_agent_that_dies_does_not_end_the_run(stack: Stack) -> None:
    up = stack.up("five", "--set", "recipe_options.mode=wait", until="step   12/12")
    psutil.Process(stack.run_folder("five").info().children["agents-1"]).kill()
    output = stack.read_until(up, "agents-1 ended")
    assert "killed by SIGKILL): training continues without curriculum, learning_rate until it is back" in output
    code, output = stack.command("down", "five")
    assert code == 0, output
    assert stack.end_of(up)[0] == 0


def test_while_the_stack_is_up(stack: Stack) -> None:
    up = stack.up("seven", "--set", "recipe_options.mode=wait", until="step   12/12")
    status = stack.json("status")
    assert status["run"] == "seven"
    assert {p["name"]: p["alive"] for p in status["processes"]} == dict.fromkeys(
        ("up", "nats-server", "mesh", "agents-1", "learner"), True
    )
    assert status["agents"]["learning_rate"]["live"]
    assert "reward" in status["metrics"]

    code, output = stack.command("hold", "seven", "--reason", "a look", "--wait", "5")
    assert (code, "logged as event" in output, "no receipt from the learner within 5 s" in output) == (3, True, True), (
        output
    )
    assert "operator: hold a look" in stack.read_until(up, "operator: ")
    assert any(json.loads(line)["type"] == "OperatorCommand" for line in _log(stack, "seven"))
    assert stack.command("replay", "seven")[0] == 0

    assert stack.command("agent", "new", "scout")[0] == 0
    code, output = stack.command("agent", "run", "scout.py", "--name", "learning_rate")
    assert (code, "is already running in 'seven'" in output) == (2, True)
    scout = stack.start("agent", "run", "scout.py")
    assert "agent    scout joined" in stack.read_until(up, "scout joined")
    scout.send_signal(signal.SIGINT)
    assert stack.end_of(scout)[0] == 0
    assert "agent    scout left" in stack.read_until(up, "scout left")

    follower = stack.start("log", "seven", "--follow", "--json")
    assert '"RunStarted"' in stack.read_until(follower, '"RunStarted"')
    code, output = stack.command("down")
    assert (code, "is down (stopped)" in output) == (0, True)
    assert stack.end_of(up)[0] == 0
    code, output = stack.end_of(follower)
    assert (code, '"RunEnded"' in output) == (0, True)


def _log(stack: Stack, run: str) -> list[str]:
    code, output = stack.command("log", run, "--json")
    assert code == 0, output
    return output.splitlines()


def test_a_users_script_can_be_run(stack: Stack) -> None:
    script = "import os; print('sees', os.environ['OVEN_RUN'], os.path.exists(os.environ['OVEN_CREDS'])); exit(5)"
    code, output = stack.command("run", "--run", "eight", "--", sys.executable, "-c", script)
    assert code == 5, output
    assert "sees eight True" in output
    assert json.loads(stack.run_folder("eight").config.read_text())["rules"]["autonomy"] == "observe"
    code, output = stack.command("run", "--run", "nine", "--quiet", "--", sys.executable, "-c", script)
    assert (code, "sees" in output) == (5, False)
    assert "sees nine True" in (stack.run_folder("nine").logs / "script.log").read_text()


def test_up_without_a_script_prints_what_the_script_needs(stack: Stack) -> None:
    up = stack.start("up", "--headless", "--no-learner", "--run", "ten")
    output = stack.read_until(up, "OVEN_CREDS")
    assert "export OVEN_RUN=ten" in output
    up.send_signal(signal.SIGTERM)
    assert stack.end_of(up)[0] == 0
