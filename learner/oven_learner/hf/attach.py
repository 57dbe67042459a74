"""`oven.attach(trainer)`: the one line that plugs a Hugging Face or TRL trainer into the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from pathlib import Path
from typing import Any

from torch.distributed.checkpoint.stateful import Stateful
from transformers import Trainer

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner import ranks
from oven_learner.actuators import Actuators
from oven_learner.client.held_out_evaluation import Measured
from oven_learner.client.loop_client import idle_client
from oven_learner.completions.plain_text import as_text
from oven_learner.completions.redaction import Redact
from oven_learner.completions.sampling import sampling_of
from oven_learner.hf.callback import Attachment, Options
from oven_learner.hf.hooks.completion_samples import shows_completions
from oven_learner.hf.knobs.mixture import MIXTURE, Mixture, plug_in
from oven_learner.link.find_controller import Mode, seek
from oven_learner.link.link_interface import Link
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier, TeacherDrafts
from oven_learner.teachers import Teachers
from oven_learner.teachers.registry import has_reference, reference, teaching
from oven_runs.home import relaunch

ON_POLICY = ("GRPOTrainer", "RLOOTrainer", "DistillationTrainer")
SAMPLE = 64
"""Prompts that are tokenized to look for ids that the model does not have."""
NAMED = 5
"""Rows that a message lists."""


def check_inputs(trainer: Any) -> None:
    """Raises ConfigError for a β below 0, a tokenizer whose ids the model has no rows for, and prompts of no token.

    Prompts are looked at in datasets that can be indexed; a stream's are not known yet.
    """
    if not any(cls.__name__ in ON_POLICY for cls in type(trainer).__mro__):
        return
    if getattr(trainer, "beta", 0) < 0:
        raise ConfigError(
            f"beta is {trainer.beta:g}: below 0 the KL term rewards distance from the reference; give 0 or more"
        )
    words = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor holds one
    dataset = trainer.train_dataset
    known = hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", None) or ())
    rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
    if rows:  # 0: a shard of ZeRO-3
        _check_vocabulary(rows, words, dataset[: min(SAMPLE, len(dataset))]["prompt"] if known else ())
    if known:
        _check_prompts(dataset, words)


def _check_vocabulary(rows: int, words: Any, prompts: Sequence[Any]) -> None:
    """An id beyond the embedding's rows is an IndexError in the middle of a run, and on a GPU an assert that names
    nothing. One that no one uses is none: Gemma 3's smallest model lacks the row of its tokenizer's image token."""
    used = {f"its {name}": getattr(words, name + "_id") for name in ("pad_token", "eos_token", "bos_token")}
    beyond = {what: number for what, number in used.items() if number is not None and number >= rows}
    if not beyond and max(words.get_vocab().values()) >= rows:
        highest = [max(words.encode(as_text(prompt)), default=0) for prompt in prompts]
        beyond = {f"the prompt of row {row}": number for row, number in enumerate(highest) if number >= rows}
    for what, number in beyond.items():
        raise ConfigError(
            f"{what} has the token id {number:,} ({words.convert_ids_to_tokens(number)!r}), and the model embeds "
            f"{rows:,} ids; give the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
        )


def _check_prompts(dataset: Any, words: Any) -> None:
    """A prompt of no token leaves nothing to attend to: alone it ends generation, among others it is padding alone."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    column = dataset.select_columns("prompt").with_format("arrow")[:]["prompt"]
    if types.is_string(column.type) or types.is_large_string(column.type):
        empty = pc.equal(pc.binary_length(column), 0 if not words("")["input_ids"] else -1)
    elif types.is_list(column.type) or types.is_large_list(column.type):
        empty = pc.equal(pc.list_value_length(column), 0)
    else:
        return
    found = pc.indices_nonzero(pc.fill_null(empty, True)).to_pylist()
    if found:
        listed = ", ".join(map(str, found[:NAMED])) + (", …" if len(found) > NAMED else "")
        raise ConfigError(
            f"{len(found):,} of {len(dataset):,} prompts are empty (rows {listed}); leave them out, "
            'dataset.filter(lambda row: row["prompt"])'
        )


def give_drafts(trainer: Any, committee: Committee, teachers: Teachers | None) -> None:
    """The active teacher's greedy answers, or without `teachers` those of the trainer's reference model, to each
    verifier that has none yet. Raises ConfigError where there is neither."""
    for name, rule in committee.rules.items():
        if not isinstance(rule, DraftVerifier) or rule.drafts is not None:
            continue
        if teachers is None and not has_reference(trainer):
            raise ConfigError(
                f"the verifier {name!r} compares with a teacher's answers, and this training has none: give "
                "attach(teachers=…), train with a reference model (beta above 0), or leave the verifier out"
            )
        active = partial(_reference, trainer) if teachers is None else partial(_active, trainer, teachers)
        rule.drafts = TeacherDrafts(
            active, trainer.processing_class, trainer.accelerator.device, trainer.args.max_completion_length
        )


@contextmanager
def _active(trainer: Any, teachers: Teachers) -> Iterator[tuple[str, Any]]:
    """Its name, and the model to ask."""
    name = teachers.active
    with teaching(trainer, teachers[name]) as model:
        yield name, model


@contextmanager
def _reference(trainer: Any) -> Iterator[tuple[str, Any]]:
    with reference(trainer) as model:
        yield "reference", model


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
    mixture: Mixture | None = None,
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
    end its run later (oven_learner.hf.attach), and RefusedError when it turns the credentials down. `train()`
    raises ConfigError for a checkpoint that cannot be continued from. After the start nothing that happens to the
    controller reaches the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is attached already; call oven.attach(trainer) once")
    mode, connection = Mode.from_environment(optional), None
    if link is None or mode is Mode.DISABLED:
        # Other ranks hear from rank 0: two clients of one run would be two learners.
        leader = trainer.accelerator.process_index == 0
        there, connection = seek(mode, url, run, creds, leader=leader, same=ranks.from_leader)
        if not there and not (mixture or committee or stateful):
            return IdleAttachment(trainer, mode, actuators)
        if not there:
            mode.log_absence()
            link = ranks.SilentLink()
    check_inputs(trainer)
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
            **({MIXTURE: mixture} if mixture is not None else {}),
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
        plug_in(trainer, mixture)
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
