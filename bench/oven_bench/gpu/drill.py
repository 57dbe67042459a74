"""A drill that is repaired on the card: GRPO from a learning rate that is too low, with the whole stack and without.

`up` starts the bus, the mesh, the agents and the learner as processes. The arm without the controller trains from the
same start and seed in this process. The log of the run is replayed with all signatures checked.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from oven_bench.gpu.sizes import Sizes
from oven_bench.study import Report
from oven_bench.training.recipe_run import QUICK, Episode, run
from oven_core.errors import ProcessError

START: Final = "drill:lr-low"
SEED: Final = 1
REPLAY_TIMEOUT_S: Final = 60


def measure(sizes: Sizes) -> Report:
    options = QUICK if sizes.quick_drill else ()
    with tempfile.TemporaryDirectory() as home:
        results = {}
        for arm in ("alone", "swarm"):
            results[arm] = run(Episode(arm, START, SEED, sizes.drill_steps, home, options=options))
            print(results[arm].line(), f"{results[arm].seconds:.0f} s", flush=True)
        log = next(Path(home).glob("runs/*/log.jsonl"))
        entries = [json.loads(line) for line in log.read_text().splitlines()]
        replayed = _replay(home, log.parent.name)
    observations = [entry for entry in entries if entry["type"] == "Observation"]
    metrics = [entry["data"]["metrics"] for entry in observations]
    accuracies = [values["eval/accuracy"] for values in metrics if "eval/accuracy" in values]
    times = [datetime.fromisoformat(entry["time"]) for entry in observations]
    steps_s = [(after - before).total_seconds() for before, after in pairwise(times)]
    receipts = [entry["data"] for entry in entries if entry["type"] == "Receipt"]
    changes = [
        f"step {receipt['step']}: {receipt['actuator']} {receipt['before']} → {receipt['after']}"
        for receipt in receipts
        if receipt["status"] == "applied"
    ]
    failures = [] if replayed["same"] else ["the replay of the drill's log differs"]
    if not sizes.quick_drill and results["swarm"].final <= results["alone"].final:
        failures.append(f"the drill was not repaired: {results['swarm'].final:.3f} with the controller, "
                        f"{results['alone'].final:.3f} without")  # fmt: skip
    device = _device()
    if device != sizes.device:
        failures.append(f"the recipe trained on {device}")
    figures: dict[str, Any] = {
        "device": device,
        "accuracy_at_start": round(accuracies[0], 4),
        "accuracy_with_controller": round(results["swarm"].final, 4),
        "accuracy_alone": round(results["alone"].final, 4),
        "steps": sizes.drill_steps,
        "seconds_with_controller": round(results["swarm"].seconds, 1),
        "seconds_alone": round(results["alone"].seconds, 1),
        "step_s": round(median(steps_s), 4),
        "changes": changes,
        "replay_same": replayed["same"],
        "replayed_decisions": replayed["decisions"],
    }
    return Report(figures, failures=failures)


def _replay(home: str, name: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "oven_controller.cli.main", "replay", name, "--verify", "--json"]
    done = subprocess.run(
        command, env={**os.environ, "OVEN_HOME": home}, capture_output=True, text=True, timeout=REPLAY_TIMEOUT_S,
        check=False,
    )  # fmt: skip
    try:
        fields: dict[str, Any] = json.loads(done.stdout)
    except ValueError as error:
        raise ProcessError(f"`replay` ended with code {done.returncode}: {done.stderr[-500:]}") from error
    return fields


def _device() -> str:
    """The device on which the recipe trained in this process: the card if memory on it was used."""
    import torch

    return "cuda" if torch.cuda.is_available() and torch.cuda.max_memory_allocated() else "cpu"
