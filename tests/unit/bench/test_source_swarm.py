"""The source's agents and its two kinds of consensus, on examples worked out from its text and its code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_bench.source_swarm import rules
from oven_bench.source_swarm.decision_cycle import SourceSwarm
from oven_bench.source_swarm.rules import Gauges, Proposal, as_coded, as_written
from oven_core.errors import ConfigError
from oven_core.protocol.messages import ActuatorSpec, Horizon, Observation, RunStarted


def gauges(progress: float, **others: Any) -> Gauges:
    return Gauges(
        **{"progress": progress, "schedule": 1.0, "grad_norm": 1.0, "losses": (), "quantised": False, **others}
    )


@pytest.mark.parametrize(
    ("progress", "schedule", "quantised", "confidence"),
    [(0.39, 0.1, False, None), (0.41, 0.16, False, None), (0.41, 0.14, False, 0.90), (0.66, 1.0, False, 0.95),
     (0.66, 0.1, False, 0.90), (0.9, 0.1, True, None)],
)  # fmt: skip
def test_when_it_quantises(progress: float, schedule: float, quantised: bool, confidence: float | None) -> None:
    found = rules.precision(gauges(progress, schedule=schedule, quantised=quantised), "int4")
    assert (found and found.confidence) == confidence and (found is None or found.value == "int4")


@pytest.mark.parametrize(
    ("progress", "proposed", "value"),
    [(0.0, 0.3, 0.5), (0.149, 0.5, None), (0.15, 0.5, 0.4), (0.39, 0.4, None), (0.4, 0.4, 0.3), (0.4, 0.3, None),
     (0.69, 0.3, None), (0.7, 0.3, 0.1), (1.0, 0.1, None)],
)  # fmt: skip
def test_what_the_graph_weighs(progress: float, proposed: float, value: float | None) -> None:
    found = rules.graph_weight(gauges(progress), proposed)
    assert (found and found.value) == value and (found is None or found.confidence == 0.75)


def test_its_clip_and_its_tokens_ahead() -> None:
    assert rules.clip(gauges(0.5, grad_norm=2.0)) is None
    assert rules.clip(gauges(0.5, grad_norm=2.1)) == Proposal("grad.clip", 0.15, 0.85, False)
    assert rules.tokens_ahead(gauges(0.75)) is None
    assert rules.tokens_ahead(gauges(0.76)) == Proposal("channel.mtp", 0.05, 0.65, False)


def falling(earlier: float, recent: float) -> list[float]:
    """Ten losses that fall by the one in all, and ten by the other."""
    first = [5.0 - earlier * n / 9 for n in range(10)]
    return [*first, *(first[-1] - recent * n / 9 for n in range(10))]


@pytest.mark.parametrize(
    ("progress", "scale", "losses", "value"),
    [(0.5, 1.0, falling(1.0, 0.1), 0.85), (0.3, 1.0, falling(1.0, 0.1), None), (0.5, 0.5, falling(1.0, 0.1), 0.425),
     (0.2, 1.0, falling(1.0, 1.6), 1.1), (0.2, 1.2, falling(1.0, 1.6), None), (0.5, 1.0, falling(1.0, 0.5), None),
     (0.5, 1.0, falling(-1.0, 1.0), None), (0.5, 1.0, falling(1.0, 0.1)[1:], None)],
)  # fmt: skip
def test_its_rate(progress: float, scale: float, losses: Sequence[float], value: float | None) -> None:
    found = rules.rate(gauges(progress, losses=losses, rate_scale=scale))
    assert (found and found.value) == (None if value is None else pytest.approx(value))


QUANTISE = Proposal("train.quantisation", "int4", 0.95, None)
WEIGHT = Proposal("channel.kg", 0.4, 0.75, False)
TIGHTEN = Proposal("grad.clip", 0.15, 0.85, False)
LESS_AHEAD = Proposal("channel.mtp", 0.05, 0.65, False)
ALL = (QUANTISE, WEIGHT, TIGHTEN, LESS_AHEAD)


def test_as_coded_every_one_of_its_agents_gets_its_way_and_as_written_two_of_four() -> None:
    assert as_coded(ALL) == list(ALL)
    assert as_written(ALL) == [QUANTISE, TIGHTEN]


def proposal(value: float, confidence: float, raises: bool) -> Proposal:
    return Proposal("grad.clip", value, confidence, raises)


@pytest.mark.parametrize(
    ("proposals", "value"),
    [([(0.2, 0.6, False)], None),
     ([(0.2, 0.6, False), (0.1, 0.7, False)], 0.1),
     ([(0.2, 0.6, False), (0.5, 0.7, True)], None),
     ([(0.2, 0.6, False), (0.5, 0.84, True), (0.1, 0.5, False)], 0.2),
     ([(0.2, 0.85, False), (0.5, 0.7, True)], 0.2),
     ([(0.2, 0.95, False), (0.1, 0.29, False)], None)],
)  # fmt: skip
def test_as_written_one_is_sure_or_two_agree_and_a_doubter_stops_it(
    proposals: list[tuple[float, float, bool]], value: float | None
) -> None:
    found = as_written([proposal(*one) for one in proposals])
    assert [one.value for one in found] == ([] if value is None else [value])


PROPOSALS = st.lists(
    st.builds(
        Proposal, st.sampled_from(("grad.clip", "channel.kg")), st.floats(0, 1), st.floats(0, 1), st.booleans()
    ), max_size=6,
)  # fmt: skip


@given(PROPOSALS)
def test_no_consensus_makes_anything_up_and_as_written_sets_a_knob_once(proposals: list[Proposal]) -> None:
    for consensus in (as_coded, as_written):
        assert all(one in proposals for one in consensus(proposals))
    knobs = [one.actuator for one in as_written(proposals)]
    assert len(knobs) == len(set(knobs))


STEPS = 90
RUN = RunStarted(
    incarnation=1, n=0, recipe="pretrain", horizon=Horizon(max_steps=STEPS),
    actuators=(
        *(ActuatorSpec(name=name, kind="scalar", low=0, high=10, value=1.0)
          for name in ("channel.kg", "channel.mtp", "grad.clip", "optimizer.lr_scale")),
        ActuatorSpec(name="train.quantisation", kind="choice", choices=("none", "int4"), value="none"),
    ),
)  # fmt: skip


def played(swarm: SourceSwarm, norm: float = 1.0, peak_until: int = STEPS) -> dict[int, list[tuple[str, Any]]]:
    """Step → what it sets then."""
    swarm.start(RUN)
    found = {}
    for step in range(1, STEPS + 1):
        metrics = {"loss": 3.0 - step / 100, "grad_norm": norm, "learning_rate": 1.0 if step <= peak_until else 0.1}
        seen = Observation(incarnation=1, n=step, tick=step, step=step, progress=step / STEPS, metrics=metrics)
        if said := swarm.look(seen):
            found[step] = said
    return found


def test_a_run_as_coded_turns_every_knob_of_its_four_agents() -> None:
    assert played(SourceSwarm(as_coded, "int4")) == {
        10: [("channel.kg", 0.5)],
        20: [("channel.kg", 0.4)],
        40: [("channel.kg", 0.3)],
        60: [("train.quantisation", "int4")],
        70: [("channel.kg", 0.1), ("channel.mtp", 0.05)],
        80: [("channel.mtp", 0.05)],
        90: [("channel.mtp", 0.05)],
    }


def test_a_run_as_written_turns_two_and_a_real_norm_tightens_the_clip() -> None:
    assert played(SourceSwarm(as_written, "int4")) == {60: [("train.quantisation", "int4")]}
    found = played(SourceSwarm(as_written, "int4"), norm=3.0, peak_until=35)
    assert found[40] == [("train.quantisation", "int4"), ("grad.clip", 0.15)], "the schedule has come down"
    assert [step for step, said in found.items() if ("grad.clip", 0.15) in said] == list(range(10, 91, 10))


def test_the_fifth_agent_cuts_what_is_left_of_the_rate() -> None:
    swarm = SourceSwarm(as_coded, "int4", with_rate=True)
    swarm.start(RUN)
    loss, cuts = 9.0, []
    for step in range(1, STEPS + 1):
        loss -= 0.1 * (31 <= step <= 40 or 51 <= step <= 60)
        metrics = {"loss": loss, "learning_rate": 1.0}
        said = swarm.look(Observation(incarnation=1, n=step, tick=step, step=step, progress=0, metrics=metrics))
        cuts += [(step, value) for name, value in said if name == "optimizer.lr_scale"]
    assert cuts == [(50, 0.85), (70, pytest.approx(0.7225))], "where a fall was followed by none"


def test_a_run_without_one_of_its_knobs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"needs channel\.mtp in the run"):
        SourceSwarm(as_coded, "int4").start(
            RUN.model_copy(update={"actuators": tuple(s for s in RUN.actuators if s.name != "channel.mtp")})
        )
    with pytest.raises(ConfigError, match="a number of steps"):
        SourceSwarm(as_coded, "int4").start(RUN.model_copy(update={"horizon": Horizon()}))
