"""A real stack on a server with TLS and users, and operators on another machine with only a credential file."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oven_runs.access.log_sources import exported_events
from oven_runs.home.run_folder import RunFolder
from oven_runs.server.embedded_server import find_binary, free_port

if TYPE_CHECKING:
    from tests.integration.conftest import Stack

RUN = "far"
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


class TlsStack:
    """Call `begin`, then `person` and `elsewhere`. `end` lets the learner finish and replays the log."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.bus = stack.folder / "bus"
        self.port = free_port()
        self.url = f"tls://127.0.0.1:{self.port}"
        self.far = stack.folder / "far-away"
        """The other machine: no run is in its home."""
        self.server: subprocess.Popen[bytes] | None = None
        self.up: subprocess.Popen[str] | None = None

    @property
    def folder(self) -> RunFolder:
        return self.stack.run_folder(RUN)

    def make_server(self) -> None:
        """Configure the server with a certificate and start it."""
        made = ("--run", RUN, "--agent", "adviser", "--listen", f"127.0.0.1:{self.port}")
        code, output = self.stack.command("creds", "server", str(self.bus), *made, "--tls", "--host", "127.0.0.1")
        assert code == 0, output
        self.far.mkdir()
        self.start_server()

    def start_server(self) -> None:
        log = self.bus / "log"
        with log.open("ab") as out:
            before = out.tell()
            self.server = subprocess.Popen([find_binary(), "-c", str(self.bus / "nats.conf")], stdout=out, stderr=out)
        _until(lambda: b"Server is ready" in log.read_bytes()[before:], "the server is ready")

    def kill_server(self) -> None:
        if self.server is not None:
            self.server.kill()
            self.server.wait()
            self.server = None

    def reload(self) -> None:
        """Make the server reload its users, as `creds` says."""
        assert self.server is not None
        before = (self.bus / "log").read_bytes().count(b"Reloaded server configuration")
        self.server.send_signal(signal.SIGHUP)
        _until(
            lambda: (self.bus / "log").read_bytes().count(b"Reloaded server configuration") > before, "it is read again"
        )

    def begin(self, *sets: str, learner: str = "keeping_learner") -> None:
        """Start the stack with a beating learner and an agent that always proposes. `learner`: its name among the
        stand-ins (oven_services)."""
        self.make_server()
        self.stack.install({"learner": f"oven_services:{learner}"})
        (self.stack.folder / "adviser.py").write_text(ADVISER)
        wanted = ("agents=[{name: adviser.py, alone: [grad.clip]}]", "kg=false", "rules.cooldown_ticks=2", *sets)
        there = ("--nats", self.url, "--creds", str(self.bus / "creds"), "--tls-ca", str(self.bus / "tls" / "ca.pem"))
        options = [part for text in wanted for part in ("--set", text)]
        self.up = self.stack.up(RUN, *there, *options, until="learner  toy")

    def person(self, name: str, power: str = "--operator") -> Path:
        """Create a person's credential file on the other machine."""
        code, output = self.stack.command("creds", "add", name, power, "--run", RUN)
        assert code == 0, output
        if self.server is not None:
            self.reload()
        file = self.far / f"{name}.oven"
        shutil.copy(self.bus / "creds" / file.name, file)
        return file

    def elsewhere(self, file: Path | None, *args: str, **env: str) -> tuple[int, str]:
        """Run a command on the other machine in its own process and return (exit code, output)."""
        own = {key: value for key, value in self.stack.env.items() if not key.startswith("OVEN_")}
        own |= {"OVEN_HOME": str(self.far / "home")} | env
        creds = ("--creds", str(file)) if file is not None else ()
        return self.stack.command_in(self.far, own, *args, *creds)

    def json_elsewhere(self, code: int, file: Path | None, *args: str) -> dict[str, Any]:
        exit_code, output = self.elsewhere(file, *args, "--json")
        assert exit_code == code, output
        answer: dict[str, Any] = json.loads(output.splitlines()[-1])
        return answer

    def end(self, *, finished: bool = False) -> str:
        """Return the output of `up` after its end. The log replays byte for byte. `finished`: the learner was told to
        stop."""
        assert self.up is not None
        if not finished:
            (self.folder.path / "finish").touch()
        code, text = self.stack.end_of(self.up)
        assert code == 0, text
        code, replayed = self.stack.command("replay", RUN, "--verify")
        assert (code, "byte for byte" in replayed) == (0, True), replayed
        return text

    def authors(self) -> list[tuple[str, str]]:
        """Return (type, author) of the operators' messages in the exported log."""
        events = [event for event in exported_events(self.folder) if ".operator." in event.subject]
        return [(event.body.type, event.author) for event in events]  # type: ignore[union-attr]


def _until(true: Any, what: str) -> None:
    from tests.integration.conftest import wait_for

    wait_for(true, what)
