"""Builds the training that `bake` runs for a causal language model: TRL's GRPOTrainer with an Oven as its handle."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import TrainerCallback
from trl.trainer.grpo_config import GRPOConfig
from trl.trainer.grpo_trainer import GRPOTrainer

from oven_core.errors import ConfigError
from oven_learner.baking.bake_arguments import BakeArguments, check_config_names, save_steps
from oven_learner.baking.child_stack import ChildStack, StackAddress, stack_environment
from oven_learner.baking.training_handle import Oven
from oven_learner.baking.training_thread_calls import TrainingThreadCalls
from oven_learner.client.oven_client import OvenClient
from oven_learner.hf.attach import attach
from oven_learner.hf.callback import Attachment
from oven_learner.hf.prompts import PromptSource
from oven_learner.link.find_controller import Connection
from oven_learner.rewards import Committee, ModelDescription, convene
from oven_learner.rewards.configured_committee import verifier_weight
from oven_learner.rewards.draft_verifier import DraftVerifier, load_sentence_encoder
from oven_learner.teachers import Teachers
from oven_learner.teachers.teacher_checks import vocabulary_rows
from oven_runs.settings.committee_settings import MemberSettings

DEFAULT_BETA = 0.1
"""Default weight of the KL term, if there is a teacher."""
RENAMED_FIELDS = {"num_generations": "group_size", "max_steps": "total_steps"}
"""Argument of GRPOConfig → its name in `bake`."""
VERIFIER = "verifier"  # the verifier's name in the committee
CPU_DEFAULTS = {"use_cpu": True, "bf16": False, "dataloader_pin_memory": False}
"""Defaults on a machine without an accelerator. TRL's default is bfloat16, which raises ValueError on a CPU."""


def config_args(group_size: int, prompts_per_step: int, total_steps: int, extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return GRPOConfig's arguments, with the user's `extra` ones. Raises the errors of `check_config_names`."""
    check_config_names(extra, (field.name for field in fields(GRPOConfig) if field.init), RENAMED_FIELDS, "GRPOConfig")
    return {
        "max_steps": total_steps,
        "num_generations": group_size,
        "per_device_train_batch_size": group_size * prompts_per_step,
        "logging_steps": 1,
        "save_steps": save_steps(total_steps),
        "save_total_limit": 2,
        "report_to": [],
        **({} if torch.accelerator.is_available() else CPU_DEFAULTS),
        **extra,
        "beta": 0.0,  # otherwise the trainer loads its reference from the policy's path
    }


def check_tokenizer(model: Any, tokenizer: Any) -> None:
    """Raise ConfigError if the tokenizer is not loaded, has ids outside the model's vocabulary, or cannot pad."""
    text_tokenizer = getattr(tokenizer, "tokenizer", tokenizer)  # a processor contains its tokenizer
    if not callable(getattr(text_tokenizer, "get_vocab", None)):
        raise ConfigError(f"tokenizer= is a {type(tokenizer).__name__}: expected a loaded tokenizer (AutoTokenizer)")
    highest_id, model_rows = max(text_tokenizer.get_vocab().values(), default=-1), vocabulary_rows(model)
    if highest_id >= model_rows:
        raise ConfigError(
            f"the tokenizer has ids up to {highest_id:,}, but the model embeds only {model_rows:,} ids; use the "
            "model's own tokenizer, or call model.resize_token_embeddings"
        )
    if text_tokenizer.pad_token_id is None and text_tokenizer.eos_token_id is None:
        raise ConfigError("the tokenizer has neither a pad token nor an end token; set tokenizer.pad_token")


def repeat_to_fill(prompts: Sequence[str], generation_size: int) -> list[str]:
    """Repeat a short list of prompts until it fills whole generations of `generation_size` prompts. TRL skips an
    incomplete generation, so it would not train at all on fewer prompts."""
    if len(prompts) >= generation_size:
        return [*prompts]
    return [*prompts] * (generation_size // math.gcd(len(prompts), generation_size))


class AttachedTraining(TrainerCallback):
    """A callback with which an Oven controls an attached trainer. It runs after the attachment's own callback."""

    def __init__(self, attachment: Attachment, teachers: Teachers | None) -> None:
        self.trainer, self.teachers = attachment.trainer, teachers
        self._attachment = attachment
        self._on_announced: Callable[[], object] = lambda: None
        self._calls = TrainingThreadCalls()
        attachment.trainer.add_callback(self)

    @property
    def client(self) -> OvenClient | None:
        return self._attachment.client

    def train(self) -> Any:
        with self._calls.during_training():
            return self.trainer.train()

    def set_announcement_callback(self, call: Callable[[], object]) -> None:
        self._on_announced = call

    def run_between_steps(self, call: Callable[[], object]) -> None:
        self._calls.submit(call)

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        """Notify the Oven that the attachment has announced the run."""
        if self.client is not None:
            self.client.while_held = self._calls.run_waiting_calls
        self._on_announced()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Run calls from other threads between two steps."""
        self._calls.run_waiting_calls()


@dataclass(frozen=True, kw_only=True)
class TextTraining(BakeArguments):
    """The training that `bake` runs for a causal language model."""

    tokenizer: Any
    beta: float | None
    verifier: bool | str | Path
    """Whether to add a DraftVerifier to the committee, or the folder or id of its sentence model."""

    def __post_init__(self) -> None:
        check_tokenizer(self.model, self.tokenizer)
        if self.verifier and not self.teachers:
            raise ConfigError("use_verifier= needs a teacher's answers; pass teachers=, or omit use_verifier=")

    def build(self, address: StackAddress, stack: ChildStack | None) -> Oven:
        """Build the trainer and attach it to the run. Raises ConfigError, UnknownNameError or TeacherRefusedError."""
        with stack_environment(address):
            settings, verifier = Connection.find().committee, self._build_verifier()
            committee = self._build_committee(verifier, settings.members)
            trainer = self._build_trainer(committee, address.folder)
            teachers = self._load_teachers(trainer) if self.teachers else None
            attachment = attach(
                trainer,
                recipe="bake",
                evaluate=self.evaluate,
                metrics=self.metrics,
                teachers=teachers,
                committee=committee,
                redact=self.redact,
                mixture=self.prompts if isinstance(self.prompts, PromptSource) else None,
            )
        return Oven(AttachedTraining(attachment, teachers), address, stack, committee, settings, verifier)

    def _build_verifier(self) -> DraftVerifier | None:
        if not self.verifier:
            return None
        device = next(self.model.parameters()).device
        return DraftVerifier(load_sentence_encoder(None if self.verifier is True else self.verifier, device))

    def _build_committee(self, verifier: DraftVerifier | None, members: Mapping[str, MemberSettings]) -> Committee:
        """Build the committee. The verifier has a tenth of the weight, and the others share the rest equally."""
        description = ModelDescription.from_model(self.model, self.tokenizer, **self.model_details)
        rules, weights = dict(self.rules), {}
        if verifier is not None:
            verifier_members = [name for name, member in members.items() if member.kind == "verifier"]
            if verifier_members:
                raise ConfigError(
                    f"use_verifier= and the member {verifier_members[0]!r} are both verifiers; omit one of them"
                )
            weights[VERIFIER] = verifier_weight([1.0] * (len(rules) + len(members)))
            rules[VERIFIER] = verifier
        return convene(rules, weights=weights, description=description, seed=self.config_args.get("seed", 42))

    def _build_trainer(self, committee: Committee, folder: Path) -> Any:
        output_dir = str(folder / "checkpoints" if folder.is_dir() else Path("checkpoints"))
        config = GRPOConfig(**{"output_dir": output_dir, **self.config_args})
        assert config.generation_batch_size and config.num_generations  # set by TRL
        if isinstance(self.prompts, PromptSource):
            dataset = self.prompts.dataset
        else:
            prompts = repeat_to_fill(self.prompts, config.generation_batch_size // config.num_generations)
            dataset = Dataset.from_list([{"prompt": prompt} for prompt in prompts])
        return GRPOTrainer(
            model=self.model,
            processing_class=self.tokenizer,
            reward_funcs=[committee],
            args=config,
            train_dataset=dataset,
        )

    def _load_teachers(self, trainer: Any) -> Teachers:
        teachers = Teachers(trainer)
        for config in self.teachers:
            teachers.register(config)
        teachers.swap(self.teacher or self.teachers[0].name)
        trainer.beta = trainer.args.beta = DEFAULT_BETA if self.beta is None else self.beta
        return teachers
