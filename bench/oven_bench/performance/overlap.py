"""`bench overlap`: what a step takes when its judge is as slow as the rest of it, with `committee.ahead` 0 and 1.

A GRPOTrainer with a small random model, a committee with one remote judge on a real server, and nothing else. The
judge answers each group a fixed time after it was asked. In each round the step is measured with a judge that answers
at once; the judge is then made as slow as that step, and the same work is trained with `committee.ahead` 0 (`waits`)
and 1 (`ahead`), in turns; at last the judge answers at once again. `no_wait_s` is the mean of both. `ratio` is the step
of `ahead` over the slower of the judge's time and `no_wait_s` of its round; `floor` is that of `waits`, 2 if nothing
overlaps. Medians over a training's steps, without its first ones and its last, which has nothing to make; 95 %
percentile bootstraps over rounds. `ahead` also pays for the log-probabilities of the policy that wrote, which are kept
while it writes.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, median
from typing import Annotated, Any

from nats.aio.msg import Msg
from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.members_on_a_thread import MembersOnAThread
from oven_bench.progress import progress
from oven_bench.statistics import Interval, bootstrapped
from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.committee_requests import ScoreReply, ScoreRequest

JUDGE = "judge"
MEASURED = ("judge", "no_wait", "waits", "ahead")
SETTLE = 3
"""Steps at the beginning of a training that are not counted."""
PROMPTS, GROUP, TOKENS = 8, 8, 24
"""Prompts per step, completions per prompt, tokens per completion at most."""
SHAPE = {
    "vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip


class SlowJudge(MembersOnAThread):
    """A judge that takes `delay_s` for each group, however many there are."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, [JUDGE])
        self.delay_s = 0.0
        self._answers: set[asyncio.Task[None]] = set()

    def answering(self, bus: Bus, member: str) -> Callable[[Msg], Awaitable[None]]:
        async def take(message: Msg) -> None:
            task = asyncio.create_task(self._answer(bus, message, self.delay_s))
            self._answers.add(task)
            task.add_done_callback(self._answers.discard)

        return take

    async def _answer(self, bus: Bus, message: Msg, delay_s: float) -> None:
        asked = ScoreRequest.model_validate_json(message.data)
        await asyncio.sleep(delay_s)
        scores = {one.id: sum(letter < "n" for letter in one.text) / max(1, len(one.text)) for one in asked.completions}
        await bus.publish(message.reply, ScoreReply(member=JUDGE, group=asked.group, scores=scores).wire())


def train(judge: SlowJudge, steps: int, ahead: int, folder: Path) -> list[float]:
    """Seconds of each counted step. Raises ProcessError where a group was not scored: then nothing was compared."""
    from datasets import Dataset
    from transformers import PrinterCallback, Qwen2Config, Qwen2ForCausalLM, TrainerCallback, set_seed
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    from oven_learner.hf.attach import attach
    from oven_learner.rewards import Committee
    from oven_learner.testing import FakeLink
    from oven_recipes.grpo.model import build_tokenizer
    from oven_recipes.quiet_libraries import quiet_libraries

    quiet_libraries()
    set_seed(1)
    tokenizer: Any = build_tokenizer()
    ends: dict[str, Any] = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": tokenizer.pad_token_id}
    committee = Committee({}, remote=judge.remote(deadline_s=60), ahead=ahead, description="writes letters")
    letters = "abcdefgh"
    trainer = GRPOTrainer(
        model=Qwen2ForCausalLM(Qwen2Config(**SHAPE, **ends)),  # type: ignore[arg-type]
        processing_class=tokenizer,
        reward_funcs=[committee],
        train_dataset=Dataset.from_list(
            [{"prompt": letters[n % 8] * (1 + n % 5)} for n in range(PROMPTS * (steps + 4))]
        ),
        args=GRPOConfig(
            output_dir=str(folder),
            learning_rate=1e-6,
            max_steps=steps,
            per_device_train_batch_size=PROMPTS * GROUP,
            num_generations=GROUP,
            max_completion_length=TOKENS,
            bf16=False,
            gradient_checkpointing=False,
            logging_steps=steps,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
        ),
    )
    trainer.remove_callback(PrinterCallback)
    line = FakeLink()
    attach(trainer, committee=committee, link=line)
    ends_at: list[float] = []

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends_at.append(time.perf_counter())

    trainer.add_callback(Clock())
    trainer.train()
    if any(line.series("committee/skipped_groups")):
        raise ProcessError("the judge did not score every group, so there is nothing to compare")
    took = [after - before for before, after in pairwise(ends_at)]
    return took[SETTLE - 1 : -1]


def figures(rounds: Sequence[Mapping[str, float]]) -> dict[str, float | int]:
    """The object of `--json`. A round has the judge's time and the median step of each arm, in seconds."""

    def ratio(arm: str) -> Interval:
        return bootstrapped(
            list(rounds), lambda some: fmean(one[arm] / max(one["judge"], one["no_wait"]) for one in some)
        )

    found: dict[str, float | int] = {f"{name}_s": round(fmean(one[name] for one in rounds), 4) for name in MEASURED}
    for name, of in (("ratio", ratio("ahead")), ("floor", ratio("waits"))):
        found |= {name: round(of.mean, 4), f"{name}_low": round(of.low, 4), f"{name}_high": round(of.high, 4)}
    return found | {"rounds": len(rounds), "load": round(os.getloadavg()[0], 2)}


def measure(folder: Path, rounds: int, steps: int) -> dict[str, float | int]:
    """Trains in this process, on one thread."""
    import torch

    os.environ.update(HF_HUB_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1", TOKENIZERS_PARALLELISM="false")
    torch.set_num_threads(1)
    with SlowJudge(folder) as judge, progress("trainings", 4 * rounds) as advance:

        def step(ahead: int, delay_s: float) -> float:
            judge.delay_s = delay_s
            seconds = median(train(judge, steps, ahead, folder))
            advance(1, f"ahead {ahead}, a judge that takes {delay_s:.3f} s: {seconds:.3f} s")
            return seconds

        found = []
        for number in range(rounds):
            slow = step(0, 0.0)
            order = (0, 1) if number % 2 else (1, 0)
            seconds = {ahead: step(ahead, slow) for ahead in order}
            no_wait = fmean((slow, step(0, 0.0)))
            found.append({"judge": slow, "no_wait": no_wait, "waits": seconds[0], "ahead": seconds[1]})
    return figures(found)


def bench(
    rounds: Annotated[int, Option(help="Four trainings each; 4 take about 3 minutes.")] = 4,
    steps: Annotated[int, Option(min=10, help="Optimizer steps of a training.")] = 20,
    as_json: Json = False,
) -> int:
    if rounds < 2:
        raise ConfigError(f"--rounds {rounds}: an interval needs two rounds at least")
    with tempfile.TemporaryDirectory() as scratch:
        print_object(measure(Path(scratch), rounds, steps), as_json)
    return 0


BENCH = Bench(
    "overlap", bench, "a step whose judge is as slow as the rest of it, with committee.ahead 0 and 1", "--json"
)
