"""Checks one stack from within its environment: `python -m oven_bench.stacks.checks KIND FILE`.

Each training runs three times from one seed: alone, attached in `observe` with the real mesh and all agents, and with
one agent whose decision is applied. The first two must be equal bit for bit. The log of the third must have a receipt
with the value that was read back, and its replay must give the same decisions.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import random
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

from oven_agents import Agent, Window
from oven_bench.configurations import comparison
from oven_bench.configurations.configuration import Configuration, load
from oven_bench.gym.arms.controller import LoopLink, MeshArm
from oven_bench.gym.closed_loop import AgentParticipant
from oven_bench.stacks.environments import ROOT
from oven_core.protocol.messages import Observation, Receipt, Vote
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

TABLE: Final = ROOT / "tests" / "foreign" / "stack_configurations.py"
LIGHTNING_EXAMPLE: Final = ROOT / "examples" / "lightning_module.py"
RUN: Final = "stack"
LOGGER: Final = "oven.learner"
LR_SCALE: Final = "optimizer.lr_scale"


class Halving(Agent):
    """Halves the learning rate once, so that a run has exactly one decision."""

    needs = ("loss",)
    moves = (LR_SCALE,)

    def vote(self, window: Window) -> Vote | None:
        if window.knobs[LR_SCALE].number != 1.0:
            return None
        return window.propose(LR_SCALE, 0.5, confidence=0.9, why="half of the initial rate", target="loss", horizon=4)


@dataclass
class Outcome:
    """The result of one training."""

    name: str
    failure: str = ""
    """The reason why the training fails without us, or an empty string."""
    observed: str = ""
    """`equal`, or the first difference between the training alone and the attached one."""
    decision: str = ""
    """The receipt, and the rate of the last step relative to that of the first."""
    replayed: str = ""
    """`equal`, or the first difference between the log and its replay."""
    sentences: list[str] = field(default_factory=list)
    """What `attach` says is switched off."""


def check_trainers(kind: str) -> list[Outcome]:
    """Check the configurations whose names begin with a trainer of this kind."""
    return [_check(configuration) for configuration in load(TABLE) if (kind == "trl") != _is_plain(configuration)]


def _is_plain(configuration: Configuration) -> bool:
    return configuration.name.startswith("trainer/")


def _check(configuration: Configuration) -> Outcome:
    with comparison.collected_messages(LOGGER, logging.WARNING) as sentences:
        compared = comparison.play(configuration)
    if compared.outcome == "cannot run here":
        return Outcome(configuration.name, failure=compared.why)
    outcome = Outcome(configuration.name, observed=compared.why or compared.outcome, sentences=sentences)
    link = _link_with_one_decision()
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        configuration.train(Path(scratch), configuration.make, comparison.attachment(link))
    return _add_decision(outcome, link)


def check_lightning() -> list[Outcome]:
    """Check the example's LightningModule, without its evaluations and clipping, which the loop alone lacks."""
    alone, observing, deciding = _fit_lightning(None), _observing_link(), _link_with_one_decision()
    with comparison.collected_messages(LOGGER, logging.WARNING) as sentences:
        attached = _fit_lightning(observing)
    outcome = Outcome("lightning/example", sentences=sentences)
    from oven_bench.configurations.bitwise_diff import first_difference

    outcome.observed = str(first_difference(alone, attached) or "equal")
    _fit_lightning(deciding)
    return [_add_decision(outcome, deciding)]


def _fit_lightning(link: LoopLink | None) -> dict[str, Any]:
    """Fit the example's module with one seed, with our callback if there is a link, and return its state."""
    import numpy as np
    import torch
    from lightning import Trainer, seed_everything
    from torch.utils.data import DataLoader, TensorDataset

    from oven_bench.configurations.bitwise_diff import copied_leaves
    from oven_learner.custom_loop import connect
    from oven_learner.integrations import lightning

    example = _load_module(LIGHTNING_EXAMPLE)
    callbacks = []
    if link is not None:
        vars(lightning)["connect"] = partial(connect, link=link)
        callbacks.append(lightning.callback_class("lightning.pytorch")())

    class Sums(example.Sums):  # type: ignore[misc, name-defined]
        """The example's module with a constant rate, so that the decision's effect on the rate is exact."""

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

    seed_everything(0, verbose=False)
    x, module = torch.randn(256, 8), Sums()
    trainer = Trainer(
        max_steps=12, accelerator="cpu", callbacks=callbacks, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False,
    )  # fmt: skip
    trainer.fit(module, DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=16, shuffle=True))
    return copied_leaves(
        {
            "model": module.state_dict(),
            "optimizer": trainer.optimizers[0].state_dict(),
            "step": trainer.global_step,
            "random": {
                "python": repr(random.getstate()),
                "numpy": np.random.get_state(),
                "torch": torch.get_rng_state(),
            },
        }
    )


def _observing_link() -> LoopLink:
    """Return a link to the real mesh and all agents, in `observe`."""
    return MeshArm("observe", with_graph=True, autonomy="observe").link(RUN, Random(comparison.SEED))


def _link_with_one_decision() -> LoopLink:
    def rules(announced: Rules) -> Rules:
        return announced.model_copy(update={"autonomy": "auto", "evidence_kinds": 1}).with_grants_for(["halving"])

    return LoopLink(RUN, [AgentParticipant("halving", Halving())], rules)


def _add_decision(outcome: Outcome, link: LoopLink) -> Outcome:
    bodies = [event.body for event in link.events]
    receipts = [body for body in bodies if isinstance(body, Receipt)]
    rates = [body.metrics["learning_rate"] for body in bodies if isinstance(body, Observation)]
    outcome.decision = "; ".join(f"{receipt.status}, read back as {receipt.after}" for receipt in receipts) or "none"
    outcome.decision += f", rate × {rates[-1] / rates[0]:g}"
    report = replay(link.events, RUN)
    is_equal = report.same and report.adopted == len(receipts) == 1
    outcome.replayed = "equal" if is_equal else f"differs: {report.first or report}"
    return outcome


def _load_module(path: Path) -> Any:
    import importlib.util

    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    kind, file = sys.argv[1:]
    comparison.quiet()
    outcomes = check_lightning() if kind == "lightning" else check_trainers(kind)
    Path(file).write_text(json.dumps([asdict(outcome) for outcome in outcomes]))


if __name__ == "__main__":
    main()
