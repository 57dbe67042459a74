"""`up` in a terminal (a real pseudo-terminal): who has it, whom Ctrl-C reaches, and who gets it back."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
from collections.abc import Iterator

import psutil
import pytest
from tests.integration.conftest import WAIT_S, Stack, family, wait_for
from tests.support.begun_as import COMMAND
from tests.support.forked import COLD

pytestmark = pytest.mark.e2e

MONITOR = {"monitor": "oven_services:monitor", "kg": "oven_services:kg", "member": "oven_services:member"}
COMMITTEE = "committee={members: {judge: {provider: compatible, model: m, base_url: 'http://127.0.0.1:1'}}}"
CTRL_C = "\x03"


class Terminal:
    """A command in a terminal of its own: what is on the screen, and a keyboard."""

    def __init__(self, stack: Stack, *args: str, cold: bool = False) -> None:
        """`cold`: nothing is forked, and so it has no children but those that are a user's."""
        self._keyboard, device = os.openpty()
        self.process: subprocess.Popen[bytes] = stack.popen(
            [*COMMAND, "terminal", *args],
            env=stack.env | {"TERM": "xterm"} | ({COLD: "1"} if cold else {}),
            cwd=stack.folder,
            stdin=device,
            stdout=device,
            stderr=device,
        )
        os.close(device)
        self.shown = ""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                new = os.read(self._keyboard, 4096)
            except OSError:  # nobody has the other end any more
                new = b""
            with self._news:
                self.shown += new.decode(errors="replace")
                self._news.notify_all()
            if not new:
                return

    def type(self, text: str) -> None:
        os.write(self._keyboard, text.encode())

    def until(self, text: str) -> None:
        with self._news:
            assert self._news.wait_for(lambda: text in self.shown, WAIT_S), f"never {text!r} in:\n{self.shown}"

    def end(self) -> int:
        code = self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        os.close(self._keyboard)


@pytest.fixture
def terminals(stack: Stack) -> Iterator[list[Terminal]]:
    stack.install(MONITOR)
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def up(stack: Stack, terminals: list[Terminal], run: str, *args: str, cold: bool = False) -> Terminal:
    terminal = Terminal(stack, "up", "--recipe", "toy", "--run", run, "--set", COMMITTEE, *args, cold=cold)
    terminals.append(terminal)
    return terminal


def test_ctrl_c_ends_the_monitor_alone_and_then_the_run(stack: Stack, terminals: list[Terminal]) -> None:
    terminal = up(stack, terminals, "one", "--set", "recipe_options.mode=wait")
    terminal.until("monitor of one True")
    log = stack.run_folder("one").logs / "up.log"
    wait_for(lambda: "step   12/12" in log.read_text(), "the end of the steps")
    assert "step   12/12" not in terminal.shown, "the monitor has the terminal"
    monitor = psutil.Process(stack.run_folder("one").info().children["monitor"])
    terminal.type(CTRL_C)
    terminal.until("the run continues; `oven-controller monitor one` reopens it; Ctrl-C ends the run")
    assert not monitor.is_running()
    assert "step   12/12" in terminal.shown, "what was said meanwhile is printed now"
    assert "\x1b[?1049l" in terminal.shown, "and what a crashed screen may have left on is switched off"
    assert stack.run_folder("one").is_locked()
    assert "monitor" not in stack.run_folder("one").info().children
    terminal.type(CTRL_C)
    assert terminal.end() == 130
    assert "learner  stopped at step 12" in terminal.shown
    assert (stack.run_folder("one").checkpoints / "last").exists()


def test_a_run_that_ends_while_the_monitor_is_open(stack: Stack, terminals: list[Terminal]) -> None:
    terminal = up(stack, terminals, "two", cold=True)
    terminal.until("monitor of two True")
    folder = stack.run_folder("two")
    wait_for(lambda: folder.info().ended and not folder.is_locked(), "the end of the stack")
    monitor = next(p for p in family(terminal.process.pid)[1:])
    assert family(terminal.process.pid)[1:] == [monitor], "the stack is down, the server too"
    assert stack.json("doctor")["checks"][-1]["state"] == "ok", "the monitor that is looked at is nothing left over"
    assert "completed at step" not in terminal.shown
    terminal.type("quit\n")
    assert terminal.end() == 0
    assert "completed at step 12" in terminal.shown and "monitor closed" not in terminal.shown
    assert folder.status() == "completed"


def test_kill_minus_nine_of_up_leaves_nothing_not_even_the_monitor(stack: Stack, terminals: list[Terminal]) -> None:
    terminal = up(stack, terminals, "four", "--set", "recipe_options.mode=wait")
    terminal.until("monitor of four True")
    wait_for(lambda: "learner" in stack.run_folder("four").info().children, "the learner")
    processes = family(terminal.process.pid)
    names = stack.run_folder("four").info().children
    assert {"kg", "member-judge", "monitor", "mesh", "agents-1", "nats-server", "learner"} <= set(names)
    terminal.process.kill()
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []


def test_down_ends_a_run_with_an_open_monitor(stack: Stack, terminals: list[Terminal]) -> None:
    terminal = up(stack, terminals, "five", "--set", "recipe_options.mode=wait")
    terminal.until("monitor of five True")
    log = stack.run_folder("five").logs / "up.log"
    wait_for(lambda: "step   12/12" in log.read_text(), "the end of the steps")
    assert stack.command("down", "five")[0] == 0
    assert terminal.end() == 0
    assert "stopped at step" in terminal.shown


@pytest.mark.parametrize("headless", [True, False])
def test_a_terminal_that_is_closed_ends_the_run_in_order(stack: Stack, headless: bool) -> None:
    """Nobody hears the last lines: they are in up.log."""
    stack.install(MONITOR)
    keyboard, device = os.openpty()
    command = ["up", "--recipe", "toy", "--run", "shut", "--set", "recipe_options.mode=wait"]
    command += ["--headless"] if headless else []
    process = stack.popen(
        [*COMMAND, "terminal", *command],
        env=stack.env | {"TERM": "xterm"}, cwd=stack.folder, stdin=device, stdout=device, stderr=device,
    )  # fmt: skip
    os.close(device)
    folder = stack.run_folder("shut")
    log = folder.logs / "up.log"
    wait_for(lambda: log.exists() and "step   12/12" in log.read_text(), "the end of the steps")
    processes = family(process.pid)
    os.close(keyboard)
    assert process.wait(WAIT_S) == 0
    assert psutil.wait_procs(processes, timeout=WAIT_S)[1] == []
    assert (folder.checkpoints / "last").read_text() == "all of it"
    assert folder.status() == "stopped" and folder.has_complete_log()
    assert "learner  stopped at step 12" in log.read_text() and "stopped at step 12 after" in log.read_text()


def test_under_nohup_a_closed_terminal_ends_nothing(stack: Stack) -> None:
    command = ["up", "--headless", "--recipe", "toy", "--run", "kept", "--set", "recipe_options.mode=wait"]
    up = stack.popen(
        [*COMMAND, "nohup", *command],
        env=stack.env, cwd=stack.folder, text=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip
    stack.started.append(up)
    stack.read_until(up, "step   12/12")
    up.send_signal(signal.SIGHUP)
    assert stack.json("status", "kept")["status"] == "running"
    assert stack.command("down", "kept")[0] == 0
    assert stack.end_of(up)[0] == 0
