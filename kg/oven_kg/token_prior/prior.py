"""The endpoint `token_prior`: scores of tokens by a corpus's unigram, or by a graph's labels.

The default is the corpus' own unigram. A graph's scores are there to be compared with it, and every answer says what
the comparison gave.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Sequence
from typing import Final

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import TokenPrior, TokenPriorRequest
from oven_core.protocol.token_scores import encode, tokens_in, vocabulary_sha
from oven_kg.graph.knowledge import Knowledge
from oven_kg.token_prior.label_scores import Encode, node_importance, token_scores, top, words

ABLATION: Final = {
    "unigram": "as the start of an output bias it was 0.26 bits per byte better on held-out files after 40 steps than "
    "none (bench token-prior, 5 seeds), and 0.127 ± 0.135 after 300 steps of a prototype (3 seeds): the gain shrinks",
    "kg": "scaling embeddings by a graph's scores was 0.015 bits per byte better on held-out files after 40 steps than "
    "not doing so (interval −0.010 to 0.040; bench token-prior, 5 seeds), 0.007 better than shuffled scores (−0.017 to "
    "0.032), and 0.079 worse than the same profile on the most frequent tokens (0.055 to 0.102): no effect beyond "
    "frequency",
}


def token_prior(sha: str, of_graph: Callable[[Encode], dict[int, float]], asked: TokenPriorRequest) -> TokenPrior:
    """`sha`: the graph's; `of_graph`: the scores of tokens that it gives, cut by a tokenizer. Raises ConfigError for a
    request without what its method needs."""
    size = len(asked.vocabulary or asked.counts)
    if asked.vocabulary and asked.counts and len(asked.vocabulary) != len(asked.counts):
        raise ConfigError(f"{len(asked.vocabulary)} tokens and {len(asked.counts)} counts; give one count a token")
    own = vocabulary_sha(asked.vocabulary) if asked.vocabulary else asked.vocabulary_sha
    if asked.vocabulary_sha not in ("", own):
        raise ConfigError(
            f"the vocabulary sent has the SHA-256 {own[:16]}…, and vocabulary_sha says {asked.vocabulary_sha[:16]!r}…: "
            "it is another tokenizer's; send the vocabulary of the one that is trained"
        )
    if not re.fullmatch(r"[0-9a-f]{64}", own):
        raise ConfigError(f"vocabulary_sha is {own!r}; send the vocabulary, or its SHA-256 in 64 hexadecimal digits")
    scores = _unigram(asked) if asked.method == "unigram" else _from_graph(of_graph, asked)
    blob = encode(scores, size, own)
    return TokenPrior(
        graph=sha,
        method=asked.method,
        tokens=tokens_in(blob),
        bytes=len(blob),
        blob=base64.b64encode(blob).decode(),
        ablation=ABLATION[asked.method],
    )


def _unigram(asked: TokenPriorRequest) -> dict[int, float]:
    """Log probability in nats, of the k most frequent."""
    total = sum(asked.counts)
    if not total or min(asked.counts) < 0:
        raise ConfigError("a unigram prior needs `counts`: how often each token is in the corpus, 0 or more each")
    ranked = sorted((id_ for id_, n in enumerate(asked.counts) if n), key=lambda id_: (-asked.counts[id_], id_))
    return {id_: math.log(asked.counts[id_] / total) for id_ in ranked[: asked.k]}


def label_scores(graph: Knowledge, encode: Encode) -> dict[int, float]:
    """Token → score, from the importance of the nodes in whose ids and texts it is."""
    triples = [(edge.src, edge.relation, edge.dst) for edge in graph.edges.values()]
    importance = node_importance(sorted(graph.nodes), triples)
    return token_scores(importance, lambda node: words(node, graph.nodes[node].text), encode)


def _from_graph(of_graph: Callable[[Encode], dict[int, float]], asked: TokenPriorRequest) -> dict[int, float]:
    """Rank-linear scores of the k tokens that the graph's labels give most."""
    if not asked.vocabulary:
        raise ConfigError("a prior from the graph needs `vocabulary`: it looks its labels up among the tokens")
    texts = {text: id_ for id_, text in reversed(list(enumerate(asked.vocabulary))) if text}
    found = top(of_graph(Longest(texts)), asked.k)
    if not found:
        raise ConfigError("no token of the vocabulary is in a label of the graph; is it one of byte ids?")
    return found


class Longest:
    """Cuts a text into the longest tokens that fit, from the left: near what a tokenizer does, without being one. What
    no token covers is left out."""

    def __init__(self, texts: dict[str, int]) -> None:
        self._texts = texts
        self._most = max(map(len, texts), default=0)

    def __call__(self, text: str) -> Sequence[int]:
        found, at = [], 0
        while at < len(text):
            for length in range(min(self._most, len(text) - at), 0, -1):
                if (id_ := self._texts.get(text[at : at + length])) is not None:
                    found.append(id_)
                    at += length
                    break
            else:
                at += 1
        return found
