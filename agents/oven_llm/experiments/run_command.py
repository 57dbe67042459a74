"""`supervise run`: a supervisor and a worker on a task's questions, with baselines beside them."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from oven_core.errors import ConfigError
from oven_core.plugged_command import PluggedCommand
from oven_core.terminal_text import say
from oven_llm.experiments.analysis import analysed
from oven_llm.experiments.analysis_table import table
from oven_llm.experiments.experiment import Done
from oven_llm.experiments.measured_run import check, measure
from oven_llm.experiments.run_folder import RunConfig, RunFolder, new_folder
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
    digest,
    examples_for,
    log_dir,
    questions,
    refuse_beside_resume,
    task_named,
)


def _run(
    context: typer.Context,
    task: TaskName = "qasper",
    supervisor_model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", show_default="$SUPERVISOR_MODEL or Llama 3.3 70B", help="Writes programs."),
    ] = None,
    worker_model: Annotated[
        str | None, typer.Option(metavar="MODEL", show_default="$WORKER_MODEL or Llama 3.1 8B", help="Reads chunks.")
    ] = None,
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
        Path | None, typer.Option(metavar="DIR", help="Continue this run, with the options that it began with.")
    ] = None,
    as_json: Json = False,
) -> int:
    if resume is not None:
        refuse_beside_resume(context)
        folder = RunFolder(resume)
        return reported(folder, continued(folder, budget_usd), as_json)
    asked = Asked(
        task, judge_model, count, seed, max_iterations, data, base_url, worker_base_url, key_env, worker_key_env,
        num_distractors, worker_ctx_k, concurrency, budget_usd, prompt, text_evidence_only,
        baselines,
    )  # fmt: skip
    found = task_named(task)
    examples = examples_for(found, data, seed, count)
    config = asked.config(supervisor_model, worker_model, examples)
    put = questions(config, found, examples)
    check(config)
    folder = RunFolder(new_folder(log_dir(log_to), task, datetime.now()))
    folder.configure(config)
    return reported(folder, measure(folder, config, put), as_json)


def continued(folder: RunFolder, budget_usd: float | None = None) -> Done:
    """The run of a folder, to its end; `budget_usd` takes the place of its budget. Raises ConfigError where the data
    are not those that it began with."""
    config = folder.config()
    if budget_usd is not None:
        config = config.model_copy(update={"budget_usd": budget_usd})
        check(config)  # one that cannot be kept must not take the place of one that was
        folder.configure(config)
    task = task_named(config.task)
    examples = examples_for(task, Path(config.data) if config.data else None, config.seed, config.n)
    _refuse_other_data(folder, config, digest(examples))
    return measure(folder, config, questions(config, task, examples))


def _refuse_other_data(folder: RunFolder, config: RunConfig, found: str) -> None:
    if found != config.data_sha256:
        what = config.data or f"the questions that Python {config.python} made"
        raise ConfigError(
            f"{folder.path} cannot be continued: {what} changed since it began; bring them back, or start anew"
        )


def reported(folder: RunFolder, done: Done, as_json: bool) -> int:
    """Prints the analysis. The exit code: 0, or 3 where calls failed."""
    rows = analysed(folder.path) if done.outcomes else []
    unsettled = sum(not one.settled for one in done.outcomes.values())
    if as_json:
        print(
            json.dumps(
                {
                    "folder": str(folder.path),
                    "stopped": done.stopped,
                    "unsettled": unsettled,
                    "rows": list(map(asdict, rows)),
                }
            )
        )
    else:
        say(*(table(rows) if rows else []))
        if unsettled or done.stopped:
            why = f": {done.stopped}" if done.stopped else ""
            say(f"{unsettled} of {len(done.outcomes)} questions had failures{why}")
            say(f"continue: oven-controller supervise run --resume {folder.path}")
        say(f"logs: {folder.path}")
    return 3 if unsettled or done.stopped else 0


RUN = PluggedCommand(
    "supervise",
    "run",
    "Measure a supervisor and a worker on a task's questions, beside baselines without a supervisor.",
    "--task stdlib -n 20 --base-url http://127.0.0.1:8000/v1 --judge-model none",
    _run,
)
