"""A stack calls by webhook: what an advice, its approval, a hold, a killed notifier and a killed learner look like from
the other end. One stack for all of it."""

from __future__ import annotations

import json
import os
import signal
from datetime import datetime

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, wait_for
from tests.support.webhook_server import Posted, WebhookServer

from oven_controller.runs.log_sources import exported

pytestmark = pytest.mark.e2e

ADVISER = '''
"""Wants the clip halved, once it has seen a few steps."""
from oven_agents import Agent

class Adviser(Agent):
    moves = ("grad.clip",)
    speciality = ("grad.clip",)

    def vote(self, window):
        if window.tick < 5 or window.knobs["grad.clip"].number < 1.0:
            return None
        return window.propose("grad.clip", 0.5, confidence=0.95, why="norms are large, says @everyone")
'''
SECRET, TOKEN = "s3cr3t-path-of-the-hook", "token-of-the-header-0123"
SERVICES = {"learner": "oven_services:learner", "notify": "oven_controller.notify.process:main"}


def kinds(posted: list[Posted]) -> list[str]:
    return [one.json["notice"]["kind"] for one in posted]


def test_a_stack_calls(stack: Stack) -> None:
    stack.install(SERVICES)
    (stack.folder / "adviser.py").write_text(ADVISER)
    stack.env["OPS_TOKEN"] = TOKEN
    with WebhookServer() as hook:
        endpoint = f"{{url: '{hook.url}/{SECRET}', headers: {{X-Token: OPS_TOKEN}}}}"
        sets = [
            "agents=[adviser.py]",
            "kg=false",
            "rules.newcomers=full",
            "rules.autonomy=advise",
            f"notify.to=[{endpoint}]",
        ]
        up = stack.start(
            "up", "--headless", "--recipe", "toy", "--run", "calls", *(part for one in sets for part in ("--set", one))
        )
        (advice,) = hook.until(lambda posted: "advice" in kinds(posted), "advice")
        message = advice.json
        logged = datetime.fromisoformat(message["notice"]["time"]).timestamp()
        assert advice.at - logged < 2.0
        assert advice.path == f"/{SECRET}"
        assert (advice.headers["x-token"], advice.headers["webhook-id"]) == (TOKEN, message["id"])
        assert message["title"] == "calls: advice: grad.clip 1 → 0.5"
        assert "adviser advises grad.clip 1 → 0.5, because norms are large, says everyone." in message["text"]
        command = message["notice"]["command"].split()

        notifier = psutil.Process(stack.run_folder("calls").info().children["notify"])
        notifier.kill()
        code, said = stack.command(*command[1:])
        assert code == 0, said
        assert stack.command("hold", "calls", "--reason", "a look at the loss")[0] == 0
        posted = hook.until(lambda posted: {"applied", "held"} <= set(kinds(posted)), "applied and held")
        assert sorted(kinds(posted)) == ["advice", "applied", "held"]  # the notifier that came back told nothing twice
        held = next(one.json for one in posted if one.json["notice"]["kind"] == "held")
        assert "operator: a look at the loss" in held["text"] and "oven-controller resume calls" in held["text"]

        os.kill(stack.run_folder("calls").info().children["learner"], signal.SIGKILL)
        (died,) = [one for one in hook.until(lambda posted: "died" in kinds(posted), "died") if "died" in kinds([one])]
        assert died.json["title"].startswith("calls: the learner died at step ")
        assert "killed by SIGKILL" in died.json["text"]
        code, said = stack.end_of(up)
        assert code == 3, said

    folder = stack.run_folder("calls")
    written = [path for path in folder.path.rglob("*") if path.is_file() and "store" not in path.parts]
    holding = [path.name for path in written if SECRET.encode() in path.read_bytes()]
    assert holding == ["addresses.json"]
    assert (folder.path / "notify" / "addresses.json").stat().st_mode & 0o777 == 0o600
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    assert SECRET not in said and TOKEN not in said
    assert SECRET not in stack.command("config", "show", "--run", "calls")[1]
    assert stack.command("replay", "calls")[0] == 0
    assert json.loads(folder.config.read_text())["notify"]["to"][0]["url"] == f"kept:1 {hook.url}/…"
    assert sum(1 for _ in exported(folder)) > 20
    wait_for(lambda: not psutil.pid_exists(notifier.pid), f"the notifier's end within {WAIT_S} s")
