"""`bench judge-swaps`: a judge is swapped while a model trains, half the time for one that is dead.

`bake` trains a Llama of a few thousand parameters by TRL's GRPOTrainer under its own stack, with one judge over real
HTTP; an operator's thread swaps it at even distances, as `Oven.swap_agent` is called. Each model of the endpoint scores
in its own way, so that the log itself shows a wrong score: the mean that it has for a step must be what the model that
its receipts say was judging gives the texts of that step. Agents and prior are off.
"""

from __future__ import annotations

import math
import os
import socket
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import combinations, cycle
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.scoring_endpoint import DEAD, ScoringEndpoint, score_of
from oven_bench.performance.swap_stalls import lost_and_repeated
from oven_bench.worker_pool import workers
from oven_core.errors import ProcessError

MEMBER = "critic"
CLOSED = "closed"
"""A dead endpoint of which not even the port is open."""
GROUP = 4
"""Completions of a prompt."""
RIGHT = 1e-6
"""Difference between a mean in the log, of nine digits, and the one that is computed again."""
LIMIT_S = 300.0
"""So long the operator waits for a step."""
DEADLINE_S = 10.0
"""Of the committee, and of a probe: a dead judge is given up within it."""
DELAY_S = 0.2
"""What an answer of the endpoint takes, so that a probe lasts for several steps."""


class Recorder:
    """A rule of the committee, which is called before its judges are asked: the share of even tokens. It keeps what the
    policy answered at each generation, and when each step ended."""

    def __init__(self, endpoint: ScoringEndpoint) -> None:
        self.texts: list[tuple[tuple[str, ...], ...]] = []
        """By generation, the completions of each group as judges are shown them."""
        self.ends: list[float] = []
        self._endpoint = endpoint

    def __call__(
        self, prompts: list[str], completions: list[str], completion_ids: list[list[int]], **_: Any
    ) -> list[float | None]:
        from oven_learner.completions.plain_text import as_text
        from oven_llm.judges.sanitize import shown

        texts = [shown(as_text(text)) for text in completions]
        self.texts.append(tuple(tuple(texts[at : at + GROUP]) for at in range(0, len(texts), GROUP)))
        self._endpoint.real = {
            as_text(one): {text for prompt, text in zip(prompts, texts, strict=True) if prompt == one}
            for one in prompts
        }
        return [sum(token % 2 == 0 for token in ids) / max(1, len(ids)) for ids in completion_ids]


def baked(endpoint: ScoringEndpoint, steps: int) -> tuple[Any, Recorder]:
    """A training that is ready to run."""
    import torch
    from transformers import ByT5Tokenizer, LlamaConfig, LlamaForCausalLM, PrinterCallback, TrainerCallback

    import oven_learner as oven

    torch.manual_seed(0)
    recorder = Recorder(endpoint)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=259, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
            max_position_embeddings=64, pad_token_id=0, eos_token_id=1, bos_token_id=None,
        )
    )  # fmt: skip
    found = oven.bake(
        model, ByT5Tokenizer(extra_ids=0), name="swapped", description="Says bytes.", prompts=["a", "b"],
        rules={"even": recorder},
        members={MEMBER: {"provider": "compatible", "model": "m-0", "base_url": endpoint.url}},
        group_size=GROUP, prompts_per_step=2, total_steps=steps, learning_rate=1e-3, max_completion_length=8,
        gradient_checkpointing=False, save_strategy="no", disable_tqdm=True,
        settings={"agents": [], "kg": False, "committee": {"quorum": 1, "deadline_s": DEADLINE_S}},
    )  # fmt: skip

    class Ticking(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            recorder.ends.append(time.perf_counter())

    found.trainer.remove_callback(PrinterCallback)
    found.trainer.add_callback(Ticking())
    return found, recorder


class Operator(threading.Thread):
    """Swaps at even distances; each second model is dead."""

    def __init__(self, oven: Any, recorder: Recorder, endpoint: ScoringEndpoint, swaps: int, steps: int) -> None:
        super().__init__(name="operator")
        self.applied = self.refused = self.dead = 0
        self.unexpected: list[str] = []
        self.probes: list[tuple[float, float]] = []
        """When each swap was asked for and answered."""
        self.error: BaseException | None = None
        self._oven, self._recorder, self._endpoint = oven, recorder, endpoint
        self._turns = [(number, (number + 1) * steps // (swaps + 1)) for number in range(swaps)]

    def run(self) -> None:
        """The thread."""
        try:
            if not self._oven.began.wait(LIMIT_S):
                raise ProcessError(f"the training was not announced within {LIMIT_S:g} s")
            ways = cycle((CLOSED, *DEAD))
            for number, step in self._turns:
                self._wait_for(step)
                self._swap(number, next(ways) if number % 2 else "")
        except BaseException as error:  # raised where the training is waited for
            self.error = error

    def _swap(self, number: int, way: str) -> None:
        from oven_learner.baking.operator_commands import CommandRefusedError

        url = f"http://127.0.0.1:{_closed_port()}/v1" if way == CLOSED else self._endpoint.url
        model = f"m-{number + 1}" if not way or way == CLOSED else f"m-{way}"
        began = time.perf_counter()
        self.dead += bool(way)
        try:
            receipt = self._oven.swap_agent(MEMBER, provider="compatible", model=model, base_url=url, name=MEMBER)
        except CommandRefusedError as error:
            self.refused += 1
            if not way:
                self.unexpected.append(f"swap {number + 1} was refused: {error}")
        else:
            self.applied += receipt.status == "applied"
            if way:
                self.unexpected.append(f"swap {number + 1} to a dead judge ({way}) was {receipt.status}")
        self.probes.append((began, time.perf_counter()))

    def _wait_for(self, step: int) -> None:
        until = time.monotonic() + LIMIT_S
        while len(self._recorder.ends) < step:
            if time.monotonic() > until:
                raise ProcessError(f"step {step} did not come within {LIMIT_S:g} s")
            time.sleep(0.02)


def _closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def wrong_means(
    texts: Mapping[int, Sequence[Sequence[str]]],
    active: Mapping[int, str],
    means: Mapping[int, float],
    abstained: Mapping[int, int],
) -> int:
    """Steps of which the log has another mean than the model that judged gives their texts. `texts` (by group),
    `active`, `means` and `abstained` (groups that the mean leaves out) by step; one without a mean does
    not count."""
    wrong = 0
    for step, groups in texts.items():
        if step not in means:
            continue
        model = active[step].split("/")[1].split("@")[0]
        scored = combinations(groups, len(groups) - abstained.get(step, 0))
        expected = [_mean_of(model, [text for group in some for text in group]) for some in scored]
        wrong += not any(math.isclose(means[step], mean, abs_tol=RIGHT) for mean in expected)
    return wrong


def _mean_of(model: str, texts: Sequence[str]) -> float:
    return math.fsum(score_of(model, text) if text else 0.0 for text in texts) / len(texts)


def measure(swaps: int, steps: int) -> dict[str, Any]:
    """The bench's figures. Raises what the training or the operator raised."""
    from oven_core.protocol.events import Event
    from oven_core.protocol.judge_spec import actuator_of
    from oven_core.protocol.messages import Observation, Receipt, RunStarted
    from oven_runs.log.committee_view import abstains
    from oven_runs.log.replay import replay

    os.environ.update(
        OMP_NUM_THREADS="1", OMP_WAIT_POLICY="PASSIVE", HF_HUB_DISABLE_TELEMETRY="1", HF_HUB_OFFLINE="1",
        TOKENIZERS_PARALLELISM="false",
    )  # fmt: skip
    with tempfile.TemporaryDirectory() as home, ScoringEndpoint(DELAY_S) as endpoint:
        os.environ["OVEN_HOME"] = home
        oven, recorder = baked(endpoint, steps)
        operator = Operator(oven, recorder, endpoint, swaps, steps)
        operator.start()
        with oven:
            oven.run_sync()
        operator.join()
        if operator.error is not None:
            raise operator.error
        lines = (Path(oven.folder) / "log.jsonl").read_text().splitlines()
    events = [Event.from_line(line) for line in lines]
    again = replay(events, oven.run_name)
    name, judge, active = actuator_of(MEMBER), "", dict[int, str]()
    seen: dict[int, Mapping[str, float]] = {}
    published: list[int] = []
    for event in events:
        match event.body:
            case RunStarted() as body:
                judge = str(next(spec.value for spec in body.actuators if spec.name == name))
            case Receipt() as body if body.actuator == name and body.status == "applied":
                judge = str(body.after)
            case Observation() as body if body.step > 0:
                published.append(body.step)
                seen[body.step], active[body.step] = body.metrics, judge
            case _:
                pass
    lost, repeated = lost_and_repeated(published, int(oven.trainer.state.global_step))
    mean = f"rewards/{MEMBER}/mean"
    texts = dict(enumerate(recorder.texts, 1))
    kinds: Counter[str] = Counter()
    abstained: dict[int, int] = {}
    for step, metrics in seen.items():
        prefix = abstains(MEMBER, "")
        of_step = {name.removeprefix(prefix): int(n) for name, n in metrics.items() if name.startswith(prefix)}
        kinds.update(of_step)
        abstained[step] = sum(of_step.values())
    step_s = {step: end - recorder.ends[step - 2] for step, end in enumerate(recorder.ends, 1) if step > 1}
    under = [s for step, s in step_s.items() if _during(recorder.ends[step - 1], operator.probes)]
    quiet = [s for step, s in step_s.items() if not _during(recorder.ends[step - 1], operator.probes)]
    return {
        "steps": int(oven.trainer.state.global_step),
        "lost": lost,
        "repeated": repeated,
        "skipped_steps": int(sum(metrics.get("committee/skipped_steps", 0.0) for metrics in seen.values())),
        "abstained": dict(kinds),
        "swaps": operator.applied + operator.refused + len(operator.unexpected),
        "dead": operator.dead,
        "applied": operator.applied,
        "refused": operator.refused,
        "unexpected": operator.unexpected,
        "judged": sum(mean in metrics for metrics in seen.values()),
        "wrong": wrong_means(texts, active, {step: m[mean] for step, m in seen.items() if mean in m}, abstained),
        "models": len({*active.values()}),
        "replay_same": again.same and again.finished,
        "step_s": round(median(quiet), 4),
        "step_during_probe_s": round(median(under), 4) if under else None,
        "probe_max_s": round(max((end - began for began, end in operator.probes), default=0.0), 2),
    }


def _during(moment: float, spans: Sequence[tuple[float, float]]) -> bool:
    return any(began <= moment <= end for began, end in spans)


def verdicts(found: Mapping[str, Any], swaps: int) -> list[str]:
    """What is not as it has to be, a sentence each."""
    wrong = list(found["unexpected"])
    if found["lost"] or found["repeated"] or found["skipped_steps"]:
        wrong.append(f"{found['lost']} steps lost, {found['repeated']} repeated, {found['skipped_steps']} skipped")
    if found["abstained"]:
        wrong.append(f"the judge abstained: {found['abstained']}")
    if found["wrong"]:
        wrong.append(f"{found['wrong']} steps have a mean by another judge than their receipts say")
    if found["judged"] < found["steps"]:
        wrong.append(f"{found['steps'] - found['judged']} steps were judged by none")
    if found["applied"] + found["dead"] < swaps:
        wrong.append(f"{swaps - found['applied'] - found['dead']} swaps to living judges were not applied")
    if not found["replay_same"]:
        wrong.append("the replay computes other bytes than the log has")
    return wrong


def bench(
    swaps: Annotated[int, Option(min=2, help="Swaps; each second one is to a dead endpoint.")] = 20,
    steps: Annotated[int, Option(min=10, help="Optimizer steps.")] = 400,
    as_json: Json = False,
) -> int:
    with workers(1) as pool:  # what it started, its memory and its environment go with it
        found = pool.submit(measure, swaps, steps).result()
    wrong = verdicts(found, swaps)
    print_object(
        {**found, "verdicts": wrong} if as_json else {**found, "verdicts": ", ".join(wrong) or "none"}, as_json
    )
    return int(bool(wrong))


BENCH = Bench(
    "judge-swaps",
    bench,
    "a judge swapped while a model trains, half the time for a dead one: steps lost, scores by the wrong judge",
    "--swaps 20 --steps 400 --json",
    "Exit code 1: a step was lost or skipped, a score is another judge's, a dead judge was taken, or a replay differs.",
)
