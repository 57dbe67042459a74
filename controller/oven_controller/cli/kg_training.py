"""The commands `kg curriculum` and `kg token-prior`, which use a graph to weight training topics and score tokens."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
from pydantic import TypeAdapter, ValidationError

from oven_controller.cli.kg_queries import checked_request, graph_option, query_graph
from oven_controller.cli.options import PATH, argument, json_option
from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest, TokenPrior, TokenPriorRequest
from oven_core.terminal_text import say

MAX_BYTES: Final = 64 * 2**20
"""Maximum size of the vocabulary file, and of the corpus file."""


@click.command()
@argument("mastery", nargs=-1, required=True, metavar="TOPIC=RIGHT/TRIED...")
@click.option("--needs", multiple=True, metavar="TOPIC:NEED", help="TOPIC builds on NEED.")
@click.option(
    "--threshold", type=float, default=0.5, help="Mastery that a prerequisite must reach (lower bound), 0 to 1."
)
@click.option("--floor", type=float, default=0.05, help="Share to spread evenly over all topics.")
@graph_option
@json_option
def curriculum(
    mastery: Sequence[str], needs: Sequence[str], threshold: float, floor: float, graph_file: Path | None, as_json: bool
) -> int:
    """Compute the training share of each topic from the topics' mastery and prerequisites.

    Example: oven-controller kg curriculum add=90/100 multiply=20/100 --needs multiply:add
    """
    fields = {
        "mastery": [_parse_mastery(text) for text in mastery],
        "prerequisites": [_parse_prerequisite(text) for text in needs],
        "threshold": threshold,
        "floor": floor,
    }
    request = checked_request(CurriculumRequest, fields)
    linked_topics = {topic for pair in request.prerequisites for topic in pair}
    # Only the graph has the prerequisites of the other topics, so it must contain these topics.
    unlinked_topics = [entry.topic for entry in request.mastery if entry.topic not in linked_topics]
    answer = query_graph(graph_file, "curriculum", request, Curriculum, unlinked_topics)
    if as_json:
        say(*json.dumps(answer.model_dump(mode="json"), indent=1).splitlines())
        return 0
    for topic, weight in answer.weights.items():
        say(f"{weight:6.1%}  {topic}")
    for need in answer.unmet:
        say(f"not ready: {' builds on '.join(need.path)}, whose mastery is only {need.bound:.0%} (lower bound)")
    return 0


def _parse_mastery(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(.+)=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", text)
    if not match or float(match[2]) > float(match[3]):
        raise ConfigError(f"{text!r} is not a mastery; write TOPIC=RIGHT/TRIED, e.g. add=90/100")
    return {"topic": match[1], "successes": float(match[2]), "failures": float(match[3]) - float(match[2])}


def _parse_prerequisite(text: str) -> tuple[str, str]:
    topic, _, need = text.partition(":")
    if not (topic and need):
        raise ConfigError(f"--needs {text!r} is not a pair; write TOPIC:NEED, e.g. multiply:add")
    return topic, need


@click.command()
@argument("vocabulary_file", type=PATH, metavar="FILE", help="The tokens' strings by id: a JSON list.")
@click.option("--corpus", type=PATH, metavar="FILE", help="Token ids, separated by whitespace (for unigram).")
@click.option(
    "--method",
    type=click.Choice(["unigram", "kg"]),
    default="unigram",
    help="Score by the corpus, or by the graph's labels.",
)
@click.option("-k", "token_count", type=int, default=358, help="Number of tokens.")
@click.option("--to", type=PATH, metavar="FILE", help="Write the encoded scores to this file.")
@graph_option
@json_option
def token_prior(
    vocabulary_file: Path,
    corpus: Path | None,
    method: str,
    token_count: int,
    to: Path | None,
    graph_file: Path | None,
    as_json: bool,
) -> int:
    """Score the most important tokens, encoded in at most a kilobyte.

    Example: oven-controller kg token-prior vocab.json --corpus ids.txt --to prior.bin
    """
    vocabulary = _read_vocabulary(vocabulary_file)
    if method == "unigram" and corpus is None:
        raise ConfigError("a unigram prior needs token counts; add --corpus FILE, or use --method kg")
    counts = _count_tokens(corpus, len(vocabulary)) if corpus else ()
    fields = {"method": method, "vocabulary": vocabulary, "counts": counts, "k": token_count}
    answer = query_graph(graph_file, "token_prior", checked_request(TokenPriorRequest, fields), TokenPrior)
    if to:
        to.write_bytes(base64.b64decode(answer.blob))
    if as_json:
        print(answer.model_dump_json(indent=1))
        return 0
    print(f"{answer.tokens} tokens in {answer.bytes} bytes ({answer.method})")
    print(f"measured: {answer.ablation}")
    return 0


def _read_vocabulary(path: Path) -> list[str]:
    text = _read_text(path)
    if path.suffix == ".json":
        with contextlib.suppress(ValidationError):
            return TypeAdapter(list[str]).validate_json(text)
    raise ConfigError(f"{path} is not a vocabulary; use a .json file with a list of the tokens' strings, sorted by id")


def _count_tokens(path: Path, vocabulary_size: int) -> tuple[int, ...]:
    """Count the occurrences of each token id below `vocabulary_size` in a file."""
    counts = Counter(_read_text(path).split())
    if invalid := [word for word in counts if not word.isdecimal() or int(word) >= vocabulary_size]:
        raise ConfigError(f"{path} contains {invalid[0][:40]!r}, which is not a token id below {vocabulary_size}")
    counts_by_id = [0] * vocabulary_size
    for word, count in counts.items():
        counts_by_id[int(word)] += count
    return tuple(counts_by_id)


def _read_text(path: Path) -> str:
    try:
        return read_file(path, "the file", MAX_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
