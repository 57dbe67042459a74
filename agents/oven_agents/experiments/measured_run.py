"""One run from its settings: models are connected, questions put, tables written. For `supervise run` and `grid`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from oven_agents.experiments.experiment import Done, Experiment, Models
from oven_agents.experiments.run_folder import RunConfig, RunFolder
from oven_agents.experiments.sample import Posed
from oven_agents.providers.budget import Budget
from oven_agents.supervisor.models import OpenAIHandler
from oven_controller.errors import ConfigError
from oven_controller.terminal_text import clean

SPEND: Final = "spend.sqlite"
TOGETHER: Final = "https://api.together.xyz/v1"
TOGETHER_KEY: Final = "TOGETHER_API_KEY"


class Sampling(NamedTuple):
    """How a role's answers are drawn."""

    temperature: float
    max_tokens: int


SUPERVISOR: Final = Sampling(0.7, 2048)
WORKER: Final = Sampling(0.2, 512)
"""As in the source system."""
JUDGE: Final = Sampling(0.0, 512)
"""A verdict is to be the same each time."""


def check(config: RunConfig) -> None:
    """Raises ConfigError for what would keep a run from beginning: no key, no SDK, a budget that cannot be kept."""
    with _models(None, config):
        pass


def measure(folder: RunFolder, config: RunConfig, questions: Sequence[Posed]) -> Done:
    """Runs, or continues, what `config` says. Raises ConfigError and OSError."""
    with _models(folder.path, config) as models:
        return Experiment(folder, config, models, _tell).run(questions)


@contextlib.contextmanager
def _models(folder: Path | None, config: RunConfig) -> Iterator[Models]:
    """Connected, behind one budget, which is kept in the folder. Raises ConfigError."""
    key, spend = _key(config), None if folder is None else folder / SPEND
    with contextlib.ExitStack() as exits:
        budget = exits.enter_context(Budget(config.budget_usd, path=spend, called="--budget-usd"))

        def handler(model: str, account: str, sampling: Sampling) -> OpenAIHandler:
            made = OpenAIHandler(model, config.base_url, *sampling, key, budget=budget, account=account)
            return exits.enter_context(made)

        yield Models(
            handler(config.supervisor_model, "supervisor", SUPERVISOR),
            handler(config.worker_model, "worker", WORKER),
            handler(config.judge_model, "judge", JUDGE) if config.judge_model else None,
        )


def _key(config: RunConfig) -> str | None:
    """None: by the address. A key goes to its provider's address, or to the one that it is named for. Raises
    ConfigError where the variable is not set."""
    name = config.key_env or (TOGETHER_KEY if config.base_url.rstrip("/") == TOGETHER else "")
    if not name:
        return None
    if not (key := os.environ.get(name, "").strip()):
        raise ConfigError(
            f"no key for {config.base_url}: the environment variable {name} is not set; export it, name another with "
            "--key-env, or another endpoint with --base-url"
        )
    return key


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
