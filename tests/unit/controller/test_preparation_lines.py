"""The lines of `up` about what the learner does before its run starts."""

from __future__ import annotations

import asyncio
from pathlib import Path

from oven_controller.stack.terminal_output import report_preparation
from oven_runs.home.run_folder import PREPARING, Home


async def test_each_stage_is_printed_until_the_run_starts(tmp_path: Path) -> None:
    folder = Home(tmp_path).create("demo", "oracle")
    log, starts, lines = folder.logs / "learner.log", [object()], []

    def write(text: str) -> None:
        with log.open("a") as out:
            out.write(f"2026-01-01 INFO {text}\n")

    def on_line(line: str) -> None:
        lines.append(line)
        if len(lines) == 1:
            write(f"{PREPARING}warm-up: step 0 of 9")
        elif len(lines) == 2:
            write(f"{PREPARING}capturing activations: text 0 of 5")
        else:
            starts[0] = object()

    write(f"{PREPARING}warm-up: step 5 of 9")  # of an earlier learner of this run
    task = asyncio.create_task(report_preparation(folder, on_line, lambda: starts[0], folder.preparation()))
    await asyncio.sleep(0)
    write(f"{PREPARING}loading the recipe oracle")
    async with asyncio.timeout(10):
        await task
    assert lines == [
        "learner  loading the recipe oracle",
        "learner  warm-up: step 0 of 9",
        "learner  capturing activations: text 0 of 5",
    ]
