"""Puts the recipe together: corpus, tokens, model, mixture, Hugging Face's Trainer, and the held-out evaluation."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import fmean

import torch
from transformers import TrainingArguments, set_seed

from oven_core.errors import ConfigError
from oven_core.protocol.messages import MetricSpec
from oven_learner.actuators import Actuators
from oven_learner.hf.knobs import quantisation
from oven_learner.hf.knobs.mixture import Mixture, plug_in
from oven_learner.hf.knobs.quantisation import FakeQuantisation
from oven_learner.losses import Channel, MultiToken, TextTrainer, TokenWeighted
from oven_recipes.pretrain import corpus, tokens
from oven_recipes.pretrain.evaluation import METRIC, bits_per_byte, held_out_rows, served_metric
from oven_recipes.pretrain.model import build_model
from oven_recipes.pretrain.prior import TokenPrior, find_prior, scale_embedding
from oven_recipes.pretrain.settings import PretrainSettings, Start
from oven_recipes.runner import TRAINER_ARGUMENTS, Job

LR_BOUNDS = (0.001, 1000.0)
"""Wide enough that no agent can read off them where a drawn start lies."""
WEIGHT_BITS = "eval/weight_bits"
"""Beside each evaluation: at which quantisation it was done."""


def build(settings: PretrainSettings, start: Start, seed: int, workdir: Path, cache: Path) -> Job:
    """The job for one start: `workdir` gets the trainer's files, `cache` keeps tokens between runs. The seed decides
    the weights and the order of the rows; what is held out depends on the text alone."""
    parts = corpus.read(settings.corpus, settings.held_out, int(settings.corpus_megabytes * 1e6))
    words = tokens.tokenized(parts, settings.vocabulary, cache)
    mixture = Mixture(tokens.rows(words.train, settings.context), seed=seed)
    held_out = held_out_rows(words.held_out, settings.context, settings.eval_rows)
    if not held_out:
        raise ConfigError(
            f"what is held out is shorter than a row of {settings.context:,} tokens: give more text, or hold out more "
            f"(recipe_options.held_out = {settings.held_out:g})"
        )
    lengths = tokens.bytes_of(words.tokenizer)
    prior = find_prior(settings.token_prior, words.texts, words.counts, workdir, words.file)
    set_seed(seed)
    model = build_model(settings, words.tokenizer)
    if prior is not None:
        scale_embedding(model, prior)
    rounding, actuators = FakeQuantisation(model), Actuators()
    rounding.write(settings.quantisation)
    quantisation.announce(actuators, rounding)
    trainer = TextTrainer(
        model=model,
        args=_arguments(settings, start, seed, workdir),
        train_dataset=mixture.dataset,
        channels=_channels(settings, prior),
    )
    plug_in(trainer, mixture)

    def evaluate() -> dict[str, float | list[float]]:
        return _measured(
            lambda: bits_per_byte(trainer.accelerator.unwrap_model(trainer.model), held_out, lengths),
            rounding,
            settings.served,
        )

    return Job(
        trainer=trainer,
        evaluate=evaluate,
        evaluate_every=settings.eval_every,
        metrics=gauges(tuple(held_out), settings.served),
        lr_bounds=LR_BOUNDS,
        mixture=mixture,
        actuators=actuators,
    )


def _measured(
    measure: Callable[[], dict[str, float | list[float]]], rounding: FakeQuantisation, served: str
) -> dict[str, float | list[float]]:
    """What is held out, of the weights as the forward pass has them. Where they will be served rounded: of the weights
    as they are and of the rounded ones apart, so that no knob makes either of them jump."""
    if served == quantisation.NONE:
        return measure() | {WEIGHT_BITS: float(rounding.bits)}
    now = rounding.read()
    try:
        rounding.write(served)
        rounded = measure()[METRIC]
        rounding.write(quantisation.NONE)
        found = measure() | {WEIGHT_BITS: float(rounding.bits)}
    finally:
        rounding.write(now)
    return found | {served_metric(served): rounded if isinstance(rounded, float) else fmean(rounded)}


def _channels(settings: PretrainSettings, prior: TokenPrior | None) -> list[Channel]:
    """Without a prior there is nothing that `channel.kg` could weight by."""
    weighted = [TokenWeighted(prior.scores, settings.kg_weight)] if prior is not None else []
    return [*weighted, MultiToken(settings.mtp_weight)]


def gauges(held_out: Sequence[str], served: str = quantisation.NONE) -> tuple[MetricSpec, ...]:
    """What this recipe adds to the gauges that `attach` finds, by the sub-corpora of which something is held out and
    what the weights will be rounded to."""
    of_parts = [f"{METRIC}/{name}" for name in held_out] if len(held_out) > 1 else []
    rounded = [served_metric(served)] if served != quantisation.NONE else []
    names = (METRIC, *of_parts, *rounded)
    return (
        *(MetricSpec(name=name, better="down", held_out=True, unit="bits per byte") for name in names),
        MetricSpec(name=WEIGHT_BITS, unit="of a linear layer's weight in this evaluation"),
    )


def _arguments(settings: PretrainSettings, start: Start, seed: int, workdir: Path) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(workdir),
        seed=seed,
        learning_rate=start.learning_rate,
        adam_beta1=settings.betas[0],
        adam_beta2=settings.betas[1],
        weight_decay=settings.weight_decay if start.weight_decay is None else start.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        # Plain "constant" ignores warmup_steps without a word.
        lr_scheduler_type="constant_with_warmup" if settings.schedule == "constant" else settings.schedule,
        warmup_steps=settings.lr_warmup_steps,
        max_steps=settings.max_steps,
        per_device_train_batch_size=settings.batch,
        remove_unused_columns=False,
        dataloader_pin_memory=torch.cuda.is_available(),
        **TRAINER_ARGUMENTS,
    )
