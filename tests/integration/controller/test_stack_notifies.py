"""A stack calls by webhook: what an advice, its approval, a hold, a killed notifier and a killed learner look like from
the other end. One stack for all of it."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family, wait_for
from tests.support.webhook_server import Posted, WebhookServer

pytestmark = pytest.mark.e2e

ADVISER = '''
"""Wants the clip halved, once it has seen a few steps."""
from oven_agents import Agent

class Adviser(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        if window.tick < 5 or window.knobs["grad.clip"].number < 1.0:
            return None
        return window.propose("grad.clip", 0.5, confidence=0.95, why="norms are large, says @everyone")
'''
SECRET, TOKEN = "s3cr3t-path-of-the-hook", "token-of-the-header-0123"
SERVICES = {"learner": "oven_services:learner", "notify": "oven_controller.notify.notifier_process:main"}


def kinds(posted: list[Posted]) -> list[str]:
    return [post.json["kind"] for post in posted]


def test_a_stack_sends_messages_to_a_webhook(stack: Stack) -> None:
    stack.install(SERVICES)
    (stack.folder / "adviser.py").write_text(ADVISER)
    stack.env["OPS_TOKEN"] = TOKEN
    with WebhookServer() as hook:
        endpoint = f"{{url: '{hook.url}/{SECRET}', headers: {{X-Token: OPS_TOKEN}}}}"
        sets = [
            "agents=[{name: adviser.py, alone: [grad.clip]}]",
            "kg=false",
            "rules.newcomers=full",
            "rules.autonomy=advise",
            "rules.approve_minutes=5",
            f"notify.to=[{endpoint}]",
        ]
        up = stack.start(
            "up",
            "--headless",
            "--recipe",
            "toy",
            "--run",
            "calls",
            *(part for setting in sets for part in ("--set", setting)),
        )
        (advice,) = hook.until(lambda posted: "advice" in kinds(posted), "advice")
        message = advice.json
        assert advice.path == f"/{SECRET}"
        assert advice.headers["x-token"] == TOKEN
        assert message["title"] == "calls: advice: grad.clip 1 → 0.5"
        assert "adviser advises grad.clip 1 → 0.5, because norms are large, says everyone." in message["message"]
        command = message["command"].split()
        assert not seen_by_others(up.pid)
        watched_beside(stack, message)

        notifier = psutil.Process(stack.run_folder("calls").info().children["notify"])
        notifier.kill()
        code, output = stack.command(*command[1:])
        assert code == 0, output
        assert stack.command("hold", "calls", "--reason", "a look at the loss")[0] == 0
        posted = hook.until(lambda posted: "held" in kinds(posted), "held")
        texts = [post.json["title"] + post.json["message"] for post in posted]
        assert sum("advice: " in text for text in texts) == 1  # the restarted notifier repeated nothing
        assert sum("applied: grad.clip 1 → 0.5" in text for text in texts) == 1
        assert "operator: a look at the loss" in texts[-1] and "oven-controller resume calls" in texts[-1]

        os.kill(stack.run_folder("calls").info().children["learner"], signal.SIGKILL)
        (died,) = [
            post for post in hook.until(lambda posted: "died" in kinds(posted), "died") if "died" in kinds([post])
        ]
        assert died.json["title"].startswith("calls: the learner died at step ")
        assert "killed by SIGKILL" in died.json["message"]
        code, output = stack.end_of(up)
        assert code == 3, output

    nothing_secret_is_left(stack, hook.url, output)
    assert stack.command("replay", "calls")[0] == 0
    wait_for(lambda: not psutil.pid_exists(notifier.pid), f"the notifier's end within {WAIT_S} s")


def seen_by_others(pid: int) -> list[str]:
    """What the arguments of the stack's processes have of the secrets."""
    words = (word for process in family(pid) for word in process.cmdline())
    return [word for word in words if SECRET in word or TOKEN in word]


def watched_beside(stack: Stack, message: Any) -> None:
    """Somebody else asks to be called, later: what waits is told at once."""
    with WebhookServer() as beside:
        stack.env["BESIDE"] = f"{beside.url}/{SECRET}"
        watcher = stack.start("notify", "watch", "calls", "--notify", "env:BESIDE", "--set", "notify.on=advice")
        (again,) = beside.until(len, "what waits is told")
        assert again.json["command"] == message["command"]
        watcher.send_signal(signal.SIGINT)
        code, output = stack.end_of(watcher)
    assert (code, SECRET in output) == (0, False), output
    assert output.startswith("run calls: sending advice to env:BESIDE; press Ctrl-C to stop")


def nothing_secret_is_left(stack: Stack, url: str, output: str) -> None:
    """But in the one file that is for it."""
    folder = stack.run_folder("calls")
    written = [path for path in folder.path.rglob("*") if path.is_file() and "store" not in path.parts]
    holding = [path for path in written if SECRET.encode() in path.read_bytes()]
    assert [(path.name, path.stat().st_mode & 0o777) for path in holding] == [("addresses.json", 0o600)]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]
    assert SECRET not in output and TOKEN not in output
    assert SECRET not in stack.command("config", "show", "--run", "calls")[1]
    assert json.loads(folder.config.read_text())["notify"]["to"][0]["url"] == f"saved:1 {url}/…"
