"""Starts a stack for a training script: `oven-controller up --no-learner`, a child process until the script ends.

The child's standard input is a pipe. If the script is killed, the kernel closes the pipe, and the stack shuts down as
on Ctrl-C. If the stack is killed, the script continues training.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, ProcessError

START_TIMEOUT_S = 120.0
"""Maximum seconds for the stack to become ready for its learner."""
SHUTDOWN_TIMEOUT_S = 30.0
"""Maximum seconds for the shutdown, including the copy of the log."""


@dataclass(frozen=True, slots=True)
class StackAddress:
    """The run, folder and environment variables of a stack, as printed by `oven-controller up --no-learner --json`."""

    run: str
    folder: Path
    environment: Mapping[str, str]


class ChildStack:
    """A stack in a child process, which starts in the background while the script builds its trainer."""

    def __init__(self, settings: Mapping[str, Any], run: str | None = None, resume: bool = False) -> None:
        """`settings` are in the format of a configuration file. `run` names the run, and `resume` continues it."""
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115  stays open until the child has ended
        self._address: StackAddress | None = None
        with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as config:
            json.dump(settings, config)
        self._config = Path(config.name)
        command = [sys.executable, "-P", "-m", "oven_controller.cli.main", "up", "--no-learner", "--json"]
        command += ["--until-eof", "--config", config.name]
        command += ["--run", run] if run else []
        command += ["--resume"] if resume else []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            start_new_session=True,  # Ctrl-C goes to the script, which ends its training and then the stack
        )

    def wait_for_address(self) -> StackAddress:
        """Wait until the stack is ready for a learner, and return its address. If the stack does not start, raises
        ConfigError or ProcessError with its output."""
        if self._address is None:
            fields = json.loads(self._read_first_line())
            self._address = StackAddress(fields["run"], Path(fields["folder"]), fields["environment"])
            self._config.unlink(missing_ok=True)
        return self._address

    @property
    def pid(self) -> int:
        """Process id of `up`."""
        return self._process.pid

    def end(self) -> str:
        """Shut down the stack as on Ctrl-C, and wait for its end. Returns the run's summary, or the error output if
        there is no summary. Further calls return ""."""
        if self._errors.closed:
            return ""
        self._config.unlink(missing_ok=True)
        try:
            stdout, _ = self._process.communicate(timeout=SHUTDOWN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()  # its child processes end with it
            stdout, _ = self._process.communicate()
        self._errors.seek(0)
        output = _parse_summary(stdout or "") or self._errors.read().strip()[-2000:]
        self._errors.close()
        return output

    def _read_first_line(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        ready, _, _ = select.select([stdout], [], [], START_TIMEOUT_S)
        line = stdout.readline() if ready else ""
        if line:
            return line
        output = self.end()
        if not ready:
            raise ProcessError(f"the stack was not ready within {START_TIMEOUT_S:g} s; its output:\n{output}")
        code = self._process.returncode
        error_class = ConfigError if code == ConfigError.exit_code else ProcessError
        raise error_class(f"the stack did not start (exit code {code}):\n{output}")


def _parse_summary(stdout: str) -> str:
    """Return the summary from the output of `up --json`, which prints one object at the start and one at the end."""
    for line in reversed(stdout.splitlines()):
        with contextlib.suppress(json.JSONDecodeError):
            return "\n".join(json.loads(line).get("summary", ()))
    return ""


@contextlib.contextmanager
def stack_environment(address: StackAddress) -> Iterator[None]:
    """Set the stack's environment variables in a `with` block, so that trainers and judges connect to the stack."""
    previous = {name: os.environ.get(name) for name in address.environment}
    os.environ.update(address.environment)
    try:
        yield
    finally:
        for name in previous:
            os.environ.pop(name, None)
        os.environ.update({name: value for name, value in previous.items() if value is not None})
