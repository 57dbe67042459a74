"""One run from its settings: models are connected, questions put, tables written. For `supervise run` and `grid`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from oven_core.terminal_text import clean
from oven_llm.experiments.experiment import Done, Experiment, Models
from oven_llm.experiments.run_folder import RunConfig, RunFolder
from oven_llm.experiments.sample import Posed
from oven_llm.providers.budget import Budget
from oven_llm.supervisor.configured_models import configured_model
from oven_llm.supervisor.log import Role, lock
from oven_llm.supervisor.models import ModelHandler
from oven_runs.home.model_spend import Cap
from oven_runs.settings.committee_settings import BudgetSettings

SPEND: Final = "spend.sqlite"
VERDICTS: Final[dict[str, Any]] = {"temperature": 0.0, "account": "judge"}
"""Options of the judge's handler: a verdict is to be the same each time."""


def check(config: RunConfig) -> None:
    """Raises ConfigError for what would keep a run from beginning: no key, no SDK, a budget that cannot be kept."""
    with _models(None, config):
        pass


def measure(folder: RunFolder, config: RunConfig, questions: Sequence[Posed]) -> Done:
    """Runs, or continues, what `config` says. Raises ConfigError, StoreInUseError while another process does, and
    OSError."""
    try:
        with lock(folder.path), _models(folder.path, config) as models:
            return Experiment(folder, config, models, _tell).run(questions)
    except (KeyboardInterrupt, OSError):  # OSError: a full disk
        _tell(f"interrupted; continue: oven-controller supervise run --resume {folder.path}")
        raise


@contextlib.contextmanager
def _models(folder: Path | None, config: RunConfig) -> Iterator[Models]:
    """Connected, behind one budget, which is kept in the folder. Raises ConfigError."""
    spend = None if folder is None else folder / SPEND
    with contextlib.ExitStack() as exits:
        caps = [Cap(BudgetSettings(usd=config.budget_usd), "--budget-usd")]
        budget = exits.enter_context(Budget(caps, spend))

        def handler(role: Role, model: str, at: tuple[str, str], **options: Any) -> ModelHandler:
            given = {"account": role, **options}
            return exits.enter_context(configured_model(role, model, *at, budget=budget, **given))

        first = config.base_url, config.key_env
        other = (config.worker_base_url, config.worker_key_env) if config.worker_base_url else first
        yield Models(
            handler("supervisor", config.supervisor_model, first),
            handler("worker", config.worker_model, other),
            handler("worker", config.judge_model, first, **VERDICTS) if config.judge_model else None,
        )


def _tell(line: str) -> None:
    print(clean(line), file=sys.stderr, flush=True)
