"""`bench local-teachers`: a whole replay of real traces by real models, from collecting to the gates' curves.

The student is the recipe `repair`'s warm policy; its attempts at tasks of the training side are recorded by TRL. Three
models of unlike size and training, all trained on the spot and served over HTTP, are asked at each of its states
(`traces replay`), and the student itself is asked for further actions of its own. Then `traces pairs` and `traces
gate`. Reported are pairs per trace beside the source's five, the KL of (chosen, rejected) features against random pairs
of the same states with its null, and the gates' curves; and how right the pairs are: where one of the two actions is an
edit, both are tried in the environment, and the tests are run after each. Exit code 1 if there were fewer than 50
traces, or no pair.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from typer import Option

from oven_bench.bench_command import Bench, HomeFolder, Json, home_folder, print_object
from oven_bench.trace_replay.directions import directions
from oven_bench.trace_replay.local_models import MODELS, QUICK, STUDENT
from oven_bench.trace_replay.model_endpoint import running_models
from oven_core.errors import ProcessError
from oven_runs.traces import jsonl
from oven_runs.traces.records import Pair, Reply, Trace, TraceStep

LEAST: Final = 50
"""Traces below which figures per trace say little."""
SOURCE_PAIRS: Final = 5
"""Pairs per trace that the source asked for."""
TASKS: Final = "local teachers"
"""The seed of the tasks. They are on the side of the split that is trained on: so can their pairs be, and the held-out
tasks of an A/B stay unseen."""
OWN: Final = 4
"""Further actions of the student at each state."""
MAX_TOKENS: Final = 160
"""Of an answer: an edit of two lines has some sixty."""


async def measure(
    folder: Path, home: Path, rollouts: int, attempts: int, samples: int, *, quick: bool
) -> dict[str, Any]:
    """The figures. `folder` gets all files; `home` keeps the models."""
    started = time.monotonic()
    traces, replies = folder / "traces.jsonl", folder / "replies.jsonl"
    sizes = {"group_size": attempts} | (QUICK if quick else {})
    chosen = MODELS[STUDENT].settings.tasks(TASKS, -(-rollouts // attempts))
    (folder / "instances.jsonl").write_text("".join(f"{one.model_dump_json()}\n" for one in chosen))
    options = ["--rollouts", str(rollouts), "--seed", str(MODELS[STUDENT].seed)]
    options += ["--instances", str(folder / "instances.jsonl")]
    options += [word for name, value in sizes.items() for word in ("--set", f"{name}={value}")]
    collected = json.loads(await _run(home, "collect", str(traces), *options, "--json"))
    async with running_models(home / "cache", quick=quick) as url:
        teachers = [name for name in MODELS if name != STUDENT]
        asked = folder / "teachers.yaml"
        asked.write_text(yaml.safe_dump(_teachers(url, teachers, samples)))
        said = await _replayed(home, traces, asked, replies)
        own = folder / "student.yaml"
        own.write_text(yaml.safe_dump(_teachers(url, [STUDENT], OWN)))
        await _replayed(home, traces, own, folder / "own.jsonl")
    with_own = folder / "with_own.jsonl"
    with_traces = list(_own_actions(list(jsonl.read(traces, Trace)), folder / "own.jsonl"))
    jsonl.write(with_own, with_traces)
    pairs = folder / "pairs.jsonl"
    mined = await _run(home, "pairs", str(with_own), str(replies), "--out", str(pairs), "--json")
    gates = await _run(home, "gate", str(with_own), str(replies), "--json")
    found = list(jsonl.read(pairs, Pair)) if pairs.stat().st_size else []
    return {
        "collected": collected,
        "replay": said,
        "pairs": json.loads(mined),
        "source_pairs_per_trace": SOURCE_PAIRS,
        "right_directions": directions(with_traces, found, {one.instance_id: one for one in chosen}),
        "gates": json.loads(gates),
        "seconds": round(time.monotonic() - started, 1),
    }


async def _replayed(home: Path, traces: Path, teachers: Path, replies: Path) -> dict[str, Any]:
    options = ("--teachers", str(teachers), "--out", str(replies), "--json")
    found: dict[str, Any] = json.loads(await _run(home, "replay", str(traces), *options))
    return found


def _teachers(url: str, names: Sequence[str], samples: int) -> dict[str, Any]:
    """`names` at the endpoint's address."""
    return {
        "teachers": {
            name: {
                "family": MODELS[name].family,
                "provider": "compatible",
                "model": name,
                "base_url": f"{url}/v1",
                "samples": samples,
                "max_tokens": MAX_TOKENS,
                "temperature": 1.0,
                "lanes": 1,
                "price": {"input": MODELS[name].price, "output": 4 * MODELS[name].price},
            }
            for name in names
        }
    }


def _own_actions(traces: Sequence[Trace], replies: Path) -> Iterator[Trace]:
    """The traces with what else the student would have done at each state."""
    found: dict[tuple[str, int], list[Reply]] = defaultdict(list)
    for reply in jsonl.read(replies, Reply):
        found[(reply.trace, reply.step)].append(reply)
    for trace in traces:
        steps: list[TraceStep] = []
        for at, step in enumerate(trace.steps):
            own = tuple(reply.action for reply in found[(trace.id, at)] if reply.action is not None)
            steps.append(step.model_copy(update={"own": own}))
        yield trace.model_copy(update={"steps": tuple(steps)})


async def _run(home: Path, name: str, *arguments: str) -> str:
    """What `oven-controller traces NAME` prints, its cache in `home`. Raises ProcessError where it fails: 1 is an
    answer, too."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "oven_controller.cli.main", "traces", name, *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=os.environ | {"OVEN_HOME": str(home)},
    )
    printed, complaint = await process.communicate()
    if process.returncode not in (0, 1) or not printed:
        raise ProcessError(
            f"`traces {name}` ended with {process.returncode}: {complaint.decode(errors='replace')[-2000:]}"
        )
    return printed.decode().strip().splitlines()[-1]


def bench(
    rollouts: Annotated[int, Option(min=2, help="Traces to collect.")] = 64,
    attempts: Annotated[int, Option(min=2, help="Of each task.")] = 2,
    samples: Annotated[int, Option(min=1, help="Answers of each teacher at a state.")] = 3,
    folder: Annotated[Path | None, Option("--folder", metavar="DIR", help="Keep all files there.")] = None,
    home: HomeFolder = None,
    quick: Annotated[bool, Option("--quick", help="Tiny models, to see that it runs; no figure to keep.")] = False,
    as_json: Json = False,
) -> int:
    with contextlib.ExitStack() as opened:
        kept = opened.enter_context(home_folder(home))
        where = folder or Path(opened.enter_context(tempfile.TemporaryDirectory()))
        where.mkdir(parents=True, exist_ok=True)
        found = asyncio.run(measure(where, kept, rollouts, attempts, samples, quick=quick))
    print_object(found, as_json)
    return 0 if found["collected"]["traces"] >= LEAST and found["pairs"]["pairs"] else 1


BENCH = Bench(
    "local-teachers",
    bench,
    "a replay of real traces by three models trained on the spot: pairs per trace, their KL, the gates' curves",
    "--rollouts 64 --json",
)
