"""What a trainer's run goes back to: copies in memory where they fit, else its own checkpoints and a restart."""

from __future__ import annotations

import math
import os
from collections.abc import Callable

from transformers import Trainer

from oven_learner.hf import trainer_snapshot
from oven_learner.hf.checkpoints import TrainerCheckpoints
from oven_learner.ranks import Ranks
from oven_learner.rollback.in_memory import CREDIT_S, KEPT, Snapshots
from oven_learner.rollback.kept_state import Rollback
from oven_learner.rollback.on_disk import OnDisk, Resumable
from oven_runs.home import relaunch


def choose_rollback(
    trainer: Trainer,
    checkpoints: TrainerCheckpoints,
    ranks: Ranks,
    *,
    lockstep: bool,
    resumable: bool,
    ask: Callable[[], object],
    trained: Callable[[], int],
) -> Rollback | None:
    """None where neither is possible: too large to copy, and no one who starts the process again, or checkpoints
    without an optimizer. `resumable`: checkpoints are taken beside copies too, for a process that is killed. `ask` has
    the trainer save after this step; `trained`: gradient steps of the run so far."""
    copies = None
    if trainer_snapshot.fits(trainer, KEPT + 2):
        # In lockstep what is gone back to must not depend on the clock.
        copies = Snapshots(
            lambda: trainer_snapshot.take(trainer),
            lambda kept: trainer_snapshot.restore(trainer, kept),
            credit=math.inf if lockstep else CREDIT_S,
            share=ranks.same,
        )
        if not resumable:
            return copies
    if checkpoints.run_folder is None or relaunch.OFFERED not in os.environ or trainer.args.save_only_model:
        return copies
    disk = OnDisk(
        checkpoints.output,
        checkpoints.run,
        checkpoints.run_folder,
        training=checkpoints.training,
        size=trainer_snapshot.size(trainer),
        fresh=checkpoints.origin.fresh,
        ask=ask,
        progress=lambda: (trainer.state.global_step, trained()),
        leader=ranks.leader,
        share=ranks.same,
    )
    return disk if copies is None else Resumable(copies, disk)
