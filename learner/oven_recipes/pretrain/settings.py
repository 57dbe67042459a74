"""The settings and named starts of the recipe `pretrain`. This module does not import torch."""

from __future__ import annotations

import json
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, ValidationInfo, field_validator

from oven_recipes import recipe_interface

TUNED_LEARNING_RATE = 2e-3
"""The best of the learning rates that were tried with Adam on this model over 400 steps."""


def _check_folder(path: Path) -> Path:
    """Return the absolute path of an existing folder."""
    path = path.expanduser().absolute()
    if not path.is_dir():
        raise ValueError(f"{path} is not a folder; give one with text files")
    return path


def _check_configuration(path: Path) -> Path:
    """Return the configuration file, given the file or its folder."""
    path = path.expanduser().absolute()
    file = path / "config.json" if path.is_dir() else path
    remedy = "give a Hugging Face config.json, or the folder that contains one"
    if not file.is_file():
        raise ValueError(f"{file} is not a file; {remedy}")
    try:
        is_configuration = "model_type" in json.loads(file.read_text())
    except (OSError, ValueError, TypeError, RecursionError):
        is_configuration = False
    if not is_configuration:
        raise ValueError(f"{file} is not JSON with a `model_type`; {remedy}")
    return file


NO_PRIOR, UNIGRAM, KG = "none", "unigram", "kg"


def _check_prior(prior: str) -> str:
    """Return the prior's name unchanged, or the absolute path of its file."""
    if prior in (NO_PRIOR, UNIGRAM, KG):
        return prior
    path = Path(prior).expanduser().absolute()
    if not path.is_file():
        raise ValueError(
            f"{prior!r} is neither {NO_PRIOR}, {UNIGRAM} or {KG}, nor a file; create a file with `oven-controller kg "
            "token-prior --to FILE`"
        )
    return str(path)


class PretrainSettings(recipe_interface.RecipeSettings):
    """Settings of the text, the model, the optimizer and the knobs. The learning rate comes from a `Start` instead."""

    # The text.
    corpus: Annotated[Path, AfterValidator(_check_folder)] | None = Field(
        default=None,
        description="a folder of text with one subfolder per sub-corpus; none: the Python standard library",
    )
    corpus_megabytes: float = Field(
        default=32.0, gt=0, description="maximum text to read; files are chosen by their hash"
    )
    held_out: float = Field(default=0.05, gt=0, lt=1, description="share of each sub-corpus that is held out, by file")
    vocabulary: int = Field(
        default=1024, ge=257, le=65536, description="size of the byte-level BPE vocabulary to train"
    )
    context: int = Field(default=128, ge=2, description="tokens per row")

    # The model: a Llama of about 0.5 M parameters with tied embedding and output.
    model: Annotated[Path, AfterValidator(_check_configuration)] | None = Field(
        default=None, description="a Hugging Face config.json, or its folder; weights are random; none: the sizes below"
    )
    hidden: int = Field(default=96, ge=1)
    layers: int = Field(default=3, ge=1)
    heads: int = Field(default=4, ge=1)
    ffn: int = Field(default=384, ge=1)

    # The optimizer: AdamW.
    max_steps: int = Field(default=400, ge=1, le=10**9)
    batch: int = Field(default=16, ge=1, description="rows per step")
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = Field(default=0.1, ge=0, description="weight decay of matrices; vectors have none")
    schedule: Literal["constant", "cosine", "linear"] = "constant"
    lr_warmup_steps: int = Field(default=20, ge=0, description="steps over which the learning rate rises from 0")

    # Initial values of knobs, which the Superintelligence Oven also has (docs/from-the-source.md).
    token_prior: Annotated[str, AfterValidator(_check_prior)] = Field(
        default=NO_PRIOR,
        description="source of token scores: none, unigram (the corpus's token frequencies), kg (the knowledge graph), "
        "or a file from `kg token-prior`; tokens with high scores start with larger embeddings",
    )
    kg_weight: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="initial weight of the loss on tokens with a score (the knob channel.kg); needs a token_prior",
    )
    mtp_weight: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="initial value of channel.mtp, the prediction of the token after the next one",
    )
    quantisation: Literal["none", "int8", "int4"] = Field(
        default="none",
        description="initial value of train.quantisation: the linear layers' weights in the forward pass",
    )

    served: Literal["none", "int8", "int4"] = Field(
        default="none",
        description="rounding of the weights in production; evaluations also measure it (eval/int4/bits_per_byte)",
    )

    eval_every: int = Field(default=50, ge=1, description="steps between held-out evaluations")
    eval_rows: int = Field(default=128, ge=1, description="held-out rows of each evaluation, the same every time")

    @field_validator("kg_weight")
    @classmethod
    def _check_kg_weight(cls, weight: float, info: ValidationInfo) -> float:
        if weight > 0 and info.data.get("token_prior") == NO_PRIOR:
            raise ValueError(
                "it weights tokens by token_prior, which is none; set token_prior to kg, unigram or a file"
            )
        return weight


LEARNING_RATE_RANGE = (1 / 30, 30.0)
"""Range from which the start `drawn` draws a learning rate, as multiples of the tuned one. The draw is log-uniform."""

STARTS = recipe_interface.LR_STARTS | {
    "drawn": "the seed draws the learning rate",
    "drill:decay-high": "the weight decay is set to 100 times the usual one",
}
"""The names of the starts, and what is wrong with each."""


@dataclass(frozen=True)
class Start(recipe_interface.Start):
    """A learning rate, and optionally a weight decay that overrides the setting."""

    weight_decay: float | None = None

    def describe(self) -> str:
        decay = "" if self.weight_decay is None else f", weight decay {self.weight_decay:g}"
        return super().describe() + decay


def parse_start(text: str, seed: int, settings: PretrainSettings) -> Start:
    """Return the start named `text`. Only `drawn` uses the seed. Raises ValueError for an unknown name."""
    match text:
        case "tuned" | "drill:lr-low" | "drill:lr-high":
            return Start(*recipe_interface.learning_rate_start(text, TUNED_LEARNING_RATE))
        case "drawn":
            low, high = LEARNING_RATE_RANGE
            factor = math.exp(random.Random(f"start {seed}").uniform(math.log(low), math.log(high)))
            return Start(text, TUNED_LEARNING_RATE * factor)
        case "drill:decay-high":
            return Start(text, TUNED_LEARNING_RATE, STARTS[text], 10.0)
    raise recipe_interface.no_such_start(text, STARTS)
