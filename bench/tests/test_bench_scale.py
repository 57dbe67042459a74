"""`bench scale`: the calculation, and a tiny run with a real server, mesh, agents and ranks; no figure is judged."""

from __future__ import annotations

import pytest

from oven_bench.scale import command
from oven_bench.scale.costs import (
    PACES,
    Block,
    Cost,
    GroupCosts,
    Line,
    Measured,
    broadcast_tree,
    messages_per_step,
    ring_time,
    table,
    tree_rounds,
)
from oven_bench.scale.rank_costs import SimulatedRanks

SECOND = Cost(messages=3, server_s=0.01)
STEP = Cost(messages=8, message_bytes=4000, events=3, store_bytes=1400, server_s=0.001, agents_s=0.01)
DECISION = Cost(messages=40, message_bytes=30_000, events=15, store_bytes=9000, server_s=0.004, agents_s=0.02)


def block(ranks: int, steps: int, decisions: int, seconds: float = 6.0) -> Block:
    cost = SECOND * seconds + STEP * steps + DECISION * decisions
    return Block(ranks, steps, decisions, seconds, (ranks - 1) * steps, 3000 * bool(decisions), cost)


def group(ranks: int) -> GroupCosts:
    """Costs on two cores with 0.3 ms per hop."""
    step_s, decision_s = 3e-4 * tree_rounds(ranks), 1e-3 + 3e-4 * ring_time(ranks, cores=2)
    decision_cpu_s = 2e-4 + 5e-5 * (ranks - 1)
    return GroupCosts(ranks, ranks + 3 if ranks > 1 else 0, step_s, decision_s, 1e-4, decision_cpu_s)


MEASURED = Measured(
    ranks=1000,
    cores=2,
    idle=block(1, 0, 0, 10.0),
    paced=[block(1, 60, 0), block(1, 500, 0)],
    compared=[block(ranks, 100, decisions) for ranks in (1, 1000) for decisions in (0, 8, 20)],
    groups=[group(ranks) for ranks in (1, 2, 4, 8, 16)],
    gauges_s=5e-9,
)


def test_costs_are_separated_into_idle_time_steps_and_decisions() -> None:
    quiet = [block(1, 100, 0)]
    assert vars(MEASURED.step(quiet)) == pytest.approx(vars(STEP))
    assert vars(MEASURED.decision([*quiet, block(1, 100, 20)])) == pytest.approx(vars(DECISION))


def test_the_table_has_the_costs_of_a_day_and_of_the_shards() -> None:
    rows = [(row["what"], row["10/min"], row["100/s"]) for row in table(MEASURED)]
    assert list(PACES) == ["10/min", "100/s"]
    assert ("thousand messages at nats-server", 376.0, 69_380.0) in rows, "3 per second, 8 per step, 40 per decision"
    assert ("GB of log in the server's store", 0.02052, 12.1) in rows
    assert ("agents, % of a core", 0.1676, 100.0) in rows
    assert ("ms until the last rank has a step", 3.0, 3.0) in rows, "ten rounds of 0.3 ms"
    assert ("ms of pause for a decision", 300.7, 300.7) in rows, "999 hops of 0.3 ms, and 1 ms"
    assert ("the same, in steps", 0.05012, 30.07) in rows
    assert ("ms of each rank's CPU for a decision", 50.15, 50.15) in rows
    assert ("file descriptors per rank", 1003.0, 1003.0) in rows
    assert ("GB per snapshot and rank, bf16", 0.42, 0.42) in rows
    assert ("snapshots in 8 GB, f32", 9.0, 9.0) in rows
    assert ("ms of gauges per step, on this CPU", 350.0, 350.0) in rows


def test_messages_that_follow_the_ranks_are_a_failure() -> None:
    assert not command.report(MEASURED).failures
    chatty = [block(1, 100, 0), block(1, 100, 8), block(1000, 130, 0), block(1000, 130, 8)]
    chatty = [Block(b.ranks, 100, b.decisions, b.seconds, 0, b.order_bytes, b.cost) for b in chatty]
    (failure,) = command.report(Measured(**{**vars(MEASURED), "compared": chatty})).failures
    assert failure.startswith("the messages of a step at nats-server depend on the number of ranks")


@pytest.mark.parametrize("count", [1, 2, 3, 8, 1000])
def test_a_broadcast_reaches_each_rank_once_from_a_rank_that_has_the_message(count: int) -> None:
    reached = [0]
    for sender, receiver in broadcast_tree(count):
        assert sender in reached[: 1 << (len(reached) - 1).bit_length()]
        reached.append(receiver)
    assert sorted(reached) == list(range(count))


def test_a_line_has_the_error_of_its_residuals() -> None:
    line = Line.fit([1, 2, 3], [2, 4, 6])
    assert line(10) == pytest.approx(20)
    assert line.error == pytest.approx(0, abs=1e-12)
    assert Line.fit([1, 2, 3], [1, 4, 1]).error > 0.5


def test_simulated_ranks_send_what_the_table_counts() -> None:
    with SimulatedRanks(300) as ranks:
        assert ranks.broadcast_if_any(lambda: "stop") == "stop"
        assert ranks.gloo.messages == 3 * 299, "a header, a message, and a collection of stop requests"
        assert ranks.stop_requester is None
        assert ranks.broadcast_if_any(lambda: None) is None
        assert ranks.gloo.messages == 4 * 299
        assert ranks.all_gather("applied") == ["applied"] * 300
    assert [messages_per_step(300, pace) for pace in (0.1, 1.0, 100.0)] == [2 * 299, 2 * 299, 1.01 * 299]


@pytest.mark.usefixtures("forked_children")
def test_real_ranks_and_a_real_stack_give_every_row() -> None:
    measured = command.measure(ranks=40, processes=4, repeats=1, shorten=5)
    result = command.report(measured)
    assert [group.ranks for group in measured.groups] == [1, 2, 4]
    assert measured.groups[0].connections == 0 < measured.groups[1].connections < measured.groups[2].connections
    assert [bool(block.decisions) for block in measured.compared] == [False, False, True, True, True, True]
    assert {block.ranks for block in measured.compared} == {1, 40}
    assert result.rows == table(measured) and result.figures["rows"] == result.rows
    assert isinstance(step := result.figures["step_at_40"], dict) and step["messages"] > 2
