"""`supervise grid`: a run for each pair of a supervisor and a worker, and one table of them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated, Final

import typer

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_core.plugged_command import PluggedCommand
from oven_core.terminal_text import say
from oven_llm.experiments.analysis import analysed
from oven_llm.experiments.analysis_table import table
from oven_llm.experiments.measured_run import check
from oven_llm.experiments.run_command import continued
from oven_llm.experiments.run_folder import RunFolder, new_folder
from oven_llm.experiments.run_options import (
    Asked,
    Baselines,
    BaseUrl,
    BudgetUsd,
    Concurrency,
    Count,
    Data,
    Distractors,
    Iterations,
    Json,
    JudgeModel,
    KeyEnv,
    LogDir,
    Prompt,
    Seed,
    TaskName,
    TextEvidence,
    WorkerCtx,
    WorkerKeyEnv,
    WorkerUrl,
    examples_for,
    log_dir,
    questions,
    refuse_beside_resume,
    task_named,
)

GRID: Final = "grid.json"


def _grid(
    context: typer.Context,
    supervisor_model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="A supervisor; repeatable.", show_default=False)
    ] = None,
    worker_model: Annotated[
        list[str] | None, typer.Option(metavar="MODEL", help="A worker; repeatable.", show_default=False)
    ] = None,
    task: TaskName = "qasper",
    judge_model: JudgeModel = None,
    count: Count = 20,
    seed: Seed = 42,
    max_iterations: Iterations = 15,
    data: Data = None,
    base_url: BaseUrl = None,
    worker_base_url: WorkerUrl = None,
    key_env: KeyEnv = None,
    worker_key_env: WorkerKeyEnv = None,
    num_distractors: Distractors = 0,
    worker_ctx_k: WorkerCtx = 8,
    concurrency: Concurrency = 4,
    budget_usd: BudgetUsd = None,
    prompt: Prompt = None,
    text_evidence_only: TextEvidence = False,
    baselines: Baselines = True,
    log_to: LogDir = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Continue a grid: the …-grid.json that it wrote.")
    ] = None,
    as_json: Json = False,
) -> int:
    if resume is not None:
        refuse_beside_resume(context)
        return _reported(_folders(resume), resume, as_json, budget_usd)
    supervisors, workers = list(dict.fromkeys(supervisor_model or ())), list(dict.fromkeys(worker_model or ()))
    if not supervisors or not workers:
        raise ConfigError("a grid needs models: give --supervisor-model and --worker-model, each once or more")
    asked = Asked(
        task, judge_model, count, seed, max_iterations, data, base_url, worker_base_url, key_env, worker_key_env,
        num_distractors, worker_ctx_k, concurrency, budget_usd, prompt, text_evidence_only,
        baselines,
    )  # fmt: skip
    found = task_named(task)
    examples = examples_for(found, data, seed, count)
    folders: list[RunFolder] = []
    for pair in ((supervisor, worker) for supervisor in supervisors for worker in workers):
        config = asked.config(*pair, examples)
        questions(config, found, examples)  # what is wrong is said before the first pair is paid for
        check(config)
        folder = RunFolder(new_folder(log_dir(log_to), task, datetime.now()))
        folder.configure(config)
        folders.append(folder)
    listed = folders[0].path.with_name(f"{folders[0].path.name}-{GRID}")
    write_atomic(listed, json.dumps([str(one.path.absolute()) for one in folders], indent=1) + "\n")
    return _reported(folders, listed, as_json)


def _folders(listed: Path) -> list[RunFolder]:
    """Raises ConfigError for a file that no grid wrote."""
    try:
        return [RunFolder(Path(one)) for one in json.loads(read_file(listed, "the grid"))]
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{listed} is not the list of a grid's runs: {reason(error)}") from error


def _reported(folders: list[RunFolder], listed: Path, as_json: bool, budget_usd: float | None = None) -> int:
    """Runs, or continues, each pair, and prints one table. `budget_usd`: in place of each pair's; None: what it has.
    The exit code: 0, or 3 where calls failed."""
    failed = False
    rows = []
    for folder in folders:
        done = continued(folder, budget_usd)
        failed = failed or bool(done.stopped) or not all(one.settled for one in done.outcomes.values())
        rows += analysed(folder.path) if done.outcomes else []
    if as_json:
        print(json.dumps({"grid": str(listed), "rows": [asdict(row) for row in rows]}))
    else:
        say(*(table(rows) if rows else []))
        if failed:
            say(f"calls failed; continue: oven-controller supervise grid --resume {listed}")
    return 3 if failed else 0


GRID_COMMAND = PluggedCommand(
    "supervise",
    "grid",
    "Measure all pairs of supervisors and workers, a run each.",
    "--task stdlib --supervisor-model large --supervisor-model larger --worker-model small --judge-model none",
    _grid,
)
