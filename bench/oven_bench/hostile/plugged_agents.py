"""The agents plugged into a run: starts them as a user would, and counts the processes they leave behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from oven_bench.hostile.attacks import Guest
from oven_core.errors import ProcessError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Decision
from oven_runs.home.run_folder import RunFolder

GRACE_S = 5.0
"""Time limit for processes to end after SIGTERM."""
COMMAND_S = 60.0


class Company:
    """The guests of one run. `names` includes those that the stack starts."""

    def __init__(self, folder: RunFolder, environment: Mapping[str, str], names: Collection[str]) -> None:
        self.memory_mb = 0.0
        """Peak resident memory of all guests' processes together, in MiB."""
        self._folder, self._environment, self._names = folder, environment, names
        self._beside: list[subprocess.Popen[bytes]] = []
        self._read = 0  # bytes of the run's log.jsonl

    def plug_in(self, guest: Guest) -> None:
        """Start it, unless the stack does. Raises ProcessError if it gets no key."""
        run = self._folder.run
        if guest.how == "agent":
            command = [*_oven("agent", "run", str(guest.path)), "--run", run, "--name", guest.name]
            self._start(guest.name, command, {})
        elif guest.how == "client":
            key = json.loads(self.command("creds", "add", guest.name, "--run", run, "--json"))
            self._start(guest.name, [sys.executable, "-P", str(guest.path), guest.argument], key)

    def command(self, *args: str) -> str:
        """Run an `oven-controller` command and return what it printed. Raises ProcessError if it failed."""
        done = subprocess.run(_oven(*args), env=self._environment, capture_output=True, text=True, timeout=COMMAND_S,
                              check=False)  # fmt: skip
        if done.returncode:
            output = (done.stdout + done.stderr).strip()
            raise ProcessError(f"`oven-controller {' '.join(args)}` ended with code {done.returncode}: {output}")
        return done.stdout

    def trust(self, name: str, actuators: Sequence[str]) -> str:
        """Trust a guest with these actuators. Return why that was refused, or an empty string. It is refused until
        training has started and the guest has joined."""
        try:
            self.command("trust", name, *actuators, "--run", self._folder.run)
        except ProcessError as error:
            return str(error)
        return ""

    def approve(self) -> None:
        """Approve, as a person would, all advised decisions since the last call that a guest proposed."""
        for decision in self._advised():
            command = _oven("approve", decision, "--run", self._folder.run)
            # It is refused if the advice has expired or was replaced. That is no error.
            subprocess.run(command, env=self._environment, capture_output=True, timeout=COMMAND_S, check=False)

    def _advised(self) -> list[str]:
        if not self._folder.export.exists():
            return []
        with self._folder.export.open("rb") as log:
            log.seek(self._read)
            new = log.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        bodies = [Event.from_line(line.decode()).body for line in whole.splitlines()]
        return [
            body.id
            for body in bodies
            if isinstance(body, Decision) and body.verdict == "advised" and self._proposed(body)
        ]

    def _proposed(self, decision: Decision) -> bool:
        return any(line.agent in self._names and line.stance == "propose" for line in decision.tally)

    def look(self) -> None:
        """Sample the guests' memory."""
        if self._names:
            held = sum(_memory(process) for process in self._processes(guests=True))
            self.memory_mb = round(max(self.memory_mb, held / 2**20), 1)

    def end(self) -> int:
        """After the stack has ended: send SIGTERM to the guests beside it. Returns how many of the run's processes
        survive that, and kills them."""
        for process in self._beside:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # SIGINT may be ignored by whoever started the bench
        limit = time.monotonic() + GRACE_S
        while (survivors := list(self._processes())) and time.monotonic() < limit:
            time.sleep(0.1)
        for living in survivors:
            _kill(living)
        for process in self._beside:
            process.wait()
        return len(survivors)

    def last_words(self) -> str:
        """The last lines of each guest's log, for an error message."""
        logs = [path for name in sorted(self._names) if (path := self._log(name)).exists()]
        return "\n".join(line for log in logs for line in log.read_text(errors="replace").splitlines()[-5:])

    def _start(self, name: str, command: list[str], env: Mapping[str, str]) -> None:
        with self._log(name).open("wb") as out:
            started = subprocess.Popen(command, env={**self._environment, **env}, stdin=subprocess.DEVNULL, stdout=out,
                                       stderr=out)  # fmt: skip
        self._beside.append(started)

    def _log(self, name: str) -> Path:
        return self._folder.logs / f"agent-{name}.log"

    def _processes(self, guests: bool = False) -> Iterator[psutil.Process]:
        """The run's processes, recognised by the environment that they inherit; with `guests`, only those that have a
        guest's key."""
        for process in psutil.process_iter():
            try:
                environment = process.environ()
                here = environment.get("OVEN_RUN_DIR") == str(self._folder.path)
                if process.status() == psutil.STATUS_ZOMBIE or process.pid == os.getpid():
                    continue
            except (psutil.Error, OSError):  # it has ended, or belongs to another user
                continue
            if here and (not guests or Path(environment.get("OVEN_CREDS", "")).stem in self._names):
                yield process


def _oven(*args: str) -> list[str]:
    return [sys.executable, "-m", "oven_controller.cli.main", *args]


def _memory(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:
        return 0


def _kill(process: psutil.Process) -> None:
    try:
        process.kill()
    except psutil.Error:
        return
