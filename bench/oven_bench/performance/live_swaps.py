"""`bench swaps`: an operator swaps the teacher of a running training: what a step then loses.

`bake` trains under its own stack: text by TRL's GRPOTrainer, whose policy has a few thousand parameters and whose
teachers at least 100 MB each, resident, in 8 and 4 bits, and offloaded; and motion by a PolicyTrainer, whose teachers
are resident. Swaps are an operator's commands, signed and logged; each waits for its receipt and then for some steps.
The stall is what the step that applies a swap and the first under the new teacher take longer than their medians under
the same teachers. The same sum over pairs of steps without a swap is its floor, and the time within `swap` itself
stands beside it. Steps in which the KL to all idle teachers is sampled count for neither. The operator is a thread of
the script, as `Oven.swap_teacher` is called. Agents and prior are off.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, one_of, print_object, print_table
from oven_bench.performance.swap_stalls import Swap, lost_and_repeated, stalls
from oven_bench.performance.teachers import (
    FORMS,
    PER_100_MB_S,
    RESIDENT_S,
    made,
    tiny_policy,
    word_tokenizer,
)
from oven_bench.worker_pool import workers
from oven_core.errors import ProcessError

KINDS = ("text", "motion")
SETTINGS: dict[str, Any] = {"agents": [], "kg": False}
APART = 5
"""Steps from one swap's receipt to the next command, so that each is between quiet steps."""
LONG = 1_000_000
"""Steps that the training is made for; it is stopped when the swaps are through."""
LIMIT_S = 120.0
"""So long a step may take before the operator gives up."""


class Clock:
    """When each step ended, with all that was applied after it, and how long each swap took in itself. Called in the
    training's thread."""

    def __init__(self) -> None:
        self.ends: list[float] = []
        self.swaps: list[float] = []
        """Seconds, from the first swap on."""

    def __call__(self) -> None:
        self.ends.append(time.perf_counter())

    def watch(self, teachers: Any) -> None:
        """Time the swaps of a training that has not begun."""
        swap = teachers.swap

        def timed_swap(name: str) -> None:
            began = time.perf_counter()
            swap(name)
            self.swaps.append(time.perf_counter() - began)

        teachers.swap = timed_swap

    @property
    def seconds(self) -> dict[int, float]:
        """Step, from 1 → how long it took; the first has no beginning."""
        return {step: end - self.ends[step - 2] for step, end in enumerate(self.ends, 1) if step > 1}


def text(megabytes: float) -> tuple[Any, Clock, dict[str, float]]:
    """A text training that is ready to run, its clock, and each teacher's size in float32, in MB."""
    from transformers import PrinterCallback, TrainerCallback

    import oven_learner as oven
    from oven_learner.teachers import TeacherConfig

    tokenizer = word_tokenizer()
    models = {"first": made(megabytes), **{form: made(megabytes) for form in FORMS}}
    sizes = {name: sum(p.numel() * 4 for p in model.parameters()) / 1e6 for name, model in models.items()}
    clock = Clock()

    class Ticking(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            clock()

    baked = oven.bake(
        tiny_policy(), tokenizer, name="swaps", description="Says even tokens.", prompts=["a"] * 8, rules=even,
        group_size=8, prompts_per_step=1, total_steps=LONG, beta=0.04, learning_rate=1e-3, max_completion_length=16,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, settings=SETTINGS,
        teachers=[
            TeacherConfig(name=name, model=model, tokenizer=tokenizer, **FORMS.get(name, {}))
            for name, model in models.items()
        ],
    )  # fmt: skip
    baked.trainer.remove_callback(PrinterCallback)
    baked.trainer.add_callback(Ticking())  # after those of the attachment
    return baked, clock, sizes


def even(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float | None]:
    """A reward that needs no words: the share of even token ids."""
    return [sum(token % 2 == 0 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def motion(_: float) -> tuple[Any, Clock, dict[str, float]]:
    """The same of a motion training, at the recipe's sizes, without a warm-up."""
    import oven_learner as oven
    from oven_learner.teachers import TeacherConfig
    from oven_recipes.motion.intents import TRAINED
    from oven_recipes.motion.job import new_policy
    from oven_recipes.motion.rewards import RULES
    from oven_recipes.motion.settings import MotionSettings

    settings = MotionSettings()
    models = {name: new_policy(settings, seed) for seed, name in enumerate(("first", "resident"), 1)}
    sizes = {name: sum(p.numel() * 4 for p in model.parameters()) / 1e6 for name, model in models.items()}
    baked = oven.bake(
        new_policy(settings, 0), name="swaps", modality="motion", description="Moves a skeleton.", prompts=TRAINED,
        rules=RULES, total_steps=LONG, learning_rate=1e-3, beta=settings.beta, settings=SETTINGS,
        teachers=[TeacherConfig(name=name, model=model) for name, model in models.items()],
    )  # fmt: skip
    clock, update = Clock(), baked.trainer.update

    def timed(number: int, conditions: Sequence[Any]) -> dict[str, float]:
        if number:
            clock()  # the step before is through: its decisions were applied
        metrics: dict[str, float] = update(number, conditions)
        return metrics

    baked.trainer.update = timed
    return baked, clock, sizes


MAKE: dict[str, Callable[[float], tuple[Any, Clock, dict[str, float]]]] = {"text": text, "motion": motion}


class Operator:
    """Thread that swaps from teacher to teacher and then stops the training."""

    def __init__(self, baked: Any, clock: Clock, rounds: int) -> None:
        self.swaps: list[Swap] = []
        self.statuses: list[str] = []
        self.error: BaseException | None = None
        self._baked, self._clock = baked, clock
        first, *others = baked.teachers.names
        self._turns = [*others, first] * rounds
        self._thread = threading.Thread(target=self._work, name="operator")

    def __enter__(self) -> Operator:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.join()

    def _work(self) -> None:
        try:
            if not self._baked.began.wait(LIMIT_S):
                raise ProcessError(f"the training was not announced within {LIMIT_S:g} s")
            for name in self._turns:
                self._wait()
                receipt = self._baked.swap_teacher(name)
                self.statuses.append(receipt.status)
                self.swaps.append(Swap(receipt.step, receipt.before, receipt.after))
            self._wait()
        except BaseException as error:  # raised where the training is waited for
            self.error = error
        finally:
            if self._baked.began.is_set():
                self._baked.stop("the swaps are through")

    def _wait(self) -> None:
        wanted, until = len(self._clock.ends) + APART, time.monotonic() + LIMIT_S
        while len(self._clock.ends) < wanted:
            if time.monotonic() > until:
                raise ProcessError(f"{APART} steps took more than {LIMIT_S:g} s")
            time.sleep(0.02)


def measure(kind: str, megabytes: float, rounds: int) -> dict[str, Any]:
    """One kind of training, in this process. Raises what the training or the operator raised."""
    from oven_core.protocol.events import Event
    from oven_core.protocol.messages import Observation
    from oven_learner.hf.hooks.idle_teachers import PREFIX
    from oven_runs.log.replay import replay

    os.environ.update(
        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as home:
        os.environ["OVEN_HOME"] = home
        baked, clock, sizes = MAKE[kind](megabytes)
        clock.watch(baked.teachers)
        with baked, Operator(baked, clock, rounds) as operator:
            baked.run_sync()
        if operator.error is not None:
            raise operator.error
        lines = (Path(baked.folder) / "log.jsonl").read_text().splitlines()
    events = [Event.from_line(line) for line in lines]
    again = replay(events, baked.run_name)
    seen = [event.body for event in events if isinstance(event.body, Observation)]
    lost, repeated = lost_and_repeated([body.step for body in seen], _trained(baked.trainer))
    sampled = {body.step for body in seen if any(metric.startswith(PREFIX) for metric in body.metrics)}
    return {
        "steps": _trained(baked.trainer),
        "lost": lost,
        "repeated": repeated,
        "swaps": len(operator.swaps),
        "applied": operator.statuses.count("applied"),
        "replay_same": again.same and again.finished,
        "swap_s": float(f"{median(clock.swaps):.2g}"),
        "swap_max_s": float(f"{max(clock.swaps):.2g}"),
        **timed(clock.seconds, operator.swaps, baked.teachers.names[0], sizes, sampled),
    }


def _trained(trainer: Any) -> int:
    """Steps that the trainer counts."""
    return int(trainer.step if hasattr(trainer, "teachers") else trainer.state.global_step)


def timed(
    seconds: Mapping[int, float],
    swaps: Sequence[Swap],
    first: str,
    sizes: Mapping[str, float],
    sampled: Collection[int] = (),
) -> dict[str, Any]:
    """`floor_s` and `floor_max_s`, and by teacher its stalls; the one that training began with counts as resident. In
    `sampled` steps other teachers were asked, too."""
    found = stalls(seconds, swaps, first, sampled)
    names: dict[str, list[str]] = {}
    for name in found.of:
        names.setdefault("resident" if name == first else name, []).append(name)
    return {
        "floor_s": round(median(found.without), 4),
        "floor_max_s": round(max(found.without), 4),
        "teachers": {
            shown: _of_teachers(
                [stall for name in of for stall in found.of[name]],
                median(found.step_s[name] for name in of),
                max(sizes[name] for name in of),
                shown == "resident",
            )
            for shown, of in names.items()
        },
    }


def _of_teachers(stalled: Sequence[float], step_s: float, megabytes: float, resident: bool) -> dict[str, float]:
    usual, worst = median(stalled), max(stalled)
    found = {
        "swaps": len(stalled),
        "megabytes": round(megabytes, 1),
        "step_s": round(step_s, 4),
        "stall_s": round(usual, 4),
        "stall_max_s": round(worst, 4),
    }
    if resident:
        return found
    per_100_mb = 100 / megabytes
    return found | {
        "stall_s_per_100_mb": round(usual * per_100_mb, 4),
        "stall_max_s_per_100_mb": round(worst * per_100_mb, 4),
    }


def verdicts(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it has to be, a sentence each. The bars on stalls are held against their medians."""
    wrong = []
    for kind, one in found.items():
        if one["lost"] or one["repeated"]:
            wrong.append(f"{kind}: {one['lost']} steps lost and {one['repeated']} repeated of {one['steps']}")
        if one["applied"] < one["swaps"]:
            wrong.append(f"{kind}: {one['swaps'] - one['applied']} of {one['swaps']} swaps were not applied")
        if not one["replay_same"]:
            wrong.append(f"{kind}: the replay computes other bytes than the log has")
        for name, of in one["teachers"].items():
            resident = name == "resident"
            stall, bar = of["stall_s" if resident else "stall_s_per_100_mb"], RESIDENT_S if resident else PER_100_MB_S
            if stall >= bar:
                wrong.append(
                    f"{kind}, {name}: a swap stalls {stall:.2f} s{'' if resident else ' per 100 MB'}, bar {bar:g}"
                )
    return wrong


def bench(
    rounds: Annotated[int, Option(min=2, help="Swaps to each teacher.")] = 10,
    megabytes: Annotated[float, Option(min=20.0, help="Size of each text teacher in float32, in MB.")] = 110.0,
    kind: Annotated[list[str] | None, one_of(KINDS, "Only this training; repeat it for more.")] = None,
    as_json: Json = False,
) -> int:
    found: dict[str, dict[str, Any]] = {}
    for one in kind or KINDS:
        with workers(1) as pool:  # a process each: what it started, its memory and its environment go with it
            found[one] = pool.submit(measure, one, megabytes, rounds).result()
    wrong = verdicts(found)
    if as_json:
        print_object({"trainings": found, "rounds": rounds, "wrong": wrong}, as_json)
        return int(bool(wrong))
    shown = {f"{one}: {name}": of[name] for one, of in found.items() for name in SHOWN}
    print_table(
        {**shown, "wrong": ", ".join(wrong) or "nothing"}, ("training", "teacher", *COLUMNS.values()), table(found)
    )
    return int(bool(wrong))


SHOWN = (
    "steps",
    "lost",
    "repeated",
    "swaps",
    "applied",
    "replay_same",
    "swap_s",
    "swap_max_s",
    "floor_s",
    "floor_max_s",
)
COLUMNS = {
    "swaps": "swaps", "megabytes": "MB", "step_s": "step, s", "stall_s": "stall, s", "stall_max_s": "worst",
    "stall_s_per_100_mb": "per 100 MB", "stall_max_s_per_100_mb": "worst",
}  # fmt: skip


def table(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """A line per training and teacher."""
    return [
        [kind, name, *(f"{of[column]:g}" if column in of else "" for column in COLUMNS)]
        for kind, one in found.items()
        for name, of in one["teachers"].items()
    ]


BENCH = Bench(
    "swaps",
    bench,
    "teachers swapped by an operator while text and motion train: steps lost, and how long a step stalls",
    "--rounds 10 --json",
    "Exit code 1: a step was lost, a swap not applied, a replay differs, or a stall's median is above its bar.",
)
