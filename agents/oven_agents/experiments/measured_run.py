"""One run from its settings: models are connected, questions put, tables written. For `supervise run` and `grid`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from oven_agents.experiments.experiment import Done, Experiment, Models
from oven_agents.experiments.run_folder import RunConfig, RunFolder
from oven_agents.experiments.sample import Posed
from oven_agents.providers.budget import Budget
from oven_agents.supervisor.models import OpenAIHandler
from oven_controller.errors import ConfigError
from oven_controller.terminal_text import clean

SPEND: Final = "spend.sqlite"
SUPERVISOR: Final = {"temperature": 0.7, "max_tokens": 2048}
WORKER: Final = {"temperature": 0.2, "max_tokens": 512}
"""As in the source system."""
JUDGE: Final = {"temperature": 0.0, "max_tokens": 512}
"""A verdict is to be the same each time."""


def measure(folder: RunFolder, config: RunConfig, questions: Sequence[Posed]) -> Done:
    """Runs, or continues, what `config` says. Raises ConfigError and OSError."""
    with _models(folder.path, config) as models:
        return Experiment(folder, config, models, _tell).run(questions)


@contextlib.contextmanager
def _models(folder: Path, config: RunConfig) -> Iterator[Models]:
    """Connected, behind one budget. Raises ConfigError: no key, no SDK, no price where US dollars are capped."""
    key = _key(config)
    with contextlib.ExitStack() as exits:
        budget = exits.enter_context(Budget(config.budget_usd, path=folder / SPEND, called="--budget-usd"))

        def handler(model: str, account: str, options: dict[str, float]) -> OpenAIHandler:
            return exits.enter_context(
                OpenAIHandler(model, config.base_url, api_key=key, budget=budget, account=account, **options)
            )

        yield Models(
            handler(config.supervisor_model, "supervisor", SUPERVISOR),
            handler(config.worker_model, "worker", WORKER),
            handler(config.judge_model, "judge", JUDGE) if config.judge_model else None,
        )


def _key(config: RunConfig) -> str | None:
    """None: by the address. Raises ConfigError where the variable that was named is not set."""
    if not config.key_env:
        return None
    if not (key := os.environ.get(config.key_env, "").strip()):
        raise ConfigError(f"--key-env {config.key_env}: the environment variable is not set; export it")
    return key


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
