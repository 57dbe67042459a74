"""`oven.attach(trainer)`: the one line that plugs a Hugging Face or TRL trainer into the controller."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.client.idle_client import idle_client
from oven_learner.completions.redaction import Redact
from oven_learner.completions.sampling import sampling_of
from oven_learner.hf import input_checks, knobs
from oven_learner.hf.callback import Attachment, Options
from oven_learner.hf.completion_samples import shows_completions
from oven_learner.hf.verifier_drafts import give_drafts
from oven_learner.link.find_controller import Mode, seek
from oven_learner.link.link_interface import Link
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.rewards.committee import Committee
from oven_learner.teachers import Teachers
from oven_runs.home import relaunch

COMMITTEE = "committee"
"""What a checkpoint keeps of the committee stands under this name."""


class IdleAttachment(Attachment):
    """In place of one, without a controller: the trainer was not touched, and it is not a callback of it."""

    def __init__(self, trainer: Trainer, mode: Mode, actuators: Actuators | None) -> None:
        self.trainer = trainer
        self.client = idle_client(mode, actuators.copy() if actuators is not None else Actuators())
        self.actuators = self.client.actuators
        self._last_evaluation = {}


def attach(
    trainer: Trainer,
    *,
    url: str | None = None,
    run: str | None = None,
    creds: str | Path | None = None,
    actuators: Actuators | None = None,
    lr_bounds: tuple[float, float] = USER_BOUNDS,
    recipe: str = "attached",
    training: str | None = None,
    metrics: tuple[MetricSpec, ...] = (),
    evaluate: Callable[[], Measured] | None = None,
    evaluate_every: int = 20,
    seconds: float | None = None,
    charge_rollbacks: bool = False,
    teachers: Teachers | None = None,
    beta_bounds: tuple[float, float] = USER_BOUNDS,
    committee: Committee | None = None,
    mixture: knobs.Mixture | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    completions: Mapping[str, Any] | None = None,
    redact: Redact | None = None,
    optional: bool = False,
    link: Link | None = None,
) -> Attachment:
    """Publish every step of `trainer`, and apply what is decided between steps. Call it once, before `train()`.

    Found by itself, where the trainer has it and a change acts (oven_learner.hf.knobs): `optimizer.lr_scale`,
    `optimizer.weight_decay`, `grad.clip`, β (`grpo.beta`, `rloo.beta`, `dpo.beta`, `distillation.beta`, each with what
    it refers to loaded), `grpo.epsilon` and `rloo.epsilon` where completions are reused, `reward.weights` of several
    reward functions; `run.hold`, `run.stop`, `run.checkpoint`, `run.rollback` and `run.undo_rollback` when the model
    is small enough to copy, and `run.evaluate` where there is an `evaluate`, or the trainer evaluates by itself.
    `teachers` adds `teacher.active`, `mixture` adds `data.mixture` and `data.skip`, `actuators` your own, which go
    before what would be found. `lr_bounds` are multiples of your schedule, `beta_bounds` of your β. The run begins in
    `observe`, unless the stack's rules say otherwise.

    The run ends when `max_steps` steps are kept: steps that a rollback threw away are trained again. With
    `charge_rollbacks` (or the setting of that name) they count, so that runs can be compared at equal cost.

    `training` names this training where the script has several, one after another in the same run: each is judged by
    its own numbers, and takes over no knob's value from the one before. Without it they are counted in the order in
    which they first begin, so that a script that is started again finds its own; name them where a restarted script may
    leave one out.

    `committee` is the GRPOTrainer's reward function when several members judge (oven_learner.rewards): it adds
    `reward.weights`, and groups and steps that no one scored train nothing. Its verifier compares with the active
    teacher's answers, or with the reference model's where there are no `teachers`.

    A model too large to copy, or sharded, goes back by a restart from the trainer's own checkpoints: `run --` and `up`
    start the command again, and `train()` continues from the right one by itself. `stateful` names objects with
    `state_dict` and `load_state_dict` (plain values and tensors) that a checkpoint has to bring back, as it does the
    mixture.

    `completions` says how often prompts and completions of a GRPOTrainer or RLOOTrainer are shown to those who watch,
    e.g. `{"every": 10}`, in the place of the settings of that name, which are off for your own script. `redact`
    is a function from text to text that each of them goes through first; where it raises, nothing is shown.

    Where there is no controller and it is `optional`, or OVEN_MODE says so, training continues as if this had not been
    called; what a mixture, a committee and `stateful` do for the training itself stays.

    Raises ConfigError when there is no controller to attach to and it is not optional, or the trainer has what would
    end its run later (oven_learner.hf.input_checks), and RefusedError when it turns the credentials down. `train()`
    raises ConfigError for a checkpoint that cannot be continued from. After the start nothing that happens to the
    controller reaches the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is attached already; call oven.attach(trainer) once")
    mode, connection = Mode.of(optional), None
    if link is None or mode is Mode.DISABLED:
        # Other ranks hear from rank 0: two clients of one run would be two learners.
        leader = trainer.accelerator.process_index == 0
        there, connection = seek(mode, url, run, creds, leader=leader, same=ranks.from_leader)
        if not there and not (mixture or committee or stateful):
            return IdleAttachment(trainer, mode, actuators)
        if not there:
            mode.say_why_not()
            link = ranks.SilentLink()
    input_checks.check(trainer)
    options = Options(
        actuators=actuators or Actuators(),
        lr_bounds=lr_bounds,
        recipe=recipe,
        training=training,
        metrics=metrics,
        evaluate=evaluate,
        evaluate_every=evaluate_every,
        seconds=seconds,
        charge_rollbacks=charge_rollbacks,
        teachers=teachers,
        beta_bounds=beta_bounds,
        committee=committee,
        mixture=mixture,
        stateful={
            **({knobs.mixture.MIXTURE: mixture} if mixture is not None else {}),
            **({COMMITTEE: committee} if committee is not None and committee.remote is not None else {}),
            **(stateful or {}),
        },
        sampling=sampling_of(connection.completions if connection else None, completions, redact)
        if shows_completions(trainer)
        else None,
    )
    if committee is not None:
        give_drafts(trainer, committee, teachers)
    attachment = Attachment(trainer, link, connection, options)
    if mixture is not None:
        knobs.mixture.plug_in(trainer, mixture)
    trainer.add_callback(attachment)
    _wrap_train(trainer, attachment)
    return attachment


def _wrap_train(trainer: Any, attachment: Attachment) -> None:
    """No callback hears of an exception, or can say which checkpoint to continue from."""
    train = trainer.train

    @wraps(train)
    def announced(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            checkpoint = attachment.checkpoints.resumed(resume_from_checkpoint)
            attachment.epochs.resumed = attachment.checkpoints.origin.path
            result = train(checkpoint, *args, **kwargs)
        except BaseException as error:
            attachment.failed(error)
            raise
        if attachment.client is not None and attachment.client.restart:
            # What the script does after its training is for a training that is done. And a launcher ends all ranks when
            # the first has ended: rank 0 has last words to send.
            ranks.barrier()
            raise SystemExit(relaunch.EXIT_CODE)
        return result

    trainer.train = announced
