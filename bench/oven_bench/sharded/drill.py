"""A drill of the recipe `grpo` on several ranks under FSDP2, with the whole stack, next to the same drill on one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from oven_bench.worker_processes import ONE_THREAD
from oven_core.errors import ProcessError

TIMEOUT_S = 1800
SEED = 1


def run(start: str, ranks: int, steps: int, home: Path) -> dict[str, Any]:
    """Train the drill, and return its row of the table. Runs in the same `home` share the warm-up policy. Raises
    ProcessError if the run fails."""
    name = f"{start.removeprefix('drill:')}-{ranks}"
    folder = home / "work" / name
    folder.mkdir(parents=True)
    torchrun = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d",
        "--rdzv-endpoint", "127.0.0.1:0", "--local-addr", "127.0.0.1",
    ]  # fmt: skip
    job = ["-m", "oven_bench.sharded.drill_job", start, str(SEED), str(steps), str(home / "cache"), str(folder)]
    began = time.perf_counter()
    _controller(home, "run", "--set", "rules.autonomy=auto", "--quiet", "--run", name, "--", *torchrun, *job)
    seconds = time.perf_counter() - began
    replayed = json.loads(_controller(home, "replay", name, "--verify", "--json"))
    entries = [json.loads(line) for line in (home / "runs" / name / "log.jsonl").read_text().splitlines()]
    metrics = [entry["data"]["metrics"] for entry in entries if entry["type"] == "Observation"]
    accuracies = [values["eval/accuracy"] for values in metrics if "eval/accuracy" in values]
    receipts = [entry["data"] for entry in entries if entry["type"] == "Receipt"]
    settings = [(folder / f"rates-{rank}.json").read_text() for rank in range(ranks)]
    return {
        "start": start,
        "ranks": ranks,
        "accuracy at start": round(accuracies[0], 3),
        "at the end": round(accuracies[-1], 3),
        "applied": sum(receipt["status"] == "applied" for receipt in receipts),
        "settings equal on all ranks": len(set(settings)) == 1,
        "replay equal": replayed["same"],
        "seconds": round(seconds),
    }


def _controller(home: Path, *arguments: str) -> str:
    """Run `oven-controller` and return its output."""
    environment = {**os.environ, **ONE_THREAD, "OVEN_HOME": str(home), "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, "-m", "oven_controller.cli.main", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    if done.returncode:
        output = (done.stdout + done.stderr)[-800:]
        raise ProcessError(f"`oven-controller {' '.join(arguments[:2])}` ended with code {done.returncode}: {output}")
    return done.stdout
