"""A graph's scores of a model's tokens, as both experiments with them take these: at most a kilobyte for 358 tokens."""

from __future__ import annotations

import base64
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import TokenPrior, TokenPriorRequest
from oven_core.protocol.token_scores import decode, encode, vocabulary_sha
from oven_kg.service.endpoints import answers
from oven_kg.token_prior.label_scores import PREFIXES, LongestMatch, node_importance, token_scores, top
from oven_kg.token_prior.python_triples import triples_of

TOKENS: Final = 358
"""That have a score: as many as in the source experiment."""


@dataclass(frozen=True)
class GraphScores:
    """For the vocabulary of `size` tokens that has the SHA-256 `sha`."""

    blob: bytes
    size: int
    sha: str
    nodes: int
    edges: int
    graph: str
    """Where they are from: the large graph's own SHA-256, or what was read."""

    @cached_property
    def scores(self) -> dict[int, float]:
        """Token → score, 0 to 1, as the blob has it: 4 bits each."""
        return decode(self.blob, self.size, self.sha)

    def shuffled(self, seed: int) -> bytes:
        """The same scores on tokens that the seed draws."""
        ids = random.Random(seed).sample(range(self.size), len(self.scores))
        return encode(dict(zip(ids, self.scores.values(), strict=True)), self.size, self.sha)

    @property
    def figures(self) -> dict[str, object]:
        """What a bench says of them."""
        return {
            "graph": self.graph,
            "graph_nodes": self.nodes,
            "graph_edges": self.edges,
            "blob_bytes": len(self.blob),
            "tokens": len(self.scores),
        }


def scores_of_sources(files: Sequence[Path], texts: Sequence[str]) -> GraphScores:
    """Of the graph that Python sources make: names, and what they call, raise, catch and contain."""
    triples = [triple for path in files for triple in triples_of(path)]
    nodes = sorted({end for src, _, dst in triples for end in (src, dst)})
    scores = token_scores(node_importance(nodes, triples), _labels, LongestMatch(texts))
    sha = vocabulary_sha(texts)
    blob = encode(top(scores, TOKENS), len(texts), sha)
    return GraphScores(blob, len(texts), sha, len(nodes), len(set(triples)), "the sources trained on")


def _labels(name: str) -> Iterator[str]:
    """A name and its parts, in the contexts in which they occur in a program."""
    for word in dict.fromkeys((name, *name.split("_"))):
        if word:
            yield from (prefix + word for prefix in (*PREFIXES, ".", "("))


def scores_of_folder(folder: Path, texts: Sequence[str]) -> GraphScores:
    """Of a large graph, as the prior service with `--set kg=FOLDER` answers. Raises ConfigError for a folder that is
    not one, and where no token of the vocabulary is in the graph's names."""
    from oven_kg.arrays.folder import open_folder

    arrays = open_folder(folder)
    ask = answers(large=folder)
    asked = TokenPriorRequest(method="kg", vocabulary=tuple(texts), k=TOKENS)
    answer = ask("token_prior", asked.wire())
    if answer is None:
        raise ConfigError("the prior service has no endpoint `token_prior`")
    found = TokenPrior.model_validate_json(answer)
    blob = base64.b64decode(found.blob)
    return GraphScores(blob, len(texts), vocabulary_sha(texts), arrays.nodes, len(arrays.dst), found.graph)
