"""`bench committee`: what becomes of groups whose judges fail, over the bus alone or over real HTTP."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object


def bench(
    groups: Annotated[int, Option(min=1, help="Groups of eight completions.")] = 200,
    members: Annotated[int, Option(min=1, help="Remote members, beside one rule.")] = 4,
    share: Annotated[float, Option(min=0, max=1, help="Share of answers that are faulty.")] = 0.25,
    deadline: Annotated[
        float | None, Option(help="Seconds that a step's groups get.", show_default="1; 12 with --http")
    ] = None,
    seed: Annotated[int, Option(help="Random seed.")] = 1,
    http: Annotated[
        bool, Option("--http", help="LLM judges over real HTTP, through both SDKs; a quarter of all requests fails.")
    ] = False,
    as_json: Json = False,
) -> int:
    if http:  # it imports an HTTP server, which the other one needs not have
        return _over_http(groups, members, deadline, seed, as_json)
    from oven_bench.judging import faulty_members

    with tempfile.TemporaryDirectory() as scratch:
        found = faulty_members.measure(Path(scratch), groups, members, share, deadline or 1.0, seed)
    print_object(found, as_json)
    counted = sum(found["faults_by_kind"].values())
    return 1 if found["wrong_scores"] or counted != found["faults_injected"] else 0


def _over_http(groups: int, members: int, deadline: float | None, seed: int, as_json: bool) -> int:
    from oven_bench.judging import judges_over_http

    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(judges_over_http.measure(Path(scratch), groups, members, deadline or 12.0, seed))
    print_object(found, as_json)
    return 0 if judges_over_http.passed(found) else 1


BENCH = Bench(
    "committee",
    bench,
    "remote judges with 25 % faults: wrong scores, skipped groups, faults by kind",
    "--groups 200 --http --json",
)
