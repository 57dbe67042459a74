"""The endpoint `token_prior`: token scores from a corpus's unigrams or a graph's labels.

The default is the corpus's own unigrams. A graph's scores are available for comparison. Every answer reports the
measured effect of its method (ABLATION).
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import TokenPrior, TokenPriorRequest
from oven_core.protocol.token_prior_format import encode, token_count, vocabulary_sha

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""A tokenizer that converts a string to token ids."""
ABLATION: Final = {
    "unigram": "as the start of an output bias it was 0.26 bits per byte better on held-out files after 40 steps than "
    "none (bench token-prior, 5 seeds), and 0.127 ± 0.135 after 300 steps of a prototype (3 seeds): the gain shrinks",
    "kg": "scaling embeddings by a graph's scores was 0.015 bits per byte better on held-out files after 40 steps than "
    "not doing so (interval −0.010 to 0.040; bench token-prior, 5 seeds), 0.007 better than shuffled scores (−0.017 to "
    "0.032), and 0.079 worse than the same profile on the most frequent tokens (0.055 to 0.102): no effect beyond "
    "frequency",
}


def token_prior(sha: str, graph_scores: Callable[[Encode], dict[int, float]], request: TokenPriorRequest) -> TokenPrior:
    """Answer a request. `sha` is the graph's hash. `graph_scores` returns the graph's token scores for a tokenizer."""
    vocabulary_size = len(request.vocabulary or request.counts)
    if request.vocabulary and request.counts and len(request.vocabulary) != len(request.counts):
        raise ConfigError(
            f"{len(request.vocabulary)} tokens and {len(request.counts)} counts; send one count per token"
        )
    sha_of_tokens = vocabulary_sha(request.vocabulary) if request.vocabulary else request.vocabulary_sha
    if request.vocabulary_sha not in ("", sha_of_tokens):
        raise ConfigError(
            f"the vocabulary has the SHA-256 {sha_of_tokens[:16]}…, but vocabulary_sha says "
            f"{request.vocabulary_sha[:16]!r}…; send the vocabulary of the tokenizer in use"
        )
    if not re.fullmatch(r"[0-9a-f]{64}", sha_of_tokens):
        raise ConfigError(
            f"vocabulary_sha is {sha_of_tokens!r}; send the vocabulary, or its SHA-256 in 64 hexadecimal digits"
        )
    scores = _unigram_scores(request) if request.method == "unigram" else _kg_scores(graph_scores, request)
    blob = encode(scores, vocabulary_size, sha_of_tokens)
    return TokenPrior(
        graph=sha, method=request.method, tokens=token_count(blob), bytes=len(blob),
        blob=base64.b64encode(blob).decode(), ablation=ABLATION[request.method],
    )  # fmt: skip


def _unigram_scores(request: TokenPriorRequest) -> dict[int, float]:
    """Return the log probabilities of the k most frequent tokens, in nats."""
    counts, total = request.counts, sum(request.counts)
    if not total or min(counts) < 0:
        raise ConfigError("a unigram prior needs `counts`, how often each token occurs in the corpus (at least 0)")
    ranking = sorted((id_ for id_, count in enumerate(counts) if count), key=lambda id_: (-counts[id_], id_))
    return {id_: math.log(counts[id_] / total) for id_ in ranking[: request.k]}


def _kg_scores(graph_scores: Callable[[Encode], dict[int, float]], request: TokenPriorRequest) -> dict[int, float]:
    """Return rank-linear scores of the k tokens that the graph scores highest."""
    if not request.vocabulary:
        raise ConfigError("a prior from the graph needs `vocabulary`, to find the tokens of the graph's labels")
    scores = top_scores(graph_scores(LongestMatch(request.vocabulary)), request.k)
    if not scores:
        raise ConfigError("no token of the vocabulary is in a label of the graph; send tokens as strings, not byte ids")
    return scores


def top_scores(scores: Mapping[int, float], k: int) -> dict[int, float]:
    """Return the k highest scores, made linear in their rank: 1 for the first, 1/k for the last."""
    ranking = sorted((id_ for id_, score in scores.items() if score > 0), key=lambda id_: (-scores[id_], id_))[:k]
    return {id_: 1 - rank / len(ranking) for rank, id_ in enumerate(ranking)}


class LongestMatch:
    """A tokenizer that picks the longest matching token from the left, as an approximation of the real one. Characters
    that no token covers are skipped."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """`vocabulary` contains the tokens as strings, by id. If two tokens are equal, the first id counts."""
        self._ids = {text: id_ for id_, text in reversed(list(enumerate(vocabulary))) if text}
        self._max_length = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        ids, position = [], 0
        while position < len(text):
            for length in range(min(self._max_length, len(text) - position), 0, -1):
                if (id_ := self._ids.get(text[position : position + length])) is not None:
                    ids.append(id_)
                    position += length
                    break
            else:
                position += 1
        return ids
