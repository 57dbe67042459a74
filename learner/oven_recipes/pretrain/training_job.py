"""Builds the training job of the recipe `pretrain`, with its corpus, model, trainer and held-out evaluation."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    TrainingArguments,
    set_seed,
)

from oven_core.errors import ConfigError, reason
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.hf.knobs import quantisation
from oven_learner.hf.knobs.mixture import Mixture, install_sampler
from oven_learner.hf.knobs.quantisation import FakeQuantisation
from oven_learner.losses import Channel, MultiToken, TextTrainer, TokenWeighted
from oven_recipes.pretrain import corpus, tokens
from oven_recipes.pretrain.settings import PretrainSettings, Start
from oven_recipes.pretrain.token_prior import find_prior, scale_embedding
from oven_recipes.training_runner import Job, trainer_arguments


def build_model(settings: PretrainSettings, tokenizer: PreTrainedTokenizerFast) -> PreTrainedModel:
    """Build a freshly initialised model in float32. Torch's global generator determines its weights. Raises ConfigError
    if the sizes or the configuration do not give a language model for the corpus's rows."""
    config: PreTrainedConfig
    if settings.model is None:
        if settings.hidden % settings.heads or settings.hidden // settings.heads % 2:
            raise ConfigError(
                f"recipe_options.hidden = {settings.hidden} divided by heads = {settings.heads} must be a whole, even "
                "number, because rotary positions turn pairs"
            )
        config = LlamaConfig(
            hidden_size=settings.hidden,
            intermediate_size=settings.ffn,
            num_hidden_layers=settings.layers,
            num_attention_heads=settings.heads,
            num_key_value_heads=settings.heads,
            max_position_embeddings=settings.context,
            tie_word_embeddings=True,
        )
    else:
        config = _load_configuration(settings.model)
        positions = getattr(config, "max_position_embeddings", None)
        if positions is not None and positions < settings.context:
            raise ConfigError(
                f"{settings.model} supports {positions:,} positions, but a row has {settings.context:,} tokens; lower "
                "recipe_options.context"
            )
    # Replace the configuration's vocabulary with the vocabulary of the corpus's tokenizer.
    config.vocab_size = len(tokenizer)
    config.bos_token_id, config.eos_token_id, config.pad_token_id = None, tokenizer.eos_token_id, tokenizer.pad_token_id
    config.use_cache = False
    try:
        factory: Any = AutoModelForCausalLM
        model: PreTrainedModel = factory.from_config(config, dtype=torch.float32)
    except Exception as error:
        raise ConfigError(
            f"{settings.model or 'these sizes'} do not give a causal language model: {reason(error)}"
        ) from error
    return model


def _load_configuration(file: Path) -> PreTrainedConfig:
    try:
        values = json.loads(file.read_text())
        kind = values.pop("model_type")
        return AutoConfig.for_model(kind, **values)
    except Exception as error:  # a configuration class may raise anything for its arguments
        raise ConfigError(
            f"transformers does not know the configuration {file} ({reason(error)}); use another one, or install "
            "the version of transformers for which it was written"
        ) from error


BITS_PER_BYTE = "eval/bits_per_byte"
EVALUATION_BATCH_ROWS = 64  # rows per forward pass of an evaluation


def served_metric(number_type: str) -> str:
    """Return the metric's name for weights that are rounded to `number_type`, such as eval/int4/bits_per_byte."""
    return BITS_PER_BYTE.replace("/", f"/{number_type}/", 1)


def held_out_rows(streams: Mapping[str, Tensor], length: int, row_count: int) -> dict[str, Tensor]:
    """Return windows of `length` tokens by sub-corpus, int64 [rows, length], about `row_count` in total. Windows are
    spread evenly over a sub-corpus's stream, and every sub-corpus has at least one. Adjacent windows overlap by one
    token, so that every token except the first is predicted. Streams that are shorter than a window are skipped."""
    windows = {name: stream.unfold(0, length, length - 1) for name, stream in streams.items() if len(stream) >= length}
    total = sum(len(name_windows) for name_windows in windows.values())
    rows = {}
    for name, name_windows in windows.items():
        count = min(len(name_windows), max(1, round(row_count * len(name_windows) / total)))
        rows[name] = name_windows[torch.arange(count) * len(name_windows) // count].long()
    return rows


@torch.no_grad()
def bits_per_byte(
    model: PreTrainedModel, rows: Mapping[str, Tensor], byte_lengths: Tensor
) -> dict[str, float | list[float]]:
    """Return the bits per byte of the held-out rows: the surprise at all tokens of a row except the first, divided by
    these tokens' bytes. `byte_lengths` is the result of `token_byte_lengths`. The metric has one value per row, whose
    mean is the bits per byte. If there are several sub-corpora, each also has a metric. Restores the model's mode."""
    nats: dict[str, list[float]] = {}
    byte_counts: dict[str, int] = {}
    was_training = model.training
    model.train(False)
    try:
        for name, name_rows in rows.items():
            nats[name] = [
                row_nats
                for batch in torch.split(name_rows, EVALUATION_BATCH_ROWS)
                for row_nats in _surprise(model, batch.to(model.device))
            ]
            byte_counts[name] = int(byte_lengths[name_rows[:, 1:]].sum())
    finally:
        model.train(was_training)
    row_values = [row_nats for name_nats in nats.values() for row_nats in name_nats]
    # The nats of a row of mean length, if each of its bytes had 1 bit.
    nats_at_1_bit = math.log(2) * sum(byte_counts.values()) / len(row_values)
    metrics: dict[str, float | list[float]] = {BITS_PER_BYTE: [row_nats / nats_at_1_bit for row_nats in row_values]}
    if len(rows) > 1:
        metrics |= {
            f"{BITS_PER_BYTE}/{name}": math.fsum(nats[name]) / (math.log(2) * byte_counts[name]) for name in rows
        }
    return metrics


def _surprise(model: PreTrainedModel, batch: Tensor) -> list[float]:
    """Return the summed nats of each row in a batch [rows, length]."""
    logits = model(input_ids=batch).logits[:, :-1]  # [rows, length - 1, vocabulary]
    surprise: Tensor = cross_entropy(logits.transpose(1, 2).float(), batch[:, 1:], reduction="none")
    return [float(row_nats) for row_nats in surprise.sum(1)]


LR_BOUNDS = (0.001, 1000.0)
"""Bounds of the learning-rate knob. They are so wide that they do not reveal a random start to an agent."""
WEIGHT_BITS = "eval/weight_bits"
"""Metric of the quantisation during an evaluation, in bits per weight of a linear layer."""


def build(settings: PretrainSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """Build the training job for one start. The trainer writes its files to `workdir`, and `cache` stores tokens
    between runs. The seed determines the weights and the order of the rows, but not which text is held out."""
    sub_corpora = corpus.read(settings.corpus, settings.held_out, int(settings.corpus_megabytes * 1e6))
    tokenized = tokens.tokenize(sub_corpora, settings.vocabulary, cache)
    mixture = Mixture(tokens.split_into_rows(tokenized.train, settings.context), seed=seed)
    held_out = held_out_rows(tokenized.held_out, settings.context, settings.eval_rows)
    if not held_out:
        raise ConfigError(
            f"the held-out text is shorter than a row of {settings.context:,} tokens; give more text, or hold out more "
            f"(recipe_options.held_out = {settings.held_out:g})"
        )
    lengths = tokens.token_byte_lengths(tokenized.tokenizer)
    token_texts, counts = tokenized.token_texts, tokenized.counts
    prior = find_prior(settings.token_prior, token_texts, counts, workdir, tokenized.vocabulary_file)
    set_seed(seed)
    model = build_model(settings, tokenized.tokenizer)
    channels: list[Channel] = [MultiToken(settings.mtp_weight)]
    if prior is not None:
        scale_embedding(model, prior)
        channels.insert(0, TokenWeighted(prior, settings.kg_weight))
    rounding, actuators = FakeQuantisation(model), Actuators()
    rounding.write(settings.quantisation)
    quantisation.register_knob(actuators, rounding)
    args = _arguments(settings, start, seed, workdir)
    trainer = TextTrainer(model=model, args=args, train_dataset=mixture.dataset, channels=channels)
    install_sampler(trainer, mixture)

    def measure() -> dict[str, float | list[float]]:
        return bits_per_byte(trainer.accelerator.unwrap_model(trainer.model), held_out, lengths)

    return Job(
        trainer=trainer,
        evaluate=lambda: _measure_with_rounding(measure, rounding, settings.served),
        evaluate_every=settings.eval_every,
        metrics=recipe_metrics(tuple(held_out), settings.served),
        lr_bounds=LR_BOUNDS,
        mixture=mixture,
        actuators=actuators,
    )


def _measure_with_rounding(
    measure: Callable[[], dict[str, float | list[float]]], rounding: FakeQuantisation, served: str
) -> dict[str, float | list[float]]:
    """Return the held-out metrics with the current quantisation. If the weights will be served with rounding, measure
    plain and rounded weights separately instead, so that a change of the knob does not make either metric jump."""
    if served == quantisation.NONE:
        return measure() | {WEIGHT_BITS: float(rounding.bits)}
    current = rounding.read()
    try:
        rounding.write(served)
        rounded_values = measure()[BITS_PER_BYTE]
        rounding.write(quantisation.NONE)
        metrics = measure() | {WEIGHT_BITS: float(rounding.bits)}
    finally:
        rounding.write(current)
    rounded = rounded_values if isinstance(rounded_values, float) else fmean(rounded_values)
    return metrics | {served_metric(served): rounded}


def recipe_metrics(held_out: Sequence[str], served: str = quantisation.NONE) -> tuple[MetricSpec, ...]:
    """Return the recipe's own metrics: the bits per byte of the held-out text, and the bits of the weights."""
    sub_corpus_metrics = [f"{BITS_PER_BYTE}/{name}" for name in held_out] if len(held_out) > 1 else []
    rounded = [served_metric(served)] if served != quantisation.NONE else []
    names = (BITS_PER_BYTE, *sub_corpus_metrics, *rounded)
    return (
        *(MetricSpec(name=name, better="down", held_out=True, unit="bits per byte") for name in names),
        MetricSpec(name=WEIGHT_BITS, unit="bits"),
    )


def _arguments(settings: PretrainSettings, start: Start, seed: int, workdir: Path) -> TrainingArguments:
    return TrainingArguments(
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        weight_decay=settings.weight_decay if start.weight_decay is None else start.weight_decay,
        # Plain "constant" silently ignores warmup_steps.
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=settings.lr_warmup_steps,
        per_device_train_batch_size=settings.batch,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        **trainer_arguments(settings, start.learning_rate, seed, workdir),
    )
