"""The commands `kg curriculum` and `token-prior`: questions with a training's own data."""

from __future__ import annotations

import base64
import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from oven_controller.cli.kg_options import GraphFile, checked_request, graph_reply
from oven_controller.cli.options import Json
from oven_core.errors import ConfigError
from oven_core.files import read_file
from oven_core.protocol.graph_requests import (
    Curriculum,
    CurriculumRequest,
    TokenPrior,
    TokenPriorRequest,
)
from oven_core.terminal_text import say

VOCABULARY_BYTES = 64 * 2**20


def curriculum(
    mastery: Annotated[list[str], typer.Argument(metavar="TOPIC=RIGHT/TRIED")],
    needs: Annotated[list[str] | None, typer.Option(metavar="TOPIC:NEED", help="TOPIC builds on NEED")] = None,
    threshold: Annotated[float, typer.Option(help="lower bound of mastery that a need must reach")] = 0.5,
    floor: Annotated[float, typer.Option(help="share that is spread evenly")] = 0.05,
    graph_file: GraphFile = None,
    as_json: Json = False,
) -> int:
    """Compute shares of training topics from the mastery of each and from which topic builds on which.

    Example: oven-controller kg curriculum add=90/100 multiply=20/100 --needs multiply:add
    """
    asked = {
        "mastery": [_mastery(text) for text in mastery],
        "prerequisites": [_pair(text) for text in needs or ()],
        "threshold": threshold,
        "floor": floor,
    }
    found = graph_reply(graph_file, "curriculum", checked_request(CurriculumRequest, asked), Curriculum)
    if as_json:
        say(*json.dumps(found.model_dump(mode="json"), indent=1).splitlines())
        return 0
    for topic, weight in found.weights.items():
        say(f"{weight:6.1%}  {topic}")
    for short in found.unmet:
        say(f"not yet: {' builds on '.join(short.path)}, of which {short.bound:.0%} is sure")
    return 0


def _mastery(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(.+)=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", text)
    if not match or float(match[2]) > float(match[3]):
        raise ConfigError(f"{text!r} is not a mastery; write TOPIC=RIGHT/TRIED, e.g. add=90/100")
    return {"topic": match[1], "successes": float(match[2]), "failures": float(match[3]) - float(match[2])}


def _pair(text: str) -> tuple[str, str]:
    topic, found, need = text.partition(":")
    if not (topic and found and need):
        raise ConfigError(f"--needs {text!r} is not a pair; write TOPIC:NEED, e.g. multiply:add")
    return topic, need


def token_prior(
    vocabulary_file: Annotated[Path, typer.Argument(metavar="FILE", help="the tokens' texts by id: a JSON list")],
    corpus: Annotated[
        Path | None, typer.Option(metavar="FILE", help="token ids, separated by white space (unigram)")
    ] = None,
    method: Annotated[Literal["unigram", "kg"], typer.Option()] = "unigram",
    k: Annotated[int, typer.Option("-k", help="tokens in it")] = 358,
    to: Annotated[Path | None, typer.Option(metavar="FILE", help="where the bytes go")] = None,
    graph_file: GraphFile = None,
    as_json: Json = False,
) -> int:
    """Score the tokens that matter most, in at most a kilobyte.

    Example: oven-controller kg token-prior vocab.json --corpus ids.txt --to prior.bin
    """
    vocabulary = _vocabulary(vocabulary_file)
    if method == "unigram" and corpus is None:
        raise ConfigError("a unigram prior counts tokens: give --corpus, or --method kg")
    counts = _counts(corpus, len(vocabulary)) if corpus else ()
    asked = {"method": method, "vocabulary": vocabulary, "counts": counts, "k": k}
    found = graph_reply(graph_file, "token_prior", checked_request(TokenPriorRequest, asked), TokenPrior)
    if to:
        to.write_bytes(base64.b64decode(found.blob))
    if as_json:
        print(found.model_dump_json(indent=1))
        return 0
    print(f"{found.tokens} tokens in {found.bytes} bytes ({found.method})")
    print(f"measured: {found.ablation}")
    return 0


def _vocabulary(path: Path) -> list[str]:
    text = _text(path)
    try:
        found = json.loads(text) if path.suffix == ".json" else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ConfigError(f"{path} is not a vocabulary; it is a .json file with a list of the tokens' texts, by id")
    return found


def _counts(path: Path, size: int) -> tuple[int, ...]:
    counted = Counter(_text(path).split())
    if bad := [word for word in counted if not word.isdecimal() or int(word) >= size]:
        raise ConfigError(f"{path} holds {bad[0][:40]!r}, which is not a token id below {size}")
    found = Counter({int(word): count for word, count in counted.items()})
    return tuple(found[id_] for id_ in range(size))


def _text(path: Path) -> str:
    try:
        return read_file(path, "the file", VOCABULARY_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error
