"""Trains one configuration twice, alone and attached in `observe` to the real mesh and agents, and compares both."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import random
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from oven_bench.configurations.configuration import Attach, Configuration, load
from oven_bench.worker_processes import ONE_THREAD
from oven_core.protocol.messages import Decision, Observation, Receipt, RunStarted, Vote

if TYPE_CHECKING:
    from oven_bench.configurations.bitwise_diff import Leaves
    from oven_bench.gym.arms.controller import LoopLink

SEED: Final = 100
"""Seed of both trainings."""
Outcome: TypeAlias = Literal["equal", "differs", "differs on purpose", "failed", "cannot run here"]

OBSERVED: Final = "observe: would have"
"""Text in the reason of a decision that `observe` rejects."""
WRONG: Final = ("differs", "failed")


@dataclass(frozen=True)
class Result:
    """The result of one configuration, in plain values."""

    name: str
    outcome: Outcome
    why: str = ""
    """The first difference, or the failure."""
    ticks: int = 0
    """Steps that the mesh observed."""
    steps: int = 0
    """Steps by the trainer's own count."""
    compared: int = 0
    """Number of compared tensors and values."""
    votes: int = 0
    barred: int = 0
    """Decisions that `observe` rejected."""
    gradient: float = 0.0
    """Largest observed gradient norm; 0 if nothing was trained."""
    seconds: float = 0.0

    def line(self) -> str:
        """The configuration and its result, on one line."""
        if self.outcome == "equal":
            text = f"equal ({self.compared} values; {self.ticks} ticks, {self.votes} votes, {self.barred} barred)"
        else:
            text = f"{self.outcome.upper() if self.outcome in WRONG else self.outcome}: {self.why}"
        return f"{self.name}: {text}  [{self.seconds:.1f} s]"


def quiet() -> None:
    """Before torch is imported: allow one thread, no model hub and no telemetry."""
    os.environ.update(ONE_THREAD, HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TRL_EXPERIMENTAL_SILENCE="1")


def play_named(table: Path, name: str) -> Result:
    """Play the configuration of this name, in a worker process. Raises ConfigError if the table cannot be loaded."""
    quiet()
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        return play(next(configuration for configuration in load(table) if configuration.name == name))


def play(configuration: Configuration) -> Result:
    """Train and compare. A training that raises is a result as well."""
    import torch

    from oven_bench.gym.arms.controller import MeshArm

    torch.set_num_threads(1)
    began, name = time.monotonic(), configuration.name
    observe = MeshArm("mesh+kg+observe", with_graph=True, autonomy="observe")

    def result(outcome: Outcome, why: str = "", **figures: Any) -> Result:
        return Result(name, outcome, why, seconds=time.monotonic() - began, **figures)

    try:
        alone, _ = trained(configuration, lambda trainer: None)
    except Exception as error:
        return result("cannot run here", _error_text(error))
    link = observe.link(f"configuration-{name.replace('/', '-')}", Random(SEED))
    try:
        with collected_messages("oven", logging.ERROR) as logged:  # such as an agent that raised
            attached, steps = trained(configuration, attachment(link))
    except Exception as error:
        return result("failed", f"attached, it raised {_error_text(error)} at {_where(error)}")
    if logged:
        return result("failed", f"attached, it logged an error: {' '.join(logged[0].split())[:300]}")
    figures = compared(result, link, alone, attached, steps)
    if figures.outcome == "differs" and configuration.on_purpose:
        return replace(figures, outcome="differs on purpose", why=f"{configuration.on_purpose} ({figures.why})")
    return figures


@contextlib.contextmanager
def collected_messages(logger_name: str, level: int) -> Iterator[list[str]]:
    """The messages of at least this level that are logged meanwhile."""
    messages: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler, logger = Keeping(level), logging.getLogger(logger_name)
    logger.addHandler(handler)
    try:
        yield messages
    finally:
        logger.removeHandler(handler)


def attachment(link: LoopLink) -> Attach:
    from oven_learner.hf.attach import attach

    return lambda trainer: attach(trainer, link=link)


def compared(result: Callable[..., Result], link: LoopLink, alone: Leaves, attached: Leaves, steps: int) -> Result:
    """The result of two finished trainings. It fails if the mesh did not observe all steps."""
    from oven_bench.configurations.bitwise_diff import first_difference

    bodies = [event.body for event in link.events]
    seen = [body for body in bodies if isinstance(body, Observation)]
    decisions = [body for body in bodies if isinstance(body, Decision)]
    norms = [body.metrics.get("grad_norm", 0.0) for body in seen]
    figures: dict[str, Any] = {
        "gradient": max((norm for norm in norms if math.isfinite(norm)), default=0.0),
        "ticks": len(seen),
        "steps": steps,
        "compared": len(alone),
        "votes": sum(isinstance(body, Vote) for body in bodies),
        "barred": sum(decision.verdict == "rejected" and OBSERVED in decision.reason for decision in decisions),
    }
    if modes := {body.rules.autonomy for body in bodies if isinstance(body, RunStarted)} - {"observe"}:
        return result("failed", f"the run was in {', '.join(modes)}", **figures)
    if any(isinstance(body, Receipt) and body.status == "applied" for body in bodies):
        return result("failed", "a decision was applied", **figures)
    if not seen or seen[-1].step != steps:
        last = seen[-1].step if seen else "none"
        return result("failed", f"the last step that was observed is {last}; {steps} were trained", **figures)
    if difference := first_difference(alone, attached):
        return result("differs", str(difference), **figures)
    return result("equal", **figures)


def trained(configuration: Configuration, attach: Attach) -> tuple[Leaves, int]:
    """Train once, and return the results and the trainer's count of its steps."""
    import numpy as np
    from transformers import set_seed
    from transformers.utils import logging as theirs

    from oven_bench.configurations.bitwise_diff import leaves

    theirs.set_verbosity_error()  # type: ignore[no-untyped-call]
    theirs.disable_progress_bar()  # type: ignore[no-untyped-call]
    before = random.getstate(), np.random.get_state()
    try:
        with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
            set_seed(SEED)
            trainer = configuration.train(Path(scratch), configuration.make, attach)
            return leaves(trainer, Path(scratch)), int(trainer.state.global_step)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])


def _error_text(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())[:200]


def _where(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"
