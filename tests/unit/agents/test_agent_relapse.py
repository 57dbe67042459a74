"""The agent that goes back to the best held-out reading, on made-up readings and on the noise that it has to stand."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence

import pytest
from tests.support import runs

from oven_agents import Alternatives
from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.best_checkpoint import BestCheckpoint
from oven_core.protocol.actuators import ACTUATORS
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import Observation, Receipt, RunStarted, Value, Vote

EVERY = 20
LEARNT = (0.44, 0.54, 0.65, 0.68, 0.74, 0.80)
"""Accuracies as a run has them that is well."""
Events = Sequence[Observation | Receipt]


def read(values: Sequence[float], metric: str = "eval/accuracy", *, rate: float = 3e-3, ago: int = 0) -> Events:
    """One reading every EVERY steps; the rate `ago` steps before the end is what it then stays at."""
    ticks = range(1, EVERY * len(values) + 1)
    return [
        runs.seen(
            tick,
            {
                "reward": 0.7,
                "learning_rate": rate if tick > ticks[-1] - ago else 3e-3,
                **({metric: values[tick // EVERY - 1]} if tick % EVERY == 0 else {}),
            },
        )
        for tick in ticks
    ]


def offers(events: Events, run: RunStarted | None = None) -> list[tuple[int, str, dict[str, Value]]]:
    return [
        (message.plans[0].votes[0].tick, message.plans[0].remedy, {v.actuator: v.value for v in message.plans[0].votes})
        for message in runs.agent_messages(BestCheckpoint(), run or runs.grpo(), events)
        if isinstance(message, Alternatives)
    ]


def test_a_lasting_loss_of_accuracy_is_rolled_back_at_a_lower_rate() -> None:
    [(tick, remedy, wanted)] = offers(read([*LEARNT, 0.75, 0.66]))
    assert (tick, remedy) == (160, "rollback_and_cut")
    assert wanted == {"run.rollback": 120.0, "optimizer.lr_scale": 0.125}


def test_the_best_reading_may_be_older_than_the_window() -> None:
    plateau = [0.79, 0.785] * 14  # 560 ticks; the window has 512
    assert [tick for tick, *_ in offers(read([*LEARNT, *plateau, 0.5, 0.45]))] != []


def test_a_reading_in_a_tick_that_a_slow_agent_skipped_still_counts() -> None:
    events = [*read([*LEARNT, 0.75, 0.66]), *(runs.seen(tick, {"reward": 0.7}) for tick in range(161, 180))]
    [offer] = [
        message
        for message in runs.agent_messages(BestCheckpoint(), runs.grpo(), events, every=9)
        if isinstance(message, Alternatives)
    ]
    assert offer.plans[0].votes[0].tick == 162, "the first window that has the reading of tick 160"


def alerts(losses: Sequence[float], run: RunStarted) -> list[Alert]:
    """Its alerts in a run with one reading every EVERY steps."""
    session = Session(BestCheckpoint(), "me")
    session.absorb(run)
    raised: list[Alert] = []
    for event in read(losses, "eval/loss"):
        session.absorb(event)
        raised += [message for message in session.react() if isinstance(message, Alert)]
    return raised


def test_a_run_that_overfits_slowly_raises_one_alert_soon_after_the_turn() -> None:
    draw, turn = random.Random(0), 10
    losses = [
        0.84 + 3 * math.exp(-index / 2) + 0.036 * max(0, index - turn) + draw.gauss(0, 0.01) for index in range(40)
    ]  # the last reading is 1.9
    small = runs.pretraining()
    large = small.model_copy(update={"actuators": tuple(k for k in small.actuators if k.name != "run.rollback")})
    for run in (small, large):
        [alert] = alerts(losses, run)
        assert (alert.symptom, alert.metric) == ("heldout_loss_rises", "eval/loss")
        assert EVERY * turn < alert.tick <= EVERY * (turn + 8), "within 20 % of the run"
        assert alert.expected == pytest.approx(min(losses)) and "run.best best" in alert.reason


def test_a_run_that_learns_raises_no_alert_and_a_new_best_reading_clears_one() -> None:
    draw = random.Random(1)
    learns = [1 + 3 * math.exp(-index / 8) + draw.gauss(0, 0.02) for index in range(40)]
    assert alerts(learns, runs.pretraining()) == []
    recovers = [*learns[:20], *(1.7 + index / 10 for index in range(5)), 1.0]
    assert [alert.state for alert in alerts(recovers, runs.pretraining())] == ["raised", "cleared"]


def test_where_it_can_ask_two_readings_have_to_agree() -> None:
    run = runs.grpo()
    asks = ACTUATORS["run.evaluate"]
    run = run.model_copy(update={"actuators": (*run.actuators, asks)})
    fell, again = list(read([*LEARNT, 0.70])), runs.seen(141, {"reward": 0.7, "eval/accuracy": 0.71})
    assert [type(word) for word in runs.agent_messages(BestCheckpoint(), run, fell)][-1] is Vote
    assert offers(fell, run) == []
    assert offers([*fell, again], run) == [(141, "rollback", {"run.rollback": 120.0})]
    assert offers([*fell, runs.seen(141, {"reward": 0.7, "eval/accuracy": 0.79})], run) == []
    assert offers(read([*LEARNT, 0.3]), run) == [(140, "rollback", {"run.rollback": 120.0})], "no noise makes that"


def test_a_loss_after_a_rate_cut_is_rolled_back_at_the_cut_rate() -> None:
    slowed = runs.receipt(141, "optimizer.lr_scale", 1.0, 0.125)
    events = [*read([*LEARNT, 0.77, 0.66])]
    index = next(i for i, event in enumerate(events) if event.tick == 141) + 1
    [(_, remedy, wanted)] = offers([*events[:index], slowed, *events[index:]])
    assert (remedy, wanted) == ("rollback", {"run.rollback": 120.0})


def test_data_that_can_be_skipped_is_blamed_first() -> None:
    losses = [3.4, 2.9, 2.75, 2.68, 2.63, 3.1]
    [(tick, remedy, wanted)] = offers(read(losses, "eval/loss"), runs.pretraining())
    assert (tick, remedy) == (120, "rollback_and_skip")
    assert wanted == {"run.rollback": 100.0, "data.skip": 100.0}


@pytest.mark.parametrize(
    ("others", "remedy"),
    [
        ([("run.rollback", 105, 101)], "rollback_and_skip"),  # not to there
        ([("run.rollback", 105, 99)], "rollback_and_cut"),
        ([("run.rollback", 105, 101), ("data.skip", None, 100)], "rollback_and_cut"),  # what it would have done itself
    ],
)
def test_what_another_agent_tried_is_not_tried_again(others: list[tuple[str, Value, Value]], remedy: str) -> None:
    losses = [3.4, 2.9, 2.75, 2.68, 2.63, 3.1]
    events = list(read(losses, "eval/loss"))
    done = [
        runs.receipt(105, actuator, before, after).model_copy(update={"n": 1000 + i})
        for i, (actuator, before, after) in enumerate(others)
    ]
    [(_, offered, _)] = offers([*events[:105], *done, *events[105:]], runs.pretraining())
    assert offered == remedy


@pytest.mark.parametrize(
    "values",
    [
        [*LEARNT, 0.76],  # a tenth of what was learnt
        [0.95, 0.97, 0.96, 0.97, 0.96, 0.955],  # half of what was learnt, and hardly anything
        [0.44, 0.54, 0.47, 0.68, 0.61, 0.74, 0.66],  # it has fallen that far before
        [0.44, 0.2, 0.2, 0.1],  # too few to tell
    ],
)
def test_usual_variation_causes_no_offer(values: list[float]) -> None:
    assert not offers(read(values))


def carried_out(tick: int, back: int) -> list[Receipt]:
    return [
        runs.receipt(tick, "run.rollback", tick, back),
        runs.receipt(tick, "optimizer.lr_scale", 1.0, 0.125).model_copy(update={"n": 2 * tick + 2}),
    ]


def test_it_stops_when_two_rollbacks_led_to_no_new_best() -> None:
    events = list(read([*LEARNT, 0.5]))
    events += carried_out(140, 120)
    for tick in range(141, 300):  # ever the same fall, from the same snapshot
        step, back = 121 + (tick - 141) % 40, (tick - 141) % 40 == 0 and tick > 141
        if back and tick < 200:
            events += [r.model_copy(update={"n": r.n + 2}) for r in carried_out(tick - 1, 120)]
        metrics = {"reward": 0.7, "learning_rate": 3e-3} | ({"eval/accuracy": 0.5} if step % EVERY == 0 else {})
        events.append(runs.seen(tick, metrics, step).model_copy(update={"n": 2 * tick + 4}))
    assert max(tick for tick, _, _ in offers(events)) <= 180, "the first fall, and once more"


TRENDS: dict[str, Callable[[int], float]] = {
    "nothing but noise": lambda reading: 0.5,
    "slow": lambda reading: 0.5 + 0.002 * reading,
    "learns": lambda reading: 0.8 - 0.4 * math.exp(-reading / 5),
}


@pytest.mark.parametrize("trend", TRENDS)
def test_false_alarms_on_noise_are_as_rare_as_it_says(trend: str) -> None:
    alarms = readings = 0
    for seed in range(300):
        draw = random.Random(seed)
        values = [TRENDS[trend](reading) + draw.gauss(0, 0.02) for reading in range(30)]
        for count in range(BestCheckpoint.MIN_READINGS + 1, len(values) + 1):
            readings += 1
            alarms += BestCheckpoint().lost_share(values[:count]) is not None
    assert alarms <= (0.005 if trend == "learns" else 0.008) * readings


@pytest.mark.parametrize(("again", "offered"), [(150, []), (170, ["rollback_and_cut"])], ids=["soon", "after a while"])
def test_a_loss_that_rises_again_soon_after_a_rollback_is_not_rolled_back(again: int, offered: list[str]) -> None:
    losses = [3.0, 2.9, 2.8, 2.7, 2.65, 2.6, 3.2]
    before = [event.model_copy(update={"n": 3 * event.tick}) for event in read(losses, "eval/loss")]
    back = runs.receipt(140, "run.rollback", 140.0, 120.0).model_copy(update={"n": 3 * 140 + 1})
    after = [
        runs.seen(tick, {"loss": 2.6, **({"eval/loss": 3.1} if tick == again else {})}, tick - 20).model_copy(
            update={"n": 3 * tick}
        )
        for tick in range(141, again + 1)
    ]
    assert [remedy for tick, remedy, _ in offers([*before, back, *after], runs.pretraining()) if tick > 140] == offered
