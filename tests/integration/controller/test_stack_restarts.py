"""Processes that are killed come back, and the log does not show it: nothing is missing, nothing is there twice."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import Counter

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, wait_for

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_runs.access.log_sources import exported_events

pytestmark = pytest.mark.e2e

SERVICES = {name: f"oven_services:{name}" for name in ("kg", "member", "learner", "monitor")}
COMMITTEE = "committee={members: {judge: {provider: compatible, model: m, base_url: 'http://127.0.0.1:1'}}}"
CRASHER = '''
"""Joins, and takes its process down with its first vote."""
import os
from oven_agents import Agent

class Crasher(Agent):
    def vote(self, window):
        os._exit(1)
'''
# Wants another value whenever it may: there is always a ballot or a decision under way.
PENDULUM = '''
"""Swings the clip."""
from oven_agents import Agent

class Pendulum(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        value = 2.0 if window.knobs["grad.clip"].number <= 1.0 else 1.0
        return window.propose("grad.clip", value, confidence=0.95, why="it swings")
'''


class OutputReader:
    """What `up` prints, read all the while. `until` waits, within a limit, for a line that was not waited for yet."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.lines: list[str] = []
        self._seen = 0
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self.lines.append(line)
                self._news.notify_all()

    def until(self, text: str) -> str:
        """The lines up to the one that holds `text`."""
        with self._news:
            assert self._news.wait_for(lambda: any(text in line for line in self.lines[self._seen :]), WAIT_S), (
                f"never said {text!r}:\n{''.join(self.lines[-40:])}"
            )
            start = self._seen
            self._seen += 1 + next(i for i, line in enumerate(self.lines[start:]) if text in line)
            return "".join(self.lines[start : self._seen])

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code


def beating(stack: Stack, run: str, *args: str) -> OutputReader:
    stack.install(SERVICES)
    (stack.folder / "pendulum.py").write_text(PENDULUM)
    (stack.folder / "crasher.py").write_text(CRASHER)
    wanted = [
        "agents=[learning_rate,{name: pendulum.py, alone: [grad.clip]},crasher.py]",
        COMMITTEE,
        "rules.cooldown_ticks=2",
        "rules.max_interventions=100000",
        "rules.newcomers=full",
        "rules.reversals=1000000",
    ]
    sets = [part for setting in wanted for part in ("--set", setting)]
    reader = OutputReader(stack.start("up", "--headless", "--recipe", "toy", "--run", run, *sets, *args))
    reader.until(" adopted (")
    return reader


def process_of(stack: Stack, run: str, name: str) -> psutil.Process:
    return psutil.Process(stack.run_folder(run).info().children[name])


def the_server_itself(stack: Stack, run: str) -> psutil.Process:
    guard = process_of(stack, run, "nats-server")
    return next(process for process in guard.children() if process.name() == "nats-server")


def times_joined(follower: OutputReader, process: str) -> int:
    """How often the agent of this process has joined in the log that `follower` reads."""
    subject = process.replace("agent-", "oven.kills.agent.")
    events = [json.loads(line) for line in list(follower.lines) if '"joined"' in line]
    return sum(event["subject"] == subject for event in events)


def test_kill_minus_nine_of_each_process_in_turn(stack: Stack) -> None:
    up = beating(stack, "kills")
    before = stack.run_folder("kills").info().children
    assert set(before) == {
        "nats-server", "mesh", "kg", "agent-learning_rate", "agent-pendulum", "agent-crasher", "member-judge",
        "learner",
    }  # fmt: skip
    follower = OutputReader(stack.start("log", "kills", "--follow", "--json"))
    follower.until('"Receipt"')  # and has read on the way that the agents joined

    for name in ("agent-pendulum", "mesh", "nats-server", "kg", "member-judge", "agent-learning_rate", "nats-server"):
        old, joined = process_of(stack, "kills", name), times_joined(follower, name)
        victim = the_server_itself(stack, "kills") if name == "nats-server" else old
        victim.kill()
        assert f"{name} ended (killed by SIGKILL)" in up.until(f"{name} is back after")
        assert process_of(stack, "kills", name).pid != old.pid
        if name.startswith("agent-"):  # a process that is back may still have the log to read
            wait_for(lambda: times_joined(follower, name) > joined, f"{name} has joined again")  # noqa: B023
        up.until(" adopted (")  # decisions are made again
    guard, server = process_of(stack, "kills", "nats-server"), the_server_itself(stack, "kills")
    guard.kill()  # and with it whoever it watched
    up.until("nats-server ended (killed by SIGKILL)")
    (stack.run_folder("kills").path / "finish").touch()  # the learner's last words wait for the server
    up.until("learner  completed")  # before or after it is told that the server is back
    assert not server.is_running() or server.status() == psutil.STATUS_ZOMBIE
    assert up.end() == 0
    assert sum(line.startswith("nats-server is back after") for line in up.lines) == 3
    events = list(exported_events(stack.run_folder("kills")))
    whole(events)
    assert stack.command("replay", "kills")[0] == 0
    follower.end()
    exported_lines = stack.run_folder("kills").export.read_text().splitlines()
    assert [json.loads(line) for line in follower.lines if not line.startswith("warning: ")] == [
        json.loads(line) for line in exported_lines
    ]

    crashes = [line for line in up.lines if line.startswith("agent-crasher ended")]
    # It exits with 1 by itself, and with 3 where a server that comes back keeps it waiting.
    assert all("(exit code 1)" in line or "(exit code 3)" in line for line in crashes)
    assert any("(exit code 1)" in line for line in crashes)
    assert ": training continues without it until it is back; restarting it in 0.25 s" in crashes[0]
    assert ", 2 times in a row" in crashes[1] and "starting it in 0.5 s" in crashes[1]
    assert ", 3 times in a row" in crashes[2] and "starting it in 1 s" in crashes[2]


def whole(events: list[Event]) -> None:
    """Contiguous; every observation and every receipt once; no decision without its receipt but the last."""
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    ticks = [event.body.tick for event in events if isinstance(event.body, Observation)]
    assert ticks == list(range(1, len(ticks) + 1))
    assert [type(event.body) for event in events].count(RunStarted) == 1
    assert [type(event.body) for event in events].count(RunEnded) == 1
    adopted = [e.body.id for e in events if isinstance(e.body, Decision) and e.body.verdict == "adopted"]
    answered = Counter(event.body.decision_id for event in events if isinstance(event.body, Receipt))
    assert set(answered.values()) == {1}
    assert set(adopted[:-1]) <= set(answered)
