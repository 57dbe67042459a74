"""`oven-controller kg learn | curriculum | token-prior | query`: the other endpoints, offline."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from oven_controller.errors import ConfigError
from oven_controller.log.outcome_reports import OutcomeReports
from oven_controller.protocol.requests import CurriculumRequest, GraphQuery, OutcomeReport, TokenPriorRequest
from oven_controller.runs import log_reader
from oven_controller.runs.folder import Home, RunFolder
from oven_controller.security.signing import Keyring
from oven_controller.user_files import read_file
from oven_kg.cli.commands import SUMMARIES, Command, graph_and_json, parser_of
from oven_kg.graph.knowledge import load
from oven_kg.reasoning.curriculum import curriculum
from oven_kg.reasoning.posteriors import Posteriors
from oven_kg.reasoning.query import query
from oven_kg.service.posterior_store import read, write
from oven_kg.token_prior.prior import token_prior

VOCABULARY_BYTES = 64 * 2**20


def _learn(args: list[str]) -> int:
    parser = parser_of("learn", "grpo-1121-0231 grpo-1122-0914 --to learnt.json")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="recorded runs")
    parser.add_argument("--to", type=Path, required=True, metavar="FILE", help="what is there already is kept")
    parser.add_argument(
        "--half-life", type=int, default=None, metavar="TICKS", help="age at which an outcome counts half (0: never)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(args)
    known = read(options.to) if options.to.exists() else Posteriors()
    if options.half_life is not None:
        if options.half_life < 0:
            raise ConfigError(f"--half-life is {options.half_life}; it is a number of ticks from 0")
        known = replace(known, half_life=options.half_life)
    before = len(known.reports)
    for name in options.runs:
        known = known.with_(*asyncio.run(_reports(Home().find(name))))
    write(options.to, known)
    found = {"outcomes": len(known.reports), "added": len(known.reports) - before, "posteriors": known.sha}
    print(
        json.dumps(found) if options.json else f"{found['added']} outcomes added, {found['outcomes']} in {options.to}"
    )
    return 0


async def _reports(folder: RunFolder) -> list[OutcomeReport]:
    keyring, reports = Keyring(folder.pin()), OutcomeReports(folder.run)
    heard = [reports.hear(keyring.judge(event)) async for event in log_reader.events(folder, exact=True)]
    return [report for report in heard if report is not None]


def _curriculum(args: list[str]) -> int:
    parser = parser_of(
        "curriculum", "add=90/100 multiply=20/100 divide=0/10 --needs multiply:add --needs divide:multiply"
    )
    parser.add_argument("mastery", nargs="+", metavar="TOPIC=RIGHT/TRIED")
    parser.add_argument("--needs", action="append", default=[], metavar="TOPIC:NEED", help="TOPIC builds on NEED")
    parser.add_argument(
        "--threshold", type=float, default=0.5, help="lower bound of mastery that a need must reach (0.5)"
    )
    parser.add_argument("--floor", type=float, default=0.05, help="share that is spread evenly (0.05)")
    graph_and_json(parser)
    options = parser.parse_args(args)
    asked = {
        "mastery": [_mastery(text) for text in options.mastery],
        "prerequisites": [_pair(text) for text in options.needs],
        "threshold": options.threshold,
        "floor": options.floor,
    }
    found = curriculum(load(options.graph), _valid(CurriculumRequest, asked))
    if options.json:
        print(found.model_dump_json(indent=1))
        return 0
    for topic, weight in found.weights.items():
        print(f"{weight:6.1%}  {topic}")
    for short in found.unmet:
        print(f"not yet: {' builds on '.join(short.path)}, of which {short.bound:.0%} is sure")
    return 0


def _mastery(text: str) -> dict[str, Any]:
    match = re.fullmatch(r"(.+)=(\d+(?:\.\d+)?)/(\d+(?:\.\d+)?)", text)
    if not match or float(match[2]) > float(match[3]):
        raise ConfigError(f"{text!r} is no mastery; write TOPIC=RIGHT/TRIED, e.g. add=90/100")
    return {"topic": match[1], "successes": float(match[2]), "failures": float(match[3]) - float(match[2])}


def _pair(text: str) -> tuple[str, str]:
    topic, found, need = text.partition(":")
    if not (topic and found and need):
        raise ConfigError(f"--needs {text!r} is no pair; write TOPIC:NEED, e.g. multiply:add")
    return topic, need


def _token_prior(args: list[str]) -> int:
    parser = parser_of("token-prior", "vocab.json --corpus ids.txt --to prior.bin")
    parser.add_argument("vocabulary", type=Path, metavar="FILE", help="the tokens' texts by id: a JSON list")
    parser.add_argument("--corpus", type=Path, metavar="FILE", help="token ids, separated by white space (unigram)")
    parser.add_argument("--method", choices=("unigram", "kg"), default="unigram")
    parser.add_argument("-k", type=int, default=358, help="tokens in it (358)")
    parser.add_argument("--to", type=Path, metavar="FILE", help="where the bytes go")
    graph_and_json(parser)
    options = parser.parse_args(args)
    vocabulary = _vocabulary(options.vocabulary)
    if options.method == "unigram" and options.corpus is None:
        raise ConfigError("a unigram prior counts tokens: give --corpus, or --method kg")
    counts = _counts(options.corpus, len(vocabulary)) if options.corpus else ()
    asked = {"method": options.method, "vocabulary": vocabulary, "counts": counts, "k": options.k}
    found = token_prior(load(options.graph), _valid(TokenPriorRequest, asked))
    if options.to:
        options.to.write_bytes(base64.b64decode(found.blob))
    if options.json:
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
        raise ConfigError(f"{path} is no vocabulary; it is a .json file with a list of the tokens' texts, by id")
    return found


def _counts(path: Path, size: int) -> tuple[int, ...]:
    counted = Counter(_text(path).split())
    if bad := [word for word in counted if not word.isdecimal() or int(word) >= size]:
        raise ConfigError(f"{path} holds {bad[0][:40]!r}, which is no token id below {size}")
    found = Counter({int(word): count for word, count in counted.items()})
    return tuple(found[id_] for id_ in range(size))


def _text(path: Path) -> str:
    try:
        return read_file(path, "the file", VOCABULARY_BYTES).decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


def _query(args: list[str]) -> int:
    parser = parser_of("query", "path weights_shrink rollback_and_lower_decay")
    parser.add_argument("op", choices=get_args(GraphQuery.model_fields["op"].annotation))
    parser.add_argument("node", help="a node's id; for search: words")
    parser.add_argument("to", nargs="?", default="", help="for path: where it ends")
    parser.add_argument("--limit", type=int, default=20, help="rows wanted, at most 200 (20)")
    graph_and_json(parser)
    options = parser.parse_args(args)
    asked = {"op": options.op, "node": options.node, "to": options.to, "limit": options.limit}
    found = query(load(options.graph), _valid(GraphQuery, asked))
    if options.json:
        print(found.model_dump_json(indent=1))
        return 0
    for row in found.rows:
        way = {"out": f"→ {row.relation} →", "in": f"← {row.relation} ←", "": ""}[row.towards]
        score = f"{row.score:.4f}" if options.op == "ppr" else ""
        print("  ".join(part for part in (score, way, row.node, f"({row.kind}) {row.text}") if part))
    if found.more:
        print(f"and more; --limit {2 * options.limit} shows them")
    return 0


def _valid(of: type[Any], values: dict[str, Any]) -> Any:
    try:
        return of.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None


LEARN = Command(SUMMARIES["learn"], _learn)
CURRICULUM = Command(SUMMARIES["curriculum"], _curriculum)
TOKEN_PRIOR = Command(SUMMARIES["token-prior"], _token_prior)
QUERY = Command(SUMMARIES["query"], _query)
