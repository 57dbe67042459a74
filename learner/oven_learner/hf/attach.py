"""`oven.attach(trainer)`: connect a Hugging Face or TRL trainer to the controller with one line."""

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
from oven_learner.client.held_out_evaluation import Measurements
from oven_learner.client.loop_client import idle_client
from oven_learner.completions.plain_text import as_text
from oven_learner.completions.sample import Redact
from oven_learner.completions.sampling import sampling_of
from oven_learner.hf.callback import Attachment, Options
from oven_learner.hf.hooks.completion_samples import shows_completions
from oven_learner.hf.hooks.evaluations import TrainerEvaluation
from oven_learner.hf.knobs.mixture import MIXTURE, Mixture, plug_in
from oven_learner.link.find_controller import Mode, find_controller
from oven_learner.link.link_interface import Link, SilentLink
from oven_learner.optim.lr_scale import USER_BOUNDS
from oven_learner.rewards.committee import Committee
from oven_learner.rewards.draft_verifier import DraftVerifier, TeacherDrafts
from oven_learner.teachers import Teachers
from oven_learner.teachers.reference_model import has_reference, open_reference, open_teacher
from oven_runs.home import relaunch

COMMITTEE = "committee"
"""Key of the committee's state in checkpoints."""


class IdleAttachment(Attachment):
    """A stand-in for an attachment without a controller. It is not a callback, and the trainer is unchanged."""

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

    These knobs are added if the trainer has them and a change takes effect (oven_learner.hf.knobs):
    `optimizer.lr_scale`, `optimizer.weight_decay`, `grad.clip`, β (`grpo.beta`, `rloo.beta`, `dpo.beta`,
    `distillation.beta`, each if what it refers to is loaded), `grpo.epsilon` and `rloo.epsilon` if completions are
    reused, and `reward.weights` of several reward functions. There are always `run.hold` and `run.stop`. If the model
    is small enough to copy there are `run.checkpoint`, `run.rollback` and `run.undo_rollback`. There is `run.evaluate`
    if there is an `evaluate`, or the trainer evaluates by itself. The run begins in `observe`, unless the stack's rules
    say otherwise.

    Args:
        actuators: your own knobs. They win over automatic ones of the same name.
        lr_bounds: bounds of `optimizer.lr_scale`, as multiples of your schedule.
        training: the name of this training, if the script has several one after another in the same run. Each is judged
            by its own numbers, and takes no knob's value from the one before. Without names they are counted in the
            order in which they begin, so that a restarted script finds its own. Name them if a restarted script may
            skip one.
        evaluate: measures held-out metrics at the start, every `evaluate_every` steps, at the end, and when an agent
            asks.
        charge_rollbacks: count the steps that rollbacks threw away against `max_steps`, so that runs can be compared at
            equal cost. Otherwise the run ends when `max_steps` steps are kept. The setting of that name does the same.
        teachers: adds `teacher.active`.
        beta_bounds: bounds of β, as multiples of yours.
        committee: the GRPOTrainer's reward function if several members judge (oven_learner.rewards). It adds
            `reward.weights`. Groups and steps that no member scored train nothing. Its verifier compares with the
            answers of the active teacher, or of the reference model without `teachers`.
        mixture: adds `data.mixture` and `data.skip`.
        stateful: objects with `state_dict` and `load_state_dict` (plain values and tensors) that a checkpoint has to
            restore. The mixture is restored anyway.
        completions: how often prompts and completions of a GRPOTrainer or RLOOTrainer are shown, e.g. `{"every": 10}`.
            It replaces the settings of that name, which are off for your own script.
        redact: a function from text to text that each shown text goes through first. If it raises, nothing is shown.
        optional: train without a controller if there is none. Then training continues as if `attach` had not been
        called. Only the training's own use of a mixture, a committee and `stateful` stays.

    A model that is sharded, or too large to copy, is rolled back by a restart from the trainer's own checkpoints: `run
    --` and `up` start the command again, and `train()` resumes from the right checkpoint by itself.

    Raises ConfigError if there is no controller and it is not optional, or if an input would end the run later
    (`check_inputs`). Raises RefusedError if the controller rejects the credentials. `train()` raises ConfigError for a
    checkpoint that cannot be used. Later failures of the controller do not reach the training.
    """
    if any(isinstance(callback, Attachment) for callback in trainer.callback_handler.callbacks):
        raise ConfigError("this trainer is attached already; call oven.attach(trainer) once")
    mode, connection = Mode.from_environment(optional), None
    if link is None or mode is Mode.DISABLED:
        # Only rank 0 connects: two clients of one run would be two learners.
        leader = trainer.accelerator.process_index == 0
        exists, connection = find_controller(mode, url, run, creds, leader=leader, same=ranks.from_leader)
        if not exists and not (mixture or committee or stateful):
            return IdleAttachment(trainer, mode, actuators)
        if not exists:
            mode.log_absence()
            link = SilentLink()
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
        sampling=sampling_of(connection.shown_completions if connection else None, completions, redact)
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
    """Wrap `train()`: callbacks get no exceptions, and cannot choose the checkpoint to resume from."""
    train = trainer.train

    @wraps(train)
    def announced(resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        try:
            checkpoint = attachment.checkpoints.choose(resume_from_checkpoint)
            attachment.epochs.resumed = attachment.checkpoints.origin.path
            result = train(checkpoint, *args, **kwargs)
        except BaseException as error:
            attachment.failed(error)
            raise
        if attachment.client is not None and attachment.client.restart:
            # The script continues only after a finished training. A launcher ends all ranks when the first has ended,
            # so all wait until rank 0 has sent its last messages.
            ranks.barrier()
            raise SystemExit(relaunch.EXIT_CODE)
        return result

    trainer.train = announced


ON_POLICY = ("GRPOTrainer", "RLOOTrainer", "DistillationTrainer")
SAMPLE = 64
"""Number of prompts to tokenize when checking for ids outside the model's vocabulary."""
LISTED_ROWS = 5
"""Maximum rows listed in an error message."""


def check_inputs(trainer: Any) -> None:
    """Raise ConfigError for inputs that TRL's on-policy trainers accept, but that end or spoil the run later.

    These are a β below 0, a tokenizer with ids that the model does not embed, and empty prompts. Prompts are checked in
    datasets that can be indexed; those of a stream are not known yet.
    """
    if not any(cls.__name__ in ON_POLICY for cls in type(trainer).__mro__):
        return
    if getattr(trainer, "beta", 0) < 0:
        raise ConfigError(
            f"beta is {trainer.beta:g}: below 0 the KL term rewards distance from the reference; give 0 or more"
        )
    tokenizer = getattr(trainer.processing_class, "tokenizer", trainer.processing_class)  # a processor contains one
    dataset = trainer.train_dataset
    has_prompts = hasattr(dataset, "__len__") and "prompt" in (getattr(dataset, "column_names", None) or ())
    rows = int(trainer.accelerator.unwrap_model(trainer.model).get_input_embeddings().weight.shape[0])
    if rows:  # 0: a shard of ZeRO-3
        _check_vocabulary(rows, tokenizer, dataset[: min(SAMPLE, len(dataset))]["prompt"] if has_prompts else ())
    if has_prompts:
        _check_prompts(dataset, tokenizer)


def _check_vocabulary(rows: int, tokenizer: Any, prompts: Sequence[Any]) -> None:
    """An id beyond the embedding raises IndexError in the middle of a run, or an obscure assertion on a GPU. Unused ids
    are accepted: Gemma 3's smallest model does not embed the image token of its tokenizer."""
    used = {f"its {name}": getattr(tokenizer, name + "_id") for name in ("pad_token", "eos_token", "bos_token")}
    beyond = {what: number for what, number in used.items() if number is not None and number >= rows}
    if not beyond and max(tokenizer.get_vocab().values()) >= rows:
        highest = [max(tokenizer.encode(as_text(prompt)), default=0) for prompt in prompts]
        beyond = {f"the prompt of row {row}": number for row, number in enumerate(highest) if number >= rows}
    for what, number in beyond.items():
        raise ConfigError(
            f"{what} has the token id {number:,} ({tokenizer.convert_ids_to_tokens(number)!r}), and the model embeds "
            f"{rows:,} ids; give the model's own tokenizer, or model.resize_token_embeddings(len(tokenizer))"
        )


def _check_prompts(dataset: Any, tokenizer: Any) -> None:
    """A prompt without tokens leaves nothing to attend to: alone it ends generation, in a batch it is only padding."""
    import pyarrow.compute as pc
    import pyarrow.types as types

    column = dataset.select_columns("prompt").with_format("arrow")[:]["prompt"]
    if types.is_string(column.type) or types.is_large_string(column.type):
        empty = pc.equal(pc.binary_length(column), 0 if not tokenizer("")["input_ids"] else -1)
    elif types.is_list(column.type) or types.is_large_list(column.type):
        empty = pc.equal(pc.list_value_length(column), 0)
    else:
        return
    empty_rows = pc.indices_nonzero(pc.fill_null(empty, True)).to_pylist()
    if empty_rows:
        listed = ", ".join(map(str, empty_rows[:LISTED_ROWS])) + (", …" if len(empty_rows) > LISTED_ROWS else "")
        raise ConfigError(
            f"{len(empty_rows):,} of {len(dataset):,} prompts are empty (rows {listed}); leave them out, "
            'dataset.filter(lambda row: row["prompt"])'
        )


def give_drafts(trainer: Any, committee: Committee, teachers: Teachers | None) -> None:
    """Give each verifier of the committee without drafts the greedy answers of the active teacher, or without
    `teachers` those of the reference model. Raises ConfigError if there is neither."""
    for name, rule in committee.rules.items():
        if not isinstance(rule, DraftVerifier) or rule.drafts is not None:
            continue
        if teachers is None and not has_reference(trainer):
            raise ConfigError(
                f"the verifier {name!r} compares with a teacher's answers, and this training has none: give "
                "attach(teachers=…), train with a reference model (beta above 0), or leave the verifier out"
            )
        model = partial(_reference, trainer) if teachers is None else partial(_active_teacher, trainer, teachers)
        rule.drafts = TeacherDrafts(
            model, trainer.processing_class, trainer.accelerator.device, trainer.args.max_completion_length
        )


@contextmanager
def _active_teacher(trainer: Any, teachers: Teachers) -> Iterator[tuple[str, Any]]:
    name = teachers.active
    with open_teacher(trainer, teachers[name]) as model:
        yield name, model


@contextmanager
def _reference(trainer: Any) -> Iterator[tuple[str, Any]]:
    with open_reference(trainer) as model:
        yield "reference", model
