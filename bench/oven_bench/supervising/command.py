"""`bench supervised-run`: what a supervised run takes besides its models.

`worker_batch`: a program asks for 64 prompts at once, 16 of which are under way at a time, over real HTTP from an
endpoint in another process that takes 50 ms; `ideal_ms` is four times that. `ms` is the median over batches, `first_ms`
the one that opens the connections. `faulty`: a quarter of the requests fails in ten ways. A slot is wrong if it holds
another text than its prompt's answer, or none and no reason; an answer that was cut is marked and counted.

`loop`: a diagnosis of a log of 5,000 steps with models that answer at once. `context_ms`: its events become what a
diagnosis reads; `alarms_ms`: detectors and the knowledge graph; `loop_ms`: the sandbox is started, the context goes in,
three programs run, the answer's evidence is computed again, logs are written. `ms` is all of it, the median over runs.
It is right if the evidence names the two metrics that break, from where they do.
"""

from __future__ import annotations

import math
from collections import Counter
from statistics import median
from typing import Annotated, Any, Final

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object, print_table
from oven_bench.supervising.scripted_model import ScriptedModel, program
from oven_bench.supervising.slow_endpoint import reply, running_slowly
from oven_core.errors import ProcessError
from oven_llm.supervisor.model_calls import CUT_SHORT
from oven_llm.supervisor.models import ModelHandler, OpenAIHandler
from oven_llm.supervisor.orchestrator import run
from oven_llm.supervisor.program_functions import FAILED

LATENCY_S: Final = 0.05
PROMPTS: Final = 64
AT_A_TIME: Final = 16
TIMEOUT_S: Final = 10.0
"""Of one call with its repetitions: a request that hangs ends then."""
BOUND: Final = 1.5
"""Times the ideal that a batch may take."""
LOOP_BOUND_MS: Final = 500.0
"""That a run over the log may take besides its models."""
ONSET_STEPS: Final = 20
"""After the break within which the programs' onset is right."""
BATCHES = """\
import time
prompts = [f"prompt {{at}}" for at in range({prompts})]
found = []
for _ in range({batches}):
    began = time.perf_counter()
    slots = worker_batch(prompts)
    found.append([time.perf_counter() - began, slots])
FINAL(found)
"""


def batches(worker: ModelHandler, count: int) -> list[tuple[float, list[Any]]]:
    """(seconds, slots) of each batch, as the program saw them."""
    code = BATCHES.format(prompts=PROMPTS, batches=count)
    result = run("how long?", "nothing", ScriptedModel([program(code)]), worker, concurrency=AT_A_TIME)
    if result.ended != "final":
        raise ProcessError(f"the program did not end: {result.ended} {result.why}")
    return [(seconds, slots) for seconds, slots in result.answer]


def judged(slots: list[Any]) -> Counter[str]:
    """How many slots are right, cut, wrong, or failed by which kind."""
    found: Counter[str] = Counter()
    for at, slot in enumerate(slots):
        right = reply(f"prompt {at}")
        if isinstance(slot, dict) and isinstance(slot.get(FAILED), str):
            found[slot[FAILED].partition(":")[0]] += 1
        elif slot == right:
            found["right"] += 1
        elif isinstance(slot, str) and slot.endswith(CUT_SHORT) and right.startswith(slot.removesuffix(CUT_SHORT)):
            found["cut"] += 1
        else:
            found["wrong"] += 1
    return found


def measure_batches(count: int, seed: int) -> dict[str, Any]:
    ideal = math.ceil(PROMPTS / AT_A_TIME) * LATENCY_S
    with running_slowly(LATENCY_S, seed) as url:
        whole = OpenAIHandler("m", f"{url}/v1", max_tokens=64, timeout_s=TIMEOUT_S)
        (first, *others) = batches(whole, count + 1)
        faulty = OpenAIHandler("m@chaos", f"{url}/v1", max_tokens=64, timeout_s=TIMEOUT_S)
        broken = batches(faulty, count)
    times = sorted(seconds for seconds, _ in others)
    slots = sum((judged(slots) for _, slots in [first, *others]), Counter[str]())
    spoilt = sum((judged(slots) for _, slots in broken), Counter[str]())
    return {
        "prompts": PROMPTS,
        "at_a_time": AT_A_TIME,
        "ideal_ms": 1e3 * ideal,
        "ms": round(1e3 * median(times), 1),
        "worst_ms": round(1e3 * times[-1], 1),
        "first_ms": round(1e3 * first[0], 1),
        "times_ideal": round(median(times) / ideal, 3),
        "wrong": slots["wrong"] + slots["cut"],
        "faulty": {
            "ms": round(1e3 * median(seconds for seconds, _ in broken), 1),
            "slots": dict(sorted(spoilt.items())),
            "wrong": spoilt["wrong"],
        },
    }


def measure_loop(steps: int, runs: int) -> dict[str, Any]:
    from oven_bench.supervising.diagnosed_log import BROKEN_AT, diagnosed, log_of

    found = diagnosed(log_of(steps), runs)
    right = 0
    for took in found:
        if (made := took.found.diagnosis) is not None and made.evidence:
            late = made.evidence[0].from_ - BROKEN_AT * steps
            right += {one.metric for one in made.evidence} == {"loss", "grad_norm"} and 0 < late <= ONSET_STEPS
    return {
        "steps": steps,
        "ms": round(median(took.total for took in found), 1),
        "worst_ms": round(max(took.total for took in found), 1),
        "context_ms": round(median(took.context for took in found), 1),
        "alarms_ms": round(median(took.alarms for took in found), 1),
        "loop_ms": round(median(took.loop for took in found), 1),
        "turns": found[0].found.result.iterations,
        "right": right,
        "runs": runs,
    }


def bench(
    count: Annotated[int, Option("--batches", min=1, help="Batches without faults, and with.")] = 5,
    steps: Annotated[int, Option(min=100, help="Steps of the log.")] = 5000,
    runs: Annotated[int, Option(min=1, help="Runs over it.")] = 5,
    seed: Annotated[int, Option(help="Of the faults.")] = 1,
    as_json: Json = False,
) -> int:
    found = {"worker_batch": measure_batches(count, seed), "loop": measure_loop(steps, runs)}
    batch, loop = found["worker_batch"], found["loop"]
    if as_json:
        print_object(found, as_json)
    else:
        faulty, right = batch["faulty"], f"{loop['right']} of {runs} right"
        rows = [
            ("worker_batch", f"{batch['ms']:g} ms", f"{batch['times_ideal']:g} × ideal", f"{batch['wrong']} wrong"),
            ("with faults", f"{faulty['ms']:g} ms", str(faulty["slots"]), f"{faulty['wrong']} wrong"),
            (f"loop, {steps} steps", f"{loop['ms']:g} ms", f"{loop['turns']} turns", right),
        ]
        print_table({}, ("", "median", "", ""), rows)
    passed = not batch["wrong"] and not batch["faulty"]["wrong"] and batch["times_ideal"] <= BOUND
    return 0 if passed and loop["right"] == runs and loop["ms"] <= LOOP_BOUND_MS else 1


BENCH = Bench(
    "supervised-run",
    bench,
    "a supervised run besides its models: worker_batch over HTTP, with faults too; the loop over 5,000 steps of log",
    "--batches 5 --json",
)
