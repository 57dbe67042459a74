"""Options that `supervise run` and `supervise grid` share, and the run's settings that they make."""

from __future__ import annotations

import hashlib
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Final

import typer

from oven_core import plugins
from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_llm.experiments.run_folder import RunConfig
from oven_llm.experiments.sample import Posed, drawn, posed
from oven_llm.supervisor.configured_models import BASE_URL, NO_WORKER_URL, USUAL
from oven_llm.supervisor.log import Role
from oven_llm.tasks.example import Example, Task
from oven_llm.tasks.official_score import without_figures

JUDGE: Final = "Qwen/Qwen3-235B-A22B-Instruct-2507-tput"
NO_JUDGE: Final = "none"
"""--judge-model that asks none: accuracy is exact match then."""
MADE: Final = 1000
"""Questions of a task that makes its own, where -n is -1."""

BESIDE_RESUME: Final = {"resume", "budget_usd", "as_json"}
"""Options that --resume takes beside it; the run was configured with all others."""

TaskName = Annotated[str, typer.Option("--task", metavar="NAME", help="Task: qasper, stdlib, or an installed one.")]
JudgeModel = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Model that grades answers; none: exact match.", show_default=JUDGE),
]
Count = Annotated[int, typer.Option("-n", metavar="N", help="Questions; -1: all.")]
Seed = Annotated[int, typer.Option(help="Random seed of the questions.")]
Iterations = Annotated[int, typer.Option("--max-iterations", min=1, help="Turns of the supervisor for a question.")]
Data = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Data file of the task.", show_default="stdlib makes its own")
]
BaseUrl = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Endpoint with chat completions.", show_default=f"$BASE_URL or {BASE_URL}"),
]
WorkerUrl = Annotated[
    str | None,
    typer.Option("--worker-base-url", metavar="URL", help="Endpoint of the worker.", show_default="the same"),
]
KeyEnv = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Environment variable with the key of --base-url.",
        show_default="by its address",
    ),
]
WorkerKeyEnv = Annotated[
    str | None,
    typer.Option("--worker-key-env", metavar="NAME", help="That of --worker-base-url.", show_default="by its address"),
]
Distractors = Annotated[int, typer.Option("--num-distractors", min=0, help="Other documents in each context.")]
WorkerCtx = Annotated[int, typer.Option("--worker-ctx-k", min=1, help="Thousands of tokens of the worker's window.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Questions at a time.")]
BudgetUsd = Annotated[
    float | None, typer.Option("--budget-usd", metavar="USD", help="Most US dollars of a run.", show_default="no cap")
]
Prompt = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Text that is appended to the supervisor's system prompt.")
]
LogDir = Annotated[
    Path | None, typer.Option("--log-dir", metavar="DIR", help="Folder of runs.", show_default="$LOG_DIR or logs")
]
TextEvidence = Annotated[
    bool,
    typer.Option("--text-evidence-only", help="Score evidence without figures and tables, as the official option."),
]
Baselines = Annotated[bool, typer.Option(help="Also ask without a supervisor: text cut, keyword retrieval, no model.")]
Json = Annotated[bool, typer.Option("--json", help="Print the analysis as JSON.")]


@dataclass(frozen=True)
class Asked:
    """What the options ask for, but for the models."""

    task: str
    judge_model: str | None
    n: int
    seed: int
    max_iterations: int
    data: Path | None
    base_url: str | None
    worker_base_url: str | None
    key_env: str | None
    worker_key_env: str | None
    num_distractors: int
    worker_ctx_k: int
    concurrency: int
    budget_usd: float | None
    prompt: Path | None
    text_evidence_only: bool
    baselines: bool

    def config(self, supervisor: str | None, worker: str | None, examples: Sequence[Example]) -> RunConfig:
        """For models that are named, or that the environment names. Raises ConfigError for options that do not fit."""
        if self.worker_key_env and not self.worker_base_url:
            raise ConfigError(NO_WORKER_URL)
        judge = self.judge_model or JUDGE
        return RunConfig(
            task=self.task,
            supervisor_model=_model("supervisor", supervisor),
            worker_model=_model("worker", worker),
            judge_model="" if judge == NO_JUDGE else judge,
            base_url=self.base_url or os.environ.get("BASE_URL") or BASE_URL,
            worker_base_url=self.worker_base_url or "",
            key_env=self.key_env or "",
            worker_key_env=self.worker_key_env or "",
            data=str(self.data.absolute()) if self.data is not None else "",
            data_sha256=digest(examples),
            n=self.n,
            seed=self.seed,
            max_iterations=self.max_iterations,
            num_distractors=self.num_distractors,
            worker_ctx_k=self.worker_ctx_k,
            concurrency=self.concurrency,
            budget_usd=self.budget_usd,
            prompt=_prompt(self.prompt) if self.prompt is not None else "",
            text_evidence_only=self.text_evidence_only,
            baselines=self.baselines,
            version=version("oven-controller"),
            python=platform.python_version(),
        )


def _prompt(path: Path) -> str:
    try:
        return read_file(path, "--prompt").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"--prompt {path} is not UTF-8 text (byte {error.start}); convert it") from None


def _model(role: Role, named: str | None) -> str:
    return named or os.environ.get(USUAL[role].variable) or USUAL[role].model


def task_named(name: str) -> Task:
    """Raises UnknownNameError with the nearest names."""
    found: Task = plugins.load("tasks", "task", name)
    return found


def examples_for(task: Task, data: Path | None, seed: int, n: int) -> list[Example]:
    """The examples of which `n` are drawn. Raises ConfigError."""
    if n != -1 and n < 1:
        raise ConfigError(f"-n {n}: give how many questions, or -1 for all")
    return task.examples(data, seed, MADE if n == -1 else n)


def questions(config: RunConfig, task: Task, examples: Sequence[Example]) -> list[Posed]:
    """As they are put to the models. Raises ConfigError."""
    chosen = drawn(examples, config.n, config.seed)
    if config.text_evidence_only:
        chosen = [replace(one, references=tuple(map(without_figures, one.references))) for one in chosen]
    return posed(chosen, examples, task.instructions, config.num_distractors, config.seed)


def log_dir(given: Path | None) -> Path:
    """The folder of runs."""
    return given or Path(os.environ.get("LOG_DIR") or "logs")


def digest(examples: Sequence[Example]) -> str:
    """Of the data: the questions, documents and answers."""
    return hashlib.sha256(json.dumps([asdict(one) for one in examples]).encode(errors="replace")).hexdigest()


def refuse_beside_resume(context: typer.Context) -> None:
    """Raises ConfigError for options that a run which is continued would not follow."""
    given = []
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if name not in BESIDE_RESUME and source is not None and source.name == "COMMANDLINE":
            given.append(max(option.secondary_opts if context.params[name] is False else option.opts, key=len))
    if given:
        raise ConfigError(
            f"--resume continues with the options that the run began with: leave out {', '.join(given)}, or begin anew "
            "without --resume"
        )
