"""Builds the sorting policy, a small Llama, with its tokenizer and teachers, and trains it in a supervised warm-up."""

import random
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path

import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast, Trainer

from oven_learner.teachers import Teachers
from oven_recipes.grpo.settings import SortingSettings, TeacherName
from oven_recipes.grpo.sorting_task import habit_pairs
from oven_recipes.preparation import resumable_steps
from oven_recipes.small_models import optimizer_step, small_llama, target_batch, warmup_decay_schedule
from oven_recipes.weights_cache import key_of, load_or_train


def build_model(settings: SortingSettings, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Return a freshly initialised policy."""
    # A prompt consists of `S`, the digits and `=`.
    positions = max(settings.lengths) + 2 + settings.max_completion_length
    return small_llama(settings, tokenizer, positions, tied=False)


SYMBOLS = ("<pad>", "<eos>", "<unk>", "S", "=", *"0123456789")


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer with one token per character. It pads on the left, so completions start in the same column."""
    core = Tokenizer(models.WordLevel({symbol: index for index, symbol in enumerate(SYMBOLS)}, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), behavior="isolated")
    core.decoder = decoders.Fuse()
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=core,
        pad_token="<pad>",
        eos_token="<eos>",
        unk_token="<unk>",
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


RECIPE_VERSION = 1  # increase it when a code change would change the warm weights
WEIGHT_SETTINGS = (
    "lengths", "hidden", "layers", "heads", "ffn", "sft_steps", "sft_batch", "sft_learning_rate", "correct_share",
)  # fmt: skip
"""The settings that the warm weights depend on."""


def cache_key(settings: SortingSettings, seed: int) -> str:
    """Return the key of the warm weights in the cache."""
    weight_settings = {name: getattr(settings, name) for name in WEIGHT_SETTINGS}
    return key_of({"version": RECIPE_VERSION, "seed": seed, **weight_settings})


def warm_policy(
    settings: SortingSettings, tokenizer: PreTrainedTokenizerFast, seed: int, cache: Path, name: str = "policy"
) -> LlamaForCausalLM:
    """Return the policy after its warm-up with these settings and seed, loaded from the cache or trained now. `name`
    says in progress reports which model is trained."""
    return load_or_train(
        cache / f"grpo-warm-{cache_key(settings, seed)}",
        seed,
        lambda: build_model(settings, tokenizer),
        lambda model, unfinished: _train(model, settings, tokenizer, seed, unfinished, name),
    )


def _train(
    model: LlamaForCausalLM,
    settings: SortingSettings,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    unfinished: Path,
    name: str,
) -> None:
    pairs = habit_pairs(settings.lengths, settings.correct_share, random.Random(f"warm-up {seed}"))
    # The second beta is lower than usual, because the warm-up has only a few hundred steps.
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.sft_learning_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    schedule = warmup_decay_schedule(optimizer, settings.sft_steps)
    model.train()
    batches = (list(islice(pairs, settings.sft_batch)) for _ in range(settings.sft_steps))
    trained = (model, optimizer, schedule)
    for _, batch in resumable_steps(f"warm-up of the {name}", batches, settings.sft_steps, trained, unfinished):
        ids, mask, labels = collate(batch, tokenizer)
        logits = model(input_ids=ids, attention_mask=mask).logits  # (batch, tokens, vocabulary)
        loss = cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        optimizer_step(loss, model.parameters(), optimizer, schedule)


def collate(pairs: Sequence[tuple[str, str]], tokenizer: PreTrainedTokenizerFast) -> tuple[Tensor, Tensor, Tensor]:
    """Return token ids, attention mask and labels of (prompt, target) pairs, padded on the left."""
    prompts = tokenizer([prompt for prompt, _ in pairs])["input_ids"]
    targets = [[*ids, tokenizer.eos_token_id] for ids in tokenizer([target for _, target in pairs])["input_ids"]]
    return target_batch(prompts, targets, tokenizer.pad_token_id, "left")


TEACHER_SETTINGS: dict[TeacherName, Callable[[SortingSettings], SortingSettings]] = {
    "initial": lambda settings: settings,
    "small": lambda settings: settings.model_copy(
        update={"hidden": settings.hidden // 2, "layers": 1, "ffn": settings.ffn // 2}
    ),
    "strong": lambda settings: settings.model_copy(update={"correct_share": 1.0}),
}
"""Functions that derive each teacher's settings from the policy's. `small` has an eighth of the policy's parameters and
learns from the same mixture of correct and wrong answers, so it holds the policy back. `strong` learns from correct
answers only."""


def build_teachers(
    trainer: Trainer,
    names: Sequence[TeacherName],
    settings: SortingSettings,
    tokenizer: PreTrainedTokenizerFast,
    seed: int,
    cache: Path,
    active: TeacherName | None = None,
) -> Teachers:
    """Return the teachers in `names`, which are ordered from weak to strong. `active` is the teacher at the start of
    the training (default: the weakest). Teachers that are not in the cache are trained now."""
    teachers = Teachers(trainer)
    for name in names:
        model = warm_policy(TEACHER_SETTINGS[name](settings), tokenizer, seed, cache, f"{name} teacher")
        teachers.add(name, model, tokenizer)
    teachers.swap(active or names[0])
    return teachers
