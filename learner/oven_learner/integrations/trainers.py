"""Attaches trainers of transformers and TRL when their training begins: those with `report_to="oven"`, and under
`run --auto-attach` all of them.

`Trainer.train` is wrapped, because only then the trainer is complete: subclasses continue after `Trainer.__init__`.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from oven_core.errors import OvenError
from oven_learner.import_hook import report
from oven_learner.ranks import world_size

REPORTER = "oven"
"""The name for `report_to`."""
_MARK = "_oven_train"
"""Attribute of a trainer with the function that trains it: attached, or unchanged."""
_training_count = 0


def is_training() -> bool:
    """Whether a trainer is training in this process."""
    return _training_count > 0


def add_reporter(integrations: Any) -> None:
    """Add the name to those that `report_to` accepts. The callback itself does nothing: `wrap_train` attaches."""
    callback = type("OvenCallback", (integrations.TrainerCallback,), {"__doc__": "Marks a trainer to attach."})
    integrations.INTEGRATION_TO_CALLBACK.setdefault(REPORTER, callback)


def wrap_train(module: Any, *, attach_all: bool) -> None:
    """Wrap `Trainer.train` in transformers' module `trainer`."""
    original = module.Trainer.train

    @functools.wraps(original)
    def train(trainer: Any, *args: Any, **kwargs: Any) -> Any:
        global _training_count
        if _MARK not in vars(trainer):
            setattr(trainer, _MARK, _training_function(trainer, original, attach_all))
        _training_count += 1
        try:
            return getattr(trainer, _MARK)(*args, **kwargs)
        finally:
            _training_count -= 1

    module.Trainer.train = train


def _training_function(trainer: Any, original: Callable[..., Any], attach_all: bool) -> Any:
    """Attach the trainer if that is asked for, and return the function that trains it. A trainer that cannot be
    attached raises if its own arguments ask for it, and trains on its own under `run --auto-attach`."""
    unchanged = types.MethodType(original, trainer)
    is_requested = REPORTER in (trainer.args.report_to or ())
    if not (is_requested or attach_all):
        return unchanged
    from oven_learner.hf.attach import IdleAttachment, attach
    from oven_learner.hf.callback import Attachment

    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        return unchanged  # the script has attached it
    trainer.train = unchanged  # `attach` wraps this one, below the `train` of a subclass
    try:
        attachment = attach(trainer, optional=True)
        attached = trainer.train
    except OvenError as error:
        if is_requested:
            raise
        report(f"{type(trainer).__name__} is not attached: {error}; it trains without the controller")
        return unchanged
    finally:
        del trainer.train
    if not isinstance(attachment, IdleAttachment):
        report_attached(type(trainer).__name__, trainer.accelerator.process_index)
    return attached


def report_attached(name: str, rank: int) -> None:
    """Say in one line what was attached, on rank 0 for all ranks."""
    if rank == 0:
        ranks = f" on {world_size()} ranks" if world_size() > 1 else ""
        report(f"attached to {name}{ranks}")
