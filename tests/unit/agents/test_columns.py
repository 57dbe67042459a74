"""Windows answered from columns say what plain windows say, after whatever a run has been through."""

from __future__ import annotations

import math
import random
from importlib.metadata import entry_points

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oven_agents.sdk import columnar_window as module
from oven_agents.sdk.agent_session import WINDOW_LENGTH, Session
from oven_agents.sdk.columnar_window import Columns
from oven_agents.sdk.window import Window
from oven_controller.importing.declared_knobs import Knob
from oven_core.protocol.messages import AgentStatus, Observation, Receipt, RunStarted
from oven_runs.metrics.metric_names import metric_spec

RUN = RunStarted(incarnation=1, n=0, recipe="any")
NAMES = ("loss", "reward", "eval/loss", "never")


def observations(draws: list[tuple[int, int, int]]) -> list[Observation]:
    """From (ticks since the last one, change of the step, which metrics)."""
    made, tick, step = [], 0, 20
    for n, (later, further, which) in enumerate(draws):
        tick, step = tick + later, max(0, step + further)
        values = {name: math.nan if which == 5 else float(n) for i, name in enumerate(NAMES[:3]) if which >> i & 1}
        made.append(Observation(incarnation=1, n=n, tick=tick, step=step, progress=0.0, metrics=values))
    return made


def receipt(tick: int, actuator: str) -> Receipt:
    return Receipt(incarnation=1, n=tick, decision_id="x", actuator=actuator, status="applied", tick=tick, step=0)


DRAWS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from((1, 1, 1, 1, 1, 2, 0, -1, -4, -15)), st.integers(0, 7)),
    min_size=1,
    max_size=60,
)
JUMPS = st.lists(st.tuples(st.integers(0, 60), st.sampled_from(("run.rollback", "run.undo_rollback"))), max_size=3)
QUESTIONS = st.lists(
    st.tuples(st.sampled_from(NAMES), st.integers(-1, 80), st.one_of(st.none(), st.integers(0, 25)), st.booleans()),
    min_size=1,
    max_size=12,
)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(DRAWS, JUMPS, QUESTIONS, st.integers(1, 30))
def test_the_same_answers_as_a_Window(
    monkeypatch: pytest.MonkeyPatch,
    draws: list[tuple[int, int, int]],
    jumps: list[tuple[int, str]],
    questions: list[tuple[str, int, int | None, bool]],
    limit: int,
) -> None:
    monkeypatch.setattr(module, "SPARE_ENTRIES", 8)  # so that columns are cut within these few observations
    seen, held = observations(draws), Columns(limit)
    receipts = [receipt(tick, name) for tick, name in sorted(jumps)]
    for end, observation in enumerate(seen, 1):
        held.add(observation)
        newest = seen[max(0, end - limit) : end]
        plain = Window(RUN, newest, {}, receipts, {}, set())
        quick = held.window(RUN, newest, {}, receipts, {}, set())
        assert list(quick.observations) == newest and quick.tick == plain.tick and quick.progress == plain.progress
        for name, after, last, whole in questions:
            after = -1 if whole else after
            assert repr(quick.series(name, after=after, last=last)) == repr(plain.series(name, after=after, last=last))
            assert repr(quick.surviving_series(name, after=after, last=last)) == repr(
                plain.surviving_series(name, after=after, last=last)
            )


def test_a_long_run_is_truncated_and_gives_the_same_answers() -> None:
    rng, held, limit = random.Random(1), Columns(64), 64
    seen: list[Observation] = []
    step = 0
    for n in range(3 * module.SPARE_ENTRIES):
        step = max(0, step - 30) if rng.random() < 0.002 else step + 1
        body = {"loss": rng.random()} | ({"eval/loss": rng.random()} if n % 50 == 0 else {})
        seen.append(Observation(incarnation=1, n=n, tick=n, step=step, progress=0.0, metrics=body))
        held.add(seen[-1])
        if n % 97 == 0:
            newest = seen[-limit:]
            plain, quick = (make(RUN, newest, {}, (), {}, set()) for make in (Window, held.window))
            for name in ("loss", "eval/loss"):
                assert quick.surviving_series(name) == plain.surviving_series(name) and quick.series(
                    name
                ) == plain.series(name)


KNOBS = [Knob("optimizer.lr_scale"), *map(Knob, ("run.rollback", "run.undo_rollback", "run.evaluate", "data.skip"))]
KNOBS += [Knob("grad.clip"), Knob("optimizer.weight_decay"), Knob("grpo.beta", "0.04")]


def eventful(reward: bool) -> list[RunStarted | Observation | Receipt]:
    """A run with a jump of the loss, a collapse, and a rollback that is taken back: what the learner said."""
    rng, messages, step, ticks = random.Random(3), list[RunStarted | Observation | Receipt](), 0, 420
    backs = {
        170: ("run.rollback", 148.0, 150),
        260: ("run.rollback", 240.0, 228),
        264: ("run.undo_rollback", None, 250),
    }
    for tick in range(1, ticks + 1):
        step += 1
        bad = 150 <= tick < 172 or tick >= 250
        body = {
            "loss": 2 + math.exp(-tick / 200) + 2 * bad + rng.gauss(0, 0.02),
            "grad_norm": (5 if bad else 1) * math.exp(rng.gauss(0, 0.2)),
            "learning_rate": 1e-3,
            "optim/weight_norm": 10 - 0.02 * max(0, tick - 300),
            "optim/update_ratio": 0.003,
            "optim/grad_momentum_cos": (0.6 if tick < 60 else -0.3 if tick > 330 else 0.0) + rng.gauss(0, 0.05),
            "data/repeated": float(200 <= tick < 210),
        }
        if reward:
            body |= {"reward": (0.01 if bad else 0.6) + rng.gauss(0, 0.01), "entropy": 0.2 if bad else 1.0, "kl": 0.05}
        if tick % 20 == 0:
            body["eval/loss"] = 2 + math.exp(-tick / 200) + bad
        messages.append(
            Observation(incarnation=1, n=len(messages) + 1, tick=tick, step=step, progress=tick / ticks, metrics=body)
        )
        if tick in backs:
            name, to, step = backs[tick]
            messages.append(receipt(tick, name).model_copy(update={"n": len(messages) + 1, "after": to}))
    names = dict.fromkeys(name for message in messages if isinstance(message, Observation) for name in message.metrics)
    metrics = tuple(map(metric_spec, names))
    actuators = tuple(knob.spec() for knob in KNOBS)
    return [RunStarted(incarnation=1, n=0, recipe="any", actuators=actuators, metrics=metrics), *messages]


@pytest.mark.parametrize("reward", [False, True])
def test_every_shipped_agent_says_the_same(reward: bool) -> None:
    messages, spoke = eventful(reward), set()
    for point in entry_points(group="oven.agents"):
        held = Columns(WINDOW_LENGTH)
        plain = Session(point.load()(), point.name)
        quick = Session(point.load()(), point.name, create_window=held.window)
        for message in messages:
            if isinstance(message, Observation):
                held.add(message)
            plain.absorb(message)
            quick.absorb(message)
            answers = plain.react()
            assert quick.react() == answers
            if any(not isinstance(answer, AgentStatus) for answer in answers):
                spoke.add(point.name)
        assert plain.problems == quick.problems == []
    assert len(spoke) >= 4, spoke


def test_windows_follow_sessions_whatever_these_have_absorbed() -> None:
    """New observations, a training that starts again, one that another session does not have, and a kept window."""
    columns, seen = Columns(4), observations([(1, 1, 1)] * 9)

    def losses(rows: list[Observation]) -> list[float]:
        return columns.window(RUN, rows, {}, (), {}, set()).series("loss")

    for rows in (seen[:1], seen[:3], seen[1:5], seen[5:9], seen[2:4], seen[3:4], seen[1:4]):
        assert losses(rows) == [row.metrics["loss"] for row in rows]
    old_window = columns.window(RUN, seen[:2], {}, (), {}, set())
    assert losses(seen[:4]) == [0.0, 1.0, 2.0, 3.0] and old_window.series("loss") == [0.0, 1.0]
    assert [value for _, value in old_window.surviving_series("loss")] == [0.0, 1.0]
