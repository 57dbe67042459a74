"""Two runs of the whole stack, as `up` starts it: a process for everything, over the bus, in lockstep.

In lockstep a run is repeatable but for the order in which agents speak within a tick, and for the clock: what the
learner publishes and what the mesh decides are compared, and who said it first is not. Their logs are recorded as well;
`replays` reads them.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.golden import recorded, wire
from tests.golden.store import Json, Limits, numbers

from oven_core.protocol.events import Event
from oven_core.protocol.messages import LearnerMessage

RUNS: Mapping[str, Sequence[str]] = {
    "grpo-lr-high": ("--recipe", "grpo", "--start", "drill:lr-high", "--seed", "1", "--steps", "60"),
    "pretrain-lr-high": ("--recipe", "pretrain", "--start", "drill:lr-high", "--seed", "1", "--steps", "80"),
}
"""Name → options of `up`."""
COMMAND = ("-m", "oven_controller.cli.main", "up", "--headless", "--set", "lockstep=true")
TIMEOUT_S = 1800
FILE = "runs.json"


def documents(limits: Limits, path: Path) -> Iterator[tuple[str, Json]]:
    """Files, and what belongs there, the recorded logs among them. `path`: where the entry points are. Raises
    RuntimeError when a run failed, or was not in lockstep to its end."""
    cases: dict[str, Json] = {}
    for name, options in RUNS.items():
        if limits.takes(name):
            log = run(name, options, path)
            cases[name] = contents_of(log)
            yield recorded.path(f"run-{name}"), recorded.packed(log)
    yield FILE, {"numbers": numbers(), "cases": cases}


def limited(document: Json, limits: Limits) -> Json:
    """The part of a stored document that `documents` makes under these limits."""
    return document | {"cases": {name: case for name, case in document["cases"].items() if limits.takes(name)}}


def run(name: str, options: Sequence[str], path: Path) -> list[Event]:
    """The log of a run that is made now, in a home of its own."""
    with tempfile.TemporaryDirectory() as home:
        parent_env = {key: value for key, value in os.environ.items() if not key.startswith("OVEN_")}
        search = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, *COMMAND, "--run", name, *options],
            cwd=home,
            env={**parent_env, "OVEN_HOME": home, "PYTHONPATH": search, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        exported = Path(home) / "runs" / name / "log.jsonl"
        if done.returncode or not exported.exists():
            tail = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
            raise RuntimeError(f"the run {name} ended with code {done.returncode}:\n{tail}")
        log = [Event.from_line(line) for line in exported.read_text().splitlines()]
    ended = [message for message in map(wire.fields_of, log) if message["type"] == "RunEnded"]
    if not ended or ended[-1]["reason"] != "completed" or ended[-1]["lockstep_timeouts"]:
        raise RuntimeError(f"the run {name} did not complete in lockstep: {ended[-1:] or 'no RunEnded'}; run it again")
    return log


def contents_of(log: Sequence[Event]) -> dict[str, Json]:
    """What does not depend on who was faster."""
    learner: list[dict[str, Any]] = [wire.fields_of(event) for event in log if isinstance(event.body, LearnerMessage)]
    return {"learner": wire.by_type(learner), "decisions": wire.decisions(map(wire.fields_of, log))}
