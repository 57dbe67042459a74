"""Connect a Hugging Face or TRL trainer to the controller with one line, `oven.attach(trainer)`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks, trainer_internals
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.client.loop_client import idle_client
from oven_learner.completions.sample_message import Redact
from oven_learner.completions.sampling import choose_sampling
from oven_learner.hf.callback import Attachment, Options
from oven_learner.hf.hooks.evaluations import TrainerEvaluation
from oven_learner.hf.input_checks import check_inputs
from oven_learner.hf.knobs.mixture import MIXTURE, Mixture, install_sampler
from oven_learner.link.find_controller import Mode, find_controller
from oven_learner.link.link_interface import Link, SilentLink
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.teachers import Teachers
from oven_learner.teachers.reference_model import has_reference, open_reference, open_teacher
from oven_runs.home import relaunch

if TYPE_CHECKING:
    from oven_learner.rewards.committee import Committee

log = logging.getLogger("oven.learner")

COMMITTEE = "committee"
"""Key of the committee's state in checkpoints."""


class IdleAttachment(Attachment):
    """An attachment without a controller. It is not added to the trainer as a callback, so training is unchanged."""

    def __init__(self, trainer: Trainer, mode: Mode, actuators: Actuators | None) -> None:
        self.trainer = trainer
        self.client = idle_client(mode, actuators.copy() if actuators is not None else Actuators())
        self.actuators = self.client.actuators
        self._evaluation, self._user_evaluation = TrainerEvaluation(trainer), None


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
    evaluate: Callable[[], Measurements] | None = None,
    evaluate_every: int = 20,
    seconds: float | None = None,
    charge_rollbacks: bool = False,
    teachers: Teachers | None = None,
    beta_bounds: tuple[float, float] = USER_BOUNDS,
    committee: Committee | None = None,
    mixture: Mixture | None = None,
    stateful: Mapping[str, Stateful] | None = None,
    completions: Mapping[str, Any] | None = None,
    redact: Redact | None = None,
    optional: bool = False,
    link: Link | None = None,
) -> Attachment:
    """Publish every step of `trainer`, and apply decisions between steps. Call it once, before `train()`.

    It adds these knobs if the trainer has them and a change takes effect (oven_learner.hf.knobs):

    - `optimizer.lr_scale`, `optimizer.warmup`, `optimizer.weight_decay` and `grad.clip`.
    - `optimizer.lr_scale/<name>` for parameter groups with a `name`.
    - β (`grpo.beta`, `rloo.beta`, `dpo.beta` or `distillation.beta`) if the model that it refers to is loaded.
    - `grpo.epsilon` or `rloo.epsilon` if completions are reused.
    - `reward.weights` if there are several reward functions.
    - `run.hold` and `run.stop` always.
    - `run.checkpoint`, `run.rollback` and `run.undo_rollback` if the model is small enough to copy.
    - `run.evaluate` if `evaluate` is given or the trainer evaluates by itself.

    The run begins in `observe`, where decisions are only logged, unless the run's rules set another autonomy level.

    Args:
        actuators: your own knobs. They take precedence over automatic ones with the same name.
        lr_bounds: bounds of `optimizer.lr_scale`, as multiples of your schedule.
        training: the name of this training run, if the script has several in sequence. Each has its own metrics and
            knob values. By default, they are numbered in the order in which they begin, so that a restarted script
            continues the same ones. Name them if a restarted script may skip one.
        evaluate: measures held-out metrics at the start, every `evaluate_every` steps, at the end, and when an agent
            requests it.
        charge_rollbacks: count steps that rollbacks threw away against `max_steps`, to compare runs at equal cost.
            Otherwise, they are repeated. The setting with the same name has the same effect.
        teachers: adds `teacher.active`.
        beta_bounds: bounds of β, as multiples of your value.
        committee: the GRPOTrainer's reward function, if several members judge (oven_learner.rewards). It adds
            `reward.weights`. Groups and steps without any score do not train the model. A verifier compares completions
            with the answers of the active teacher, or of the reference model if there are no `teachers`.
        mixture: adds `data.mixture` and `data.skip`.
        stateful: objects with `state_dict` and `load_state_dict` (plain values and tensors) that a checkpoint has to
            restore. The mixture is always restored.
        completions: how often to show prompts and completions of a GRPOTrainer or RLOOTrainer, for example
            `{"every": 10}`. It replaces the settings with the same name. By default, your own script shows none.
        redact: a function from text to text, applied to each text before it is shown. If it raises, nothing is shown.
        optional: train without a controller if there is none. Training is then the same as without `attach`, except
            that a mixture, a committee and `stateful` objects are still used.

    A model that is sharded or too large to copy is rolled back by a restart from the trainer's own checkpoints.
    `run --` and `up` restart the command, and `train()` resumes from the correct checkpoint automatically.

    Raises ConfigError if there is no controller and it is not optional, or if an input would make the run fail later
    (`input_checks`). Raises RefusedError if the controller rejects the credentials. `train()` raises ConfigError for a
    checkpoint that cannot be used. Later failures of the controller do not affect the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is already attached; call oven.attach(trainer) only once")
    mode, connection = Mode.from_environment(optional), None
    if link is None or mode is Mode.DISABLED:
        # Only rank 0 connects, because two clients of one run would count as two learners.
        leader = trainer.accelerator.process_index == 0
        broadcast = ranks.broadcast_on_trainer_group
        has_controller, connection = find_controller(mode, url, run, creds, leader=leader, broadcast=broadcast)
        if not has_controller and not (mixture or committee or stateful):
            return IdleAttachment(trainer, mode, actuators)
        if not has_controller:
            mode.log_absence()
            link = SilentLink()
    check_inputs(trainer)
    for sentence in trainer_internals.missing_features(trainer, has_teachers=teachers is not None):
        log.warning("%s", sentence)
    saved_objects: dict[str, Stateful] = {}
    if mixture is not None:
        saved_objects[MIXTURE] = mixture
    if committee is not None and committee.remote is not None:
        saved_objects[COMMITTEE] = committee
    shown = connection.shown_completions if connection else None
    sampling = (
        choose_sampling(shown, completions, redact) if trainer_internals.COMPLETION_LOG.works_on(trainer) else None
    )
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
        stateful=saved_objects | dict(stateful or {}),
        sampling=sampling,
    )
    if committee is not None:
        set_drafts(trainer, committee, teachers)
    attachment = Attachment(trainer, link, connection, options)
    if mixture is not None:
        install_sampler(trainer, mixture)
    trainer.add_callback(attachment)
    _wrap_train(trainer, attachment)
    return attachment


def _wrap_train(trainer: Any, attachment: Attachment) -> None:
    """Wrap `train()`, because callbacks cannot handle exceptions or choose the checkpoint to resume from."""
    train = trainer.train

    @wraps(train)
    def attached_train(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            checkpoint = attachment.checkpoints.choose(resume_from_checkpoint)
            attachment.epochs.resume_path = attachment.checkpoints.origin.path
            result = train(checkpoint, *args, **kwargs)
        except BaseException as error:
            attachment.on_failure(error)
            raise
        if attachment.client is not None and attachment.client.restart_reason:
            # The script must not continue, because training has not finished. When one rank exits, a launcher ends the
            # others. Therefore all ranks wait here until rank 0 has sent its last messages.
            ranks.barrier()
            raise SystemExit(relaunch.EXIT_CODE)
        return result

    trainer.train = attached_train


def set_drafts(trainer: Any, committee: Committee, teachers: Teachers | None) -> None:
    """Provide the committee's verifiers with drafts to compare with, unless they already have some. Drafts are greedy
    answers of the active teacher, or of the reference model without `teachers`. Raises ConfigError without either."""
    from oven_learner.rewards.draft_verifier import DraftVerifier, TeacherDrafts

    for name, rule in committee.rules.items():
        if not isinstance(rule, DraftVerifier) or rule.get_drafts is not None:
            continue
        if teachers is None and not has_reference(trainer):
            raise ConfigError(
                f"the verifier {name!r} compares with a teacher's answers, but this training run has no teacher; pass "
                "attach(teachers=…), train with a reference model (beta above 0), or omit the verifier"
            )
        open_model = partial(_open_draft_model, trainer, teachers)
        rule.get_drafts = TeacherDrafts(
            open_model, trainer.processing_class, trainer.accelerator.device, trainer.args.max_completion_length
        )


@contextmanager
def _open_draft_model(trainer: Any, teachers: Teachers | None) -> Iterator[tuple[str, Any]]:
    """Open the model that writes drafts. Yield its name and the model."""
    name = "reference" if teachers is None else teachers.active
    model_context = open_reference(trainer) if teachers is None else open_teacher(trainer, teachers[name])
    with model_context as model:
        yield name, model
