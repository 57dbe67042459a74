"""`bench questions`: an experiment whose score is known, over real HTTP, killed and resumed.

A scripted supervisor answers questions of the task `stdlib` through `supervise run`: once undisturbed, and once killed
by SIGKILL and resumed. `own` is what the script comes to by the official scores, computed without any of that; both
runs have to measure it. `paid_twice` counts answers beyond those of the undisturbed run, without `lost_at_kills`: those
that were answered, and not yet logged when the process died. No other call may be made twice.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final

from typer import Option

from oven_bench.bench_command import Bench, HomeFolder, Json, home_folder, print_object
from oven_bench.questions import scripted_models
from oven_bench.questions.counting_endpoint import CountingEndpoint
from oven_core.errors import ConfigError, ProcessError
from oven_llm.experiments.sample import drawn
from oven_llm.tasks.example import Example, Prediction
from oven_llm.tasks.official_score import scores
from oven_llm.tasks.stdlib import TASK

SEED: Final = 42
LOGS: Final = ("supervisor.jsonl", "worker.jsonl", "own_calls.jsonl")
CANARY: Final = "sk-canary-of-the-bench-7f3a"
"""The key that is sent, which no file may hold."""
DELAY_S: Final = 0.005
"""Of an answer: without any, few calls are under way at a kill."""
FAULTS: Final = 0.1
"""Share of requests that are refused at first."""
TOLERANCE: Final = 1e-12


def measured(count: int, kills: int, concurrency: int, folder: Path) -> dict[str, Any]:
    """One object with what was measured, and `passed`; the runs stay in `folder`. Raises ConfigError where it has some
    already, and ProcessError where a run fails."""
    if any((folder / name).exists() for name in ("clean", "killed")):
        raise ConfigError(f"{folder} has runs already; name another folder with --home")
    examples = drawn(TASK.examples(None, SEED, count), count, SEED)
    own = scripted_models.own_scores(examples)
    with CountingEndpoint(delay_s=DELAY_S, faults=FAULTS, seed=1) as endpoint:
        clean = _Child(endpoint, count, concurrency, folder / "clean").run()
        wanted = Counter(endpoint.answered)
    with CountingEndpoint(delay_s=DELAY_S, faults=FAULTS, seed=2) as endpoint:
        child = _Child(endpoint, count, concurrency, folder / "killed")
        lost = [0, *(child.killed_after(int(wanted.total() * (at + 1) / (kills + 2))) for at in range(kills))]
        resumed = child.run()
        beyond = (endpoint.answered - wanted).total()
        missing = (wanted - endpoint.answered).total()
        refused, sent = endpoint.refused, endpoint.keys == {f"Bearer {CANARY}"}
    found = {"clean": _scored(clean, examples), "resumed": _scored(resumed, examples)}
    expected = {"answer_f1": own.answer_f1, "evidence_f1": own.evidence_f1}
    same = all(abs(one[name] - value) <= TOLERANCE for one in found.values() for name, value in expected.items())
    paid_twice = beyond - lost[-1]
    held = [path for path in folder.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    return {
        "questions": count,
        "own": asdict(own),
        **found,
        "calls": wanted.total(),
        "kills": kills,
        "lost_at_kills": [now - before for before, now in pairwise(lost)],
        "paid_twice": paid_twice,
        "missing": missing,
        "refused_at_first": refused,
        "files_with_the_key": len(held),
        # Where nothing was refused, or the key was not sent, the run shows less than it says.
        "passed": same and paid_twice == 0 and missing == 0 and refused > 0 and sent and not held,
    }


class _Child:
    """`supervise run` as its own process."""

    def __init__(self, endpoint: CountingEndpoint, count: int, concurrency: int, logs: Path) -> None:
        self._endpoint, self._logs = endpoint, logs
        command = [sys.executable, "-m", "oven_controller.cli.main", "supervise", "run"]
        self._begin = [
            *command, "--task", "stdlib", "-n", str(count), "--seed", str(SEED), "--base-url", endpoint.url,
            "--supervisor-model", scripted_models.SUPERVISOR, "--worker-model", scripted_models.WORKER,
            "--judge-model", scripted_models.JUDGE, "--key-env", "BENCH_KEY", "--log-dir", str(logs),
            "--concurrency", str(concurrency),
        ]  # fmt: skip
        self._resume = [*command, "--resume"]

    def run(self) -> Path:
        """The run's folder, at its end. Raises ProcessError where it fails."""
        done = subprocess.run(self._command(), env=self._environment(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProcessError(f"supervise run ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return self._folder()

    def killed_after(self, calls: int) -> int:
        """Kills it once the endpoint has answered so many calls; how many of all answers no log has. Raises
        ProcessError where it ends before that."""
        child = subprocess.Popen(
            self._command(), env=self._environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        while self._endpoint.total < calls:
            if child.poll() is not None:
                raise ProcessError(f"supervise run ended with {child.returncode} before it could be killed")
            time.sleep(0.005)
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        while self._endpoint.under_way:
            time.sleep(0.005)
        return self._endpoint.total - _logged(self._folder())

    def _command(self) -> list[str]:
        return [*self._resume, str(self._folder())] if self._logs.exists() else self._begin

    def _folder(self) -> Path:
        (found,) = (self._logs / "stdlib").iterdir()
        return found

    def _environment(self) -> dict[str, str]:
        return {**os.environ, "BENCH_KEY": CANARY}


def _logged(folder: Path) -> int:
    """Calls whose answer is in the run's logs."""
    return sum('"response"' in line for path in _logs(folder) for line in path.read_text().splitlines())


def _logs(folder: Path) -> list[Path]:
    return [path for name in LOGS for path in sorted(folder.glob(f"*/{name}"))]


def _scored(run: Path, examples: Sequence[Example]) -> dict[str, Any]:
    """The official scores of what the run predicted, of its predictions' file."""
    lines = [json.loads(line) for line in (run / "predictions.jsonl").read_text().splitlines()]
    predicted: Mapping[str, Prediction] = {
        one["question_id"]: Prediction(one["predicted_answer"], tuple(one["predicted_evidence"])) for one in lines
    }
    return asdict(scores(predicted, {one.id: one.references for one in examples}))


def _main(
    count: Annotated[int, Option("--questions", min=1, help="Questions of the task stdlib.")] = 100,
    kills: Annotated[int, Option(min=1, max=10, help="SIGKILLs of the second run.")] = 2,
    concurrency: Annotated[int, Option(min=1, help="Questions at a time.")] = 4,
    home: HomeFolder = None,
    as_json: Json = False,
) -> int:
    with home_folder(home) as folder:
        found = measured(count, kills, concurrency, folder)
    print_object(found, as_json)
    return 0 if found["passed"] else 1


BENCH = Bench(
    "questions",
    _main,
    "An experiment of known score over real HTTP, killed by SIGKILL and resumed: its score, and calls paid twice.",
    "--questions 100 --kills 2 --json",
)
