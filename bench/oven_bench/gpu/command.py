"""`bench gpu`: on one card, does the controller work, and what does it cost?

Each part runs in its own process with its own time limit. A part that fails is reported with the reason, and the others
still run. Parts that measure no times run next to each other where there are enough cores; the others run alone. The
models have random weights. Without a card, or with `--rehearse`, all parts run with tiny models.
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from oven_bench.gpu.part_process import Outcome, PartProcess
from oven_bench.gpu.parts import PARTS, Part
from oven_bench.gpu.results import machine, markdown
from oven_bench.gpu.sizes import Sizes, full, tiny
from oven_bench.study import PATH, Report, Study, comma_separated
from oven_core.errors import ConfigError, UnknownNameError

CORES_TOGETHER = 8
"""Cores from which parts run next to each other."""
POLL_S = 0.2
HEARTBEAT_S = 10.0
"""Seconds between two reports of what runs."""
LEAST_S = 15.0
"""Seconds below which a part is not started."""


class Session:
    """Runs parts within a time limit, and writes the results after each."""

    def __init__(self, sizes: Sizes, minutes: float, out: Path, facts: dict[str, Any]) -> None:
        self._sizes, self._out, self._facts = sizes, out, facts
        self._began = time.monotonic()
        self._end = self._began + 60 * minutes
        self.outcomes: list[Outcome] = []

    def run(self, parts: Sequence[Part], folder: Path) -> None:
        """Run the parts next to each other, or in order if they measure times, or on a machine with few cores."""
        together = (os.cpu_count() or 1) >= CORES_TOGETHER and not any(part.is_timed for part in parts)
        for group in [parts] if together else [[part] for part in parts]:
            running = [started for part in group if (started := self._start(part, folder))]
            try:
                self._wait(running)
            finally:
                for process in running:
                    process.end()

    def _start(self, part: Part, folder: Path) -> PartProcess | None:
        remaining = self._end - time.monotonic()
        if remaining < LEAST_S:
            self._add(Outcome(part.name, "skipped", failures=["no time is left; raise --minutes"]))
            return None
        limit = remaining if self._sizes.device == "cpu" else min(part.limit_s, remaining)
        self.say(f"{part.name} started, at most {limit:.0f} s: {part.about}")
        return PartProcess(part, self._sizes, folder, limit)

    def _wait(self, running: Sequence[PartProcess]) -> None:
        waiting, next_report = list(running), time.monotonic() + HEARTBEAT_S
        while waiting:
            time.sleep(POLL_S)
            for process in list(waiting):
                if outcome := process.poll():
                    waiting.remove(process)
                    self._add(outcome)
            if time.monotonic() > next_report:
                next_report += HEARTBEAT_S
                for process in waiting:
                    self.say(f"{process.part.name} runs for {process.seconds:.0f} s: {process.last_line()}")

    def _add(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)
        self.say(outcome.line())
        self.outcomes.sort(key=lambda outcome: list(PARTS).index(outcome.part))
        results = {**self._facts, "parts": [dataclasses.asdict(outcome) for outcome in self.outcomes]}
        (self._out / "gpu.json").write_text(json.dumps(results, indent=1) + "\n")
        (self._out / "gpu.md").write_text(markdown(self._facts, self.outcomes))

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._began:4.0f} s] {text}", flush=True)


def selected(only: str) -> list[Part]:
    """The parts of these names, or all. Raises UnknownNameError."""
    names = comma_separated(only) or list(PARTS)
    for name in names:
        if name not in PARTS:
            raise UnknownNameError("part", name, PARTS)
    return [part for name, part in PARTS.items() if name in names]


@click.option("--minutes", type=click.FloatRange(min=0.5), default=8.0, help="Time limit for all parts together.")
@click.option("--rehearse", is_flag=True, help="Tiny models, also on a card.")
@click.option("--only", default="", metavar="PART,…", show_default="all", help=f"Parts to run: {', '.join(PARTS)}.")
@click.option("--out", type=PATH, default=Path(), metavar="DIR", help="Folder for gpu.json and gpu.md.")
def bench(minutes: float, rehearse: bool, only: str, out: Path) -> Report:
    parts = selected(only)
    if not out.is_dir():
        raise ConfigError(f"--out {out} is not a folder; create it first")
    print("bench gpu: reading the machine", flush=True)
    facts = machine()
    device = "cuda" if facts["card"] else "cpu"
    sizes = full("cuda") if facts["card"] and not rehearse else tiny(device)  # type: ignore[arg-type]
    session = Session(sizes, minutes, out, facts | {"sizes": dataclasses.asdict(sizes)})
    session.say(f"{facts['card'] or 'no card, so this is a rehearsal'}; {facts['cores']} cores; {facts['versions']}")
    with tempfile.TemporaryDirectory() as folder:
        for is_timed in (False, True):
            session.run([part for part in parts if part.is_timed == is_timed], Path(folder))
    wrong = [outcome.line() for outcome in session.outcomes if outcome.status != "passed"]
    rows = [
        {"part": outcome.part, "result": outcome.status, "seconds": outcome.seconds} for outcome in session.outcomes
    ]
    return Report(facts | {outcome.part: outcome.figures for outcome in session.outcomes}, rows, wrong)


STUDY = Study("gpu", bench, "--rehearse --only bits,snapshots", "Exit code 1: a part failed or was skipped.")
