"""`bench trace-replay`: teachers asked at 1,000 states over real HTTP, a quarter of whose answers are faulty.

Three scripted teachers of three families, two through OpenAI's SDK and one through Anthropic's. `traces replay` is
killed (SIGKILL) twice on its way and resumed. Counted are replies that are not what that teacher said of that state,
states that a whole answer was given about twice (paid twice), and what the killed calls had under way. Then a replay
with a cap, killed once, too: more than that may not be billed. Last, without faults, `traces cost` after a few traces
against what the endpoint bills for the rest. Exit code 1 if a reply is wrong, a state was paid for twice, the cap was
exceeded, or the forecast is off by more than a tenth.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import yaml
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.trace_replay.made_traces import edit, made_traces
from oven_bench.trace_replay.scripted_teachers import chosen_line
from oven_bench.trace_replay.teacher_endpoint import Bill, billed, running_teachers
from oven_core.errors import ProcessError
from oven_llm.trace_replay.replies_file import INTERRUPTED
from oven_runs.traces import jsonl
from oven_runs.traces.comparable_actions import Unusable, action
from oven_runs.traces.records import Message, Reply, ToolCall, Trace

TEACHERS: Final = {"teacher-a-80-30": "compatible", "teacher-b-70-30": "compatible", "teacher-c-60-30": "claude"}
"""Model → the provider whose API it is asked through."""
PRICE: Final = {"input": 3.0, "cached_input": 0.3, "output": 15.0}
"""US dollars per million tokens: a strong model's."""
LANES: Final = 8
SAMPLES: Final = 2
DEADLINE_S: Final = 15.0
"""Seconds: an endpoint that hangs takes two thirds of it. On a busy machine whole answers come too late within a few
seconds, and what came too late is asked for again: that is paid for twice by the endpoint's count."""
KILLED_AT: Final = (1 / 3, 2 / 3)
"""Shares of the replies at which the process is killed."""
CAP_SHARE: Final = 0.5
"""Of what the whole replay came to: the cap of the second one."""
CAPPED_KILL: Final = 40
"""Replies at which the replay with a cap is killed."""
FITTED: Final = 4
"""Traces that are asked about before the forecast."""
TOLERANCE: Final = 0.1
ANSWERED: Final = 0.9
"""Share of samples with an action, below which nothing wrong says little."""
SAMPLES_DRAWN: Final = 12
"""Answers that a state may have been given in all, faulty ones included: a reply is right if it is one of them."""


async def measure(folder: Path, traces: Sequence[Trace], seed: int) -> dict[str, Any]:
    """The figures of all three parts."""
    jsonl.write(folder / "traces.jsonl", traces)
    async with running_teachers(seed) as url:
        faulty = await _faulty(folder, url, traces)
        cap = round(faulty["billed_usd"] * CAP_SHARE, 4)
        return {
            "states": sum(len(trace.steps) for trace in traces),
            "teachers": len(TEACHERS),
            "faulty": faulty,
            "capped": await _capped(folder, url, cap),
            "forecast": await _forecast(folder, url),
        }


async def _faulty(folder: Path, url: str, traces: Sequence[Trace]) -> dict[str, Any]:
    teachers, out = _teachers_file(folder, url, "faulty", "@chaos"), folder / "faulty.jsonl"
    wanted = SAMPLES * len(TEACHERS) * sum(len(trace.steps) for trace in traces)
    started = time.monotonic()
    for share in KILLED_AT:
        await _killed(folder, teachers, out, round(share * wanted))
    said = await _called(folder, "replay", "--teachers", str(teachers), "--out", str(out))
    bill = await billed(url)
    replies = list(jsonl.read(out, Reply))
    interrupted = [reply for reply in replies if reply.failure == INTERRUPTED]
    twice = {model: sum(count > 1 for count in of.values()) for model, of in _paid(bill).items()}
    served = bill.served
    return {
        "wrong_replies": _wrong(traces, replies),
        "replies": len(replies),
        "actions": sum(reply.action is not None for reply in replies),
        "failures": dict(Counter(reply.failure for reply in replies if reply.failure)),
        "unanswered_states": {name: of["states"] - of["answered"] for name, of in said["teachers"].items()},
        "paid_twice": sum(twice.values()),
        "kills": len(KILLED_AT),
        "under_way_when_killed": len(interrupted),
        "faults_served": round(1 - served["ok"] / served.total(), 3),
        "faults": dict(served),
        "left": said["left"],
        "usd_per_trace": said["usd_per_trace"],
        "seconds_per_step_p50": said["seconds_per_step_p50"],
        "seconds_per_step_p95": said["seconds_per_step_p95"],
        "billed_usd": _usd(bill, "-faulty"),
        "seconds": round(time.monotonic() - started, 1),
    }


async def _capped(folder: Path, url: str, cap: float) -> dict[str, Any]:
    teachers, out = _teachers_file(folder, url, "capped", "@chaos", cap), folder / "capped.jsonl"
    await _killed(folder, teachers, out, CAPPED_KILL)
    said = await _called(folder, "replay", "--teachers", str(teachers), "--out", str(out))
    again = await _called(folder, "replay", "--teachers", str(teachers), "--out", str(out))
    return {
        "cap_usd": cap,
        "billed_usd": _usd(await billed(url), "-capped"),
        "stopped": said["this_call"]["stopped"],
        "asked_when_called_again": again["this_call"]["asked"],
        "left": again["left"],
    }


async def _forecast(folder: Path, url: str) -> dict[str, Any]:
    teachers, out = _teachers_file(folder, url, "forecast", ""), folder / "forecast.jsonl"
    options = ("--teachers", str(teachers), "--out", str(out))
    before_any = await _called(folder, "cost", "--teachers", str(teachers), "--replies", str(out))
    await _called(folder, "replay", *options, "--first", str(FITTED))
    spent = _usd(await billed(url), "-forecast")
    said = await _called(folder, "cost", "--teachers", str(teachers), "--replies", str(out))
    await _called(folder, "replay", *options)
    whole = _usd(await billed(url), "-forecast")
    return {
        "fitted_to_traces": FITTED,
        "forecast_usd": said["usd"],
        "low": said["low"],
        "high": said["high"],
        "billed_usd": whole - spent,
        "error": said["usd"] / (whole - spent) - 1,
        "unfitted_usd": before_any["usd"],
        "unfitted_error": before_any["usd"] / whole - 1,
    }


def _teachers_file(folder: Path, url: str, part: str, script: str, cap: float | None = None) -> Path:
    said = {
        name.split("-")[1]: {
            "family": name.split("-")[1],
            "provider": provider,
            "model": f"{name}-{part}{script}",
            "base_url": url if provider == "claude" else f"{url}/v1",
            "samples": SAMPLES,
            "max_tokens": 100,
            "deadline_s": DEADLINE_S,
            "lanes": LANES,
            "price": PRICE,
        }
        for name, provider in TEACHERS.items()
    }
    path = folder / f"{part}.yaml"
    path.write_text(yaml.safe_dump({"teachers": said} | ({"budget": {"usd": cap}} if cap else {})))
    return path


async def _called(folder: Path, name: str, *options: str) -> dict[str, Any]:
    """What the command prints. Raises ProcessError where that is not JSON."""
    process = await _started(folder, name, *options)
    printed, complaint = await process.communicate()
    try:
        found: dict[str, Any] = json.loads(printed)
    except ValueError:
        raise ProcessError(
            f"`traces {name}` ended with {process.returncode}: {complaint.decode(errors='replace')[-2000:]}"
        ) from None
    return found


async def _killed(folder: Path, teachers: Path, out: Path, lines: int) -> None:
    """A replay that is killed as soon as the file has so many lines. Raises ProcessError where it ends before."""
    process = await _started(folder, "replay", "--teachers", str(teachers), "--out", str(out))
    while not out.exists() or out.read_bytes().count(b"\n") < lines:
        if process.returncode is not None:
            _, complaint = await process.communicate()
            raise ProcessError(f"the replay ended with {process.returncode}: {complaint.decode()[-2000:]}")
        await asyncio.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    await process.communicate()


async def _started(folder: Path, name: str, *options: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "oven_controller.cli.main", "traces", name, str(folder / "traces.jsonl")),
        *options,
        "--json",
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


def _wrong(traces: Sequence[Trace], replies: Sequence[Reply]) -> int:
    """Usable actions that the teacher did not say of that state."""
    tools = {trace.id: trace.tools for trace in traces}
    models = {name.split("-")[1]: f"{name}-faulty" for name in TEACHERS}
    wrong = 0
    for reply in replies:
        if reply.action is None:
            continue
        made = action(reply.action, tools[reply.trace])
        if isinstance(made, Unusable):
            continue
        state = f"{reply.trace}s{reply.step:03}"
        lines = {chosen_line(models[reply.teacher], state, sample) for sample in range(SAMPLES_DRAWN)}
        right = [action(_edit(line, state), tools[reply.trace]) for line in lines]
        wrong += made not in right
    return wrong


def _edit(line: int, state: str) -> Message:
    name, arguments = edit(line, state)
    return Message(role="assistant", calls=(ToolCall(name=name, arguments=arguments),))


def _paid(bill: Bill) -> Mapping[str, Counter[str]]:
    """Requests with a whole answer by model and state. Anthropic's API draws one sample a request, so that a state's
    first SAMPLES of them are one question."""
    found = {}
    for model, of in bill.whole.items():
        if "-faulty" not in model:
            continue
        per_state = SAMPLES if TEACHERS[model.partition("-faulty")[0]] == "claude" else 1
        found[model] = Counter({state: -(-count // per_state) for state, count in of.items()})
    return found


def _usd(bill: Bill, part: str) -> float:
    """What the endpoint bills for the models of a part: what was served, whether it arrived or not."""
    total = 0.0
    for model, tokens in bill.tokens.items():
        if model.endswith(part):
            fresh = tokens["input"] - tokens["cached"]
            total += fresh * PRICE["input"] + tokens["cached"] * PRICE["cached_input"]
            total += tokens["output"] * PRICE["output"]
    return total / 1e6


def passed(found: Mapping[str, Any]) -> bool:
    """Whether the figures reach what is promised."""
    faulty, capped, forecast = found["faulty"], found["capped"], found["forecast"]
    whole = not (faulty["wrong_replies"] or faulty["paid_twice"])
    enough = faulty["actions"] >= ANSWERED * faulty["replies"]
    most = faulty["kills"] * LANES * len(TEACHERS) * SAMPLES
    stopped = bool(capped["stopped"]) and capped["asked_when_called_again"] == 0
    held = stopped and capped["billed_usd"] <= capped["cap_usd"]
    return whole and enough and faulty["under_way_when_killed"] <= most and held and abs(forecast["error"]) <= TOLERANCE


def bench(
    traces: Annotated[int, Option(min=8, help="Made-up traces.")] = 50,
    steps: Annotated[int, Option(min=2, help="States of each.")] = 20,
    seed: Annotated[int, Option(help="Random seed, of the faults, too.")] = 1,
    as_json: Json = False,
) -> int:
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(measure(Path(folder), made_traces(traces, steps, seed), seed))
    ok = passed(found)
    print_object(found | {"passed": ok}, as_json)
    return 0 if ok else 1


BENCH = Bench(
    "trace-replay",
    bench,
    "1,000 states × 3 teachers over HTTP, a quarter of it faulty, killed and resumed; the cap; the forecast",
    "--json",
)
