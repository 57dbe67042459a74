"""Runs one part of `bench gpu` in its own process, with a time limit.

The process is `python -m oven_bench.gpu.part_process NAME SIZES FILE`, with the sizes as JSON. It writes its outcome to
the file. What it prints goes to a log, so that a part that hangs or dies leaves its last lines.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from oven_bench.gpu.parts import PARTS, Part
from oven_bench.gpu.sizes import Sizes
from oven_core.errors import reason

GRACE_S = 5.0
"""Seconds between the request to end and the kill."""
LOG_LINES = 40
"""Lines of its log that a failed part leaves in the results."""
ENVIRONMENT = {
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # cuBLAS is repeatable with it only, and reads it once
    "OMP_NUM_THREADS": "4",  # parts share the cores
    "OMP_WAIT_POLICY": "PASSIVE",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TRL_EXPERIMENTAL_SILENCE": "1",
    "PYTHONUNBUFFERED": "1",
}


@dataclass
class Outcome:
    """The result of a part: what it measured, or why it did not."""

    part: str
    status: str
    """`passed`, `failed` or `skipped`."""
    seconds: float = 0.0
    figures: dict[str, Any] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    """What is wrong, one sentence each."""
    traceback: str = ""
    log: list[str] = field(default_factory=list)

    def line(self) -> str:
        """The outcome on one line."""
        text = f"{self.part}: {self.status} after {self.seconds:.0f} s"
        return f"{text}: {self.failures[0]}" if self.failures else text


class PartProcess:
    """A running part. `limit_s` is its time limit in seconds."""

    def __init__(self, part: Part, sizes: Sizes, folder: Path, limit_s: float) -> None:
        self.part, self._limit_s, self._began = part, limit_s, time.monotonic()
        self._outcome_file, self._log_file = folder / f"{part.name}.json", folder / f"{part.name}.log"
        self._log: IO[bytes] = self._log_file.open("wb")
        arguments = [part.name, json.dumps(dataclasses.asdict(sizes)), str(self._outcome_file)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "oven_bench.gpu.part_process", *arguments],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **ENVIRONMENT},
        )  # fmt: skip

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def poll(self) -> Outcome | None:
        """Return the outcome if the part has ended or its time is over, else None."""
        if self._process.poll() is None:
            return (
                self._outcome(f"its limit of {self._limit_s:.0f} s is over") if self.seconds > self._limit_s else None
            )
        return self._outcome(f"its process ended with code {self._process.returncode}")

    def last_line(self) -> str:
        lines = self._log_lines(1)
        return lines[0][:140] if lines else ""

    def end(self) -> None:
        """End the process and those that it started. They watch their parent, or share its group."""
        if self._process.poll() is None:
            self._signal(signal.SIGINT)  # its temporary folders are removed
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(GRACE_S)
        self._signal(signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _outcome(self, problem: str) -> Outcome:
        self.end()
        name, seconds = self.part.name, round(self.seconds, 1)
        if not self._outcome_file.is_file():
            return Outcome(name, "failed", seconds, failures=[problem], log=self._log_lines(LOG_LINES))
        outcome = TypeAdapter(Outcome).validate_json(self._outcome_file.read_bytes())
        outcome.seconds = seconds
        if outcome.status == "failed":
            outcome.log = self._log_lines(LOG_LINES)
        return outcome

    def _log_lines(self, count: int) -> list[str]:
        return self._log_file.read_text(errors="replace").strip().splitlines()[-count:]

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def main() -> None:
    name, sizes, file = sys.argv[1:]
    try:
        report = PARTS[name].measure(TypeAdapter(Sizes).validate_json(sizes))
        outcome = Outcome(
            name, "failed" if report.failures else "passed", figures=dict(report.figures), failures=[*report.failures]
        )
    except BaseException as error:
        outcome = Outcome(name, "failed", failures=[f"{type(error).__name__}: {reason(error)}"[:500]],
                          traceback=traceback.format_exc())  # fmt: skip
    Path(file).write_bytes(TypeAdapter(Outcome).dump_json(outcome))


if __name__ == "__main__":
    main()
