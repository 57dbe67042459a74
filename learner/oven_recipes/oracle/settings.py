"""The settings of the recipe `oracle` and its named starts. This module does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from oven_recipes import recipe_interface

SMALL_MODEL_DEFAULTS: dict[str, Any] = {
    "lr": 3e-4,
    "lora_rank": 16,
    "prompts_per_step": 8,
    "max_completion_length": 16,
    "sft_steps": 450,
    "sft_lr": 3e-3,
    "sft_batch": 32,
}
"""Defaults for the small model, whose answers are only a few words long. With the usual learning rate of 1e-6, 60 steps
would hardly change its small adapter."""
CONSTANT_SHARE = 0.95
"""Share of answers for `drill:constant-confidence` that state the same confidence. The others state a random one. If
the policy never sampled another confidence, no reward could change it, and the drill would have no remedy."""
CONSTANT_PERCENT, HIGH_PERCENTS = 50, (90, 100)
"""Confidences in the drills' answers, from 0 to 100: a constant and a range."""
HIGH_RATE_FACTOR = 100
"""Factor of the learning rate for `drill:lr-high`. Ten times the tuned rate does hardly any harm to the adapter."""


def _check_file(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_file():
        raise ValueError(
            f"{path} is not a file; expected JSON lines with wildchat_question, language and oracle_questions"
        )
    return path


def _check_folder(path: Path) -> Path:
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; expected a folder with the benchmarks' files")
    return path


def _resolve_checkpoint(checkpoint: str) -> str:
    """Return the absolute path of a folder, or a hub id unchanged."""
    path = Path(checkpoint).expanduser()
    if path.is_dir():
        return str(path.absolute())
    if checkpoint.startswith((".", "/", "~")) or checkpoint.count("/") != 1:
        raise ValueError(
            f"{checkpoint} is neither a folder nor a hub id; use a model's folder, or an id like owner/name"
        )
    return checkpoint


class OracleSettings(recipe_interface.RecipeSettings):
    """The recipe's settings. The defaults are for an oracle with 8 billion parameters. Without a `model`, some of them
    are replaced by SMALL_MODEL_DEFAULTS."""

    stage: Literal["sft", "grpo"] = Field(default="grpo", description="sft: end the run after the supervised stage")

    # The model and its oracle.
    model: Annotated[str, AfterValidator(_resolve_checkpoint)] | None = Field(
        default=None, description="a model's folder or hub id; none: a small model of 8 blocks, about 1M parameters"
    )
    hidden: int = Field(default=96, ge=16, multiple_of=8, description="width of the small model")
    pretrain_steps: int | None = Field(
        default=None,
        ge=0,
        description="pre-training steps of the small model, which is cached; none: as many as it needs",
    )
    oracle_lora_path: Annotated[str, AfterValidator(_resolve_checkpoint)] | None = Field(
        default=None, description="folder or hub id of an adapter to start from; none: the supervised stage trains one"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(default="auto", description="dtype of the weights of `model`")
    lora_rank: int = Field(default=64, ge=1, description="rank of the adapter")

    # The data: questions about prompts, and the prompts' activations.
    questions: Annotated[Path, AfterValidator(_check_file)] | None = Field(
        default=None,
        description="JSON lines with wildchat_question, language, oracle_questions; none: templates with answers",
    )
    train_texts: int = Field(default=1000, ge=2, description="number of training prompts")
    layer_percents: tuple[Annotated[float, Field(ge=0, lt=100)], ...] = Field(
        default=(25, 50, 75),
        min_length=1,
        description="depths of the activations, as a percentage of the model's blocks",
    )
    most_activations: int = Field(
        default=20, ge=1, le=20, description="maximum activations per prompt, from its last tokens"
    )

    # The supervised stage.
    sft_steps: int = Field(default=400, ge=0)
    sft_batch: int = Field(default=16, ge=1)
    sft_lr: float = Field(default=1e-5, gt=0)

    # GRPO.
    max_steps: int = Field(default=60, ge=1, le=10**9)
    prompts_per_step: int = Field(default=4, ge=1, description="questions per step, with num_generations answers each")
    num_generations: int = Field(default=8, ge=2, description="answers per question")
    max_completion_length: int = Field(default=64, ge=4, description="maximum tokens of an answer")
    temperature: float = Field(default=0.9, gt=0)
    lr: float = Field(default=1e-6, gt=0)
    kl_penalty: float = Field(default=0.05, ge=0, description="weight of the KL term to the supervised adapter")
    calibration_lambda: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="λ of the reward I − λ(c − I)²; above 1, a wrong answer could score more than a doubtful one",
    )

    # Held-out data.
    initial_eval: bool = Field(default=True, description="evaluate on the benchmarks before the first step")
    benchmarks: Annotated[Path, AfterValidator(_check_folder)] | None = Field(
        default=None, description="a folder with the benchmarks' published files; none: templates"
    )
    eval_items: int = Field(default=250, ge=2, description="items per benchmark at the start and the end")
    eval_every: int = Field(default=20, ge=1, description="steps between held-out evaluations")
    quick_items: int = Field(default=24, ge=2, description="items per benchmark at evaluations during training")

    @model_validator(mode="after")
    def _small_model_defaults(self) -> OracleSettings:
        """Apply the small model's defaults to fields that the user has not set, without marking them as set."""
        if self.model is None:
            for name, value in SMALL_MODEL_DEFAULTS.items():
                if name not in self.model_fields_set:
                    self.__dict__[name] = value
        return self

    @model_validator(mode="after")
    def _check_adapter_has_model(self) -> OracleSettings:
        if self.oracle_lora_path is not None and self.model is None:
            raise ValueError(f"oracle_lora_path {self.oracle_lora_path} is an adapter: set its model with --model")
        return self


STARTS = {
    "tuned": "",
    "drill:constant-confidence": f"{CONSTANT_SHARE:.0%} of the supervised answers state a confidence of "
    f"{CONSTANT_PERCENT}",
    "drill:overconfident": "all supervised answers, including wrong ones, state a confidence of "
    f"{HIGH_PERCENTS[0]} or more",
    "drill:lr-high": f"the learning rate is set to {HIGH_RATE_FACTOR} times the tuned one",
}
"""The names of the starts, and what is wrong with each."""

Confidence = Literal["spread", "constant", "overconfident"]
"""Distribution of the confidences to teach in the supervised stage: all values, mostly one constant, or always high."""


@dataclass(frozen=True)
class Start(recipe_interface.Start):
    """A learning rate, and the distribution of confidences to teach in the supervised stage."""

    confidence: Confidence = "spread"

    def describe(self) -> str:
        return f"{super().describe()}, {self.confidence} confidences in the supervised answers"


def parse_start(text: str, seed: int, settings: OracleSettings) -> Start:
    """Return the start named `text`, one of `STARTS`. Raises ValueError for an unknown start, and for a drill that
    needs the supervised stage if the user's adapter replaces this stage."""
    if text not in STARTS:
        raise recipe_interface.no_such_start(text, STARTS)
    if text in ("tuned", "drill:lr-high"):
        return Start(text, settings.lr * (HIGH_RATE_FACTOR if text == "drill:lr-high" else 1), STARTS[text])
    if settings.oracle_lora_path:
        raise ValueError(f"{text} plants its fault in the supervised stage: omit --oracle-lora-path")
    confidence: Confidence = "constant" if text == "drill:constant-confidence" else "overconfident"
    return Start(text, settings.lr, STARTS[text], confidence)
