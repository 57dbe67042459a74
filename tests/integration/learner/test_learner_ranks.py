"""Several ranks on gloo: rank 0 speaks to the bus, all do the same at the same step, and none hangs without it."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.support.forked import ForkServer
from tests.support.learner_side import ROOT, RUN, Process, Server, serving, until

from oven_core.protocol.messages import Decision, Observation, Receipt, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.operator_messages import OperatorCommand
from oven_learner.optim.optimizer_gauges import ALL_GAUGES

ON = Subjects(RUN)
LIMIT_S = 180
READINGS = 10
Start = Callable[..., Process]


@pytest.fixture
async def nats(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path) as server:
        yield server


@pytest.fixture
async def started(nats: Server, forks: ForkServer, tmp_path: Path) -> AsyncIterator[Start]:
    processes: list[Process] = []

    def start(kind: str, *options: str) -> Process:
        job = ["-m", "tests.support.ranks_job", kind, str(tmp_path), *options]
        env = nats.env("learner") | {"GLOO_SOCKET_IFNAME": "lo"}
        processes.append(Process(job, env, tmp_path / "ranks.log", forks.popen()))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()


def allow(folder: Path, step: int) -> None:
    """Up to this step the ranks may go."""
    new = folder / "allowed.new"
    new.write_text(str(step))
    new.replace(folder / "allowed")


def steps(folder: Path, rank: int = 0) -> list[list[float]]:
    """(step, rate, this rank's loss, …) of each."""
    path = folder / f"steps-{rank}.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return [json.loads(line) for line in lines if line.endswith("]")]


def settings(folder: Path, rank: int) -> list[list[float]]:
    """What was set, by step: all but the loss, which is each rank's own."""
    return [[step, rate, *rest] for step, rate, _, *rest in steps(folder, rank)]


def ends(folder: Path, ranks: int) -> list[dict[str, Any]]:
    return [json.loads((folder / f"end-{rank}.json").read_text()) for rank in range(ranks)]


def weights(folder: Path, ranks: int) -> set[str]:
    return {end["weights"] for end in ends(folder, ranks)}


async def reached(folder: Path, step: int, process: Process) -> None:
    await until(lambda: len(steps(folder)) >= step or process.popen.poll() is not None, LIMIT_S)
    assert process.popen.poll() is None, process.output()


def decision(
    number: int, value: float, apply_at: int = 1, actuator: str = "optimizer.lr_scale", tick: int = 0
) -> Decision:
    return Decision(
        id=f"{number:012d}-00", ballot="b", actuator=actuator, verdict="adopted", value=value, reason="",
        tally=(), tick=tick, apply_at_tick=apply_at, expires_at_tick=100_000,
    )  # fmt: skip


async def decide(nats: Server, *made: Decision) -> None:
    """As a mesh would: after the run's start, which the steps don't wait for."""
    await nats.logged(lambda event: isinstance(event.body, RunStarted))
    async with nats.bus("mesh") as mesh:
        for decision in made:
            await mesh.append(ON.decision(decision.id), decision.wire(), once=True)


async def answered(nats: Server, folder: Path, made: Sequence[Decision], allowed: int, limit: int) -> int:
    """Let the ranks go on until the log has a receipt of each; the last step that they may take. A decision is taken at
    a step, once it has come, so that the log is read a few times before the next step."""
    wanted = {decision.id for decision in made}
    async with nats.bus() as bus:
        for last in range(allowed, limit):
            for _ in range(READINGS):
                events = [event async for event in bus.read(RUN, until=await bus.head(RUN))]
                if wanted <= {event.body.decision_id for event in events if isinstance(event.body, Receipt)}:
                    return last
                await asyncio.sleep(0.1)
            allow(folder, last + 1)
    raise AssertionError("no receipt came within the steps that were left for it")


async def test_four_ranks_take_twenty_decisions_while_the_bus_is_killed_twice(
    nats: Server, started: Start, tmp_path: Path
) -> None:
    allow(tmp_path, 5)
    process = started("loop", "--ranks", "4", "--steps", "200")
    await reached(tmp_path, 5, process)
    # Thirteen are known before the bus dies, and some of them are due while it is dead.
    first = [decision(n, 1.0 - n / 50, apply_at=10 + 5 * n) for n in range(1, 14)]
    await decide(nats, *first)
    allow(tmp_path, 45)
    await answered(nats, tmp_path, first[:6], 45, 60)
    await nats.kill()
    allow(tmp_path, 90)
    await reached(tmp_path, 90, process)
    await nats.start()
    late = [decision(n, 1.0 + n / 50) for n in range(14, 18)]
    await decide(nats, *late)
    allowed = await answered(nats, tmp_path, [*first, *late], 90, 120)
    links = [p for p in psutil.Process(process.popen.pid).children(recursive=True) if _is_link(p)]
    assert len(links) == 1, "one client of the bus, not one a rank"
    links[0].kill()
    await nats.kill()
    allow(tmp_path, allowed + 30)
    await reached(tmp_path, allowed + 30, process)
    await nats.start()
    last = [decision(n, 2.0 + n / 50) for n in range(18, 21)]
    await decide(nats, *last)
    await answered(nats, tmp_path, last, allowed + 30, 190)
    allow(tmp_path, 200)
    assert await process.ended(LIMIT_S) == 0, process.output()

    assert [step for step, *_ in steps(tmp_path)] == list(range(1, 201))
    assert all(settings(tmp_path, rank) == settings(tmp_path, 0) for rank in (1, 2, 3))
    assert len(weights(tmp_path, 4)) == 1
    messages = await nats.bodies()
    receipts = [(body.decision_id, body.status) for body in messages if isinstance(body, Receipt)]
    assert receipts == [(made.id, "applied") for made in (*first, *late, *last)]
    assert steps(tmp_path)[-1][1] == pytest.approx(0.01 * 2.4)
    # What was on its way when the link was killed is lost and counted; nothing else is.
    seen = {body.step for body in messages if isinstance(body, Observation)}
    assert seen <= set(range(1, 201)) and seen >= {*range(1, 91), *range(allowed + 31, 201)}
    end = messages[-1]
    assert isinstance(end, RunEnded) and (end.reason, end.dropped_observations) == ("completed", 200 - len(seen))


def _is_link(process: psutil.Process) -> bool:
    return "oven_learner.link.worker" in process.cmdline()


async def test_a_signal_to_one_rank_ends_all_cleanly_and_a_dead_rank_is_a_failure(
    nats: Server, started: Start, tmp_path: Path
) -> None:
    process = started("attach")
    await reached(tmp_path, 20, process)
    await decide(nats, decision(1, 0.5), decision(2, 0.25, actuator="grad.clip"))
    await until(lambda: [steps(tmp_path)[-1][i] for i in (1, 3)] == [0.005, 0.25], LIMIT_S)
    rank_1 = int((tmp_path / "pid-1").read_text())
    os.kill(rank_1, signal.SIGTERM)
    await until(lambda: all((tmp_path / f"end-{rank}.json").exists() for rank in (0, 1)), LIMIT_S)
    # It trains again, as the run's second incarnation.
    await until(lambda: [step for step, *_ in steps(tmp_path)].count(20) == 2, LIMIT_S)
    os.kill(rank_1, signal.SIGKILL)
    assert await process.ended(LIMIT_S) != 0

    messages = await nats.bodies()
    starts = [number for number, body in enumerate(messages) if isinstance(body, RunStarted)]
    assert len(starts) == 2, "one learner, not one a rank"
    first, second = messages[: starts[1]], messages[starts[1] :]
    end = first[-1]
    assert isinstance(end, RunEnded) and (end.reason, end.detail) == ("stopped", "rank 1 requested a stop")
    assert len(weights(tmp_path, 2)) == 1
    each = [steps(tmp_path, rank)[: end.step] for rank in (0, 1)]
    assert [[row[0], row[1], row[3]] for row in each[0]] == [[row[0], row[1], row[3]] for row in each[1]]
    receipts = [(body.decision_id, body.status) for body in first if isinstance(body, Receipt)]
    assert receipts == [(decision(n, 1.0).id, "applied") for n in (1, 2)], "one receipt each, not one a rank"
    seen = [body for body in first if isinstance(body, Observation)]
    assert [body.step for body in seen] == list(range(1, end.step + 1))
    means = [(row[2] + peer_row[2]) / 2 for row, peer_row in zip(*each, strict=True)]
    assert [body.metrics["loss"] for body in seen] == pytest.approx(means, rel=1e-6)
    last = second[-1]
    assert isinstance(last, RunEnded) and last.reason == "failed", last


async def test_a_sharded_trainer_is_unchanged_and_its_knobs_and_rollback_work(
    nats: Server, started: Start, tmp_path: Path
) -> None:
    process = started("sharded")
    await reached(tmp_path, 5, process)
    tick = 7  # of the second training that is attached: the first took six
    await decide(nats, decision(1, 0.5, tick=tick), decision(2, 0.25, actuator="grad.clip", tick=tick))
    await until(lambda: [steps(tmp_path)[-1][i] for i in (1, 3)] == [0.005, 0.25], LIMIT_S)
    await decide(nats, decision(3, float(tick), actuator="run.rollback", tick=tick))
    await nats.logged(lambda event: isinstance(event.body, Receipt) and event.body.actuator == "run.rollback")
    async with nats.bus() as operator:
        await operator.append(ON.operator("ann"), OperatorCommand(id="1", action="stop").wire())
    assert await process.ended(LIMIT_S) == 0, process.output()
    assert settings(tmp_path, 0) == settings(tmp_path, 1)
    assert len(weights(tmp_path, 2)) == 1
    assert all(end["same"] for end in ends(tmp_path, 2)), "observed, it trains as it does alone, bit for bit"
    messages = await nats.bodies()
    started_as = next(body for body in messages if isinstance(body, RunStarted))
    assert not started_as.unmeasured
    receipts = {body.actuator: body for body in messages if isinstance(body, Receipt) and body.decision_id}
    assert {receipt.status for receipt in receipts.values()} == {"applied"}, receipts
    back = receipts["run.rollback"]
    assert isinstance(back.before, float) and isinstance(back.after, float) and back.after < back.before
    last = [body for body in messages if isinstance(body, Observation)][-1]
    assert all(math.isfinite(last.metrics[spec.name]) for spec in ALL_GAUGES), last


def without_a_bus(forks: ForkServer, kind: str, folder: Path, count: int, *more: str) -> list[dict[str, Any]]:
    """How the ranks of a job ended."""
    env = os.environ | {
        "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE",
        "PYTHONPATH": os.pathsep.join(str(ROOT / part) for part in ("controller", "learner", ".")),
    }  # fmt: skip
    job = ["-m", "tests.support.ranks_job", kind, str(folder), "--ranks", str(count), *more]
    process = Process(job, env, folder / "log", forks.popen())
    try:
        assert process.popen.wait(LIMIT_S) == 0, process.output()
    finally:
        process.kill()
    return ends(folder, count)


def test_an_oracles_rows_keep_their_own_vectors_on_two_ranks(forks: ForkServer, tmp_path: Path) -> None:
    job = ["--steps", "24"]  # a rank's rows
    for counted in without_a_bus(forks, "oracle", tmp_path, 2, *job):
        assert counted["wrong"] == 0 and counted["rows"] >= 24 and counted["in_passes"] >= 72
        assert counted["apart"] <= 1e-5


@pytest.mark.parametrize("count", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_gauges_of_shards_are_those_of_the_whole_model(forks: ForkServer, tmp_path: Path, count: int) -> None:
    for errors_by_sharding in without_a_bus(forks, "gauges", tmp_path, count, "--steps", "10"):
        for sharding, errors_by_shape in errors_by_sharding.items():
            for shape, errors in errors_by_shape.items():
                assert len(errors) >= 3, "each shape has at least the cosine and two norms"
                assert max(errors.values()) <= 1e-5, (sharding, shape, errors)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_copies_of_shards_restore_every_bit(forks: ForkServer, tmp_path: Path, count: int) -> None:
    """Training continues from them exactly as it did before."""
    for differences in without_a_bus(forks, "copied", tmp_path, count, "--steps", "20"):
        for counts in differences.values():  # with copies on the device and in the host's memory
            assert set(counts.values()) == {0}, differences


def test_a_channel_shares_its_hints_between_two_ranks(forks: ForkServer, tmp_path: Path) -> None:
    """Rank 1 has no hint, and none of them waits for the other."""
    first_rank, second_rank = without_a_bus(forks, "channels", tmp_path, 2, "--steps", "2")
    assert first_rank["hinted"] == [16, 16] and second_rank["hinted"] == [0, 0]
    assert first_rank["weights"] == second_rank["weights"] and first_rank["shares"] == [0.5, 0.5]


@pytest.fixture(scope="module")
def cases(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """How the cases of ranks_cases ended, by rank."""
    return without_a_bus(forks, "agreeing", tmp_path_factory.mktemp("cases"), 3)


def alike(cases: list[dict[str, Any]], name: str, *fields: str) -> list[Any]:
    """What the ranks say alike."""
    fields_by_rank = [[rank[name][field] for field in fields] for rank in cases]
    assert fields_by_rank[0] == fields_by_rank[1] == fields_by_rank[2]
    return fields_by_rank[0]


@pytest.mark.parametrize("name", ["listening_fails", "the_client_itself_fails"])
def test_if_rank_0_fails_to_listen_the_others_still_get_an_answer(cases: list[dict[str, Any]], name: str) -> None:
    assert alike(cases, name, "rate", "stopping") == [2.0, ""]
    assert cases[0][name]["receipts"] == [["applied", ""]]


def test_a_change_that_fails_on_one_rank_is_reverted_on_all(cases: list[dict[str, Any]]) -> None:
    assert alike(cases, "a_setter_fails_on_rank_1", "rate", "stopping") == [1.0, ""]
    [(status, reason)] = cases[0]["a_setter_fails_on_rank_1"]["receipts"]
    assert status == "rejected" and "rank 1 has 1.0 (rejected: of this rank)" in reason


def test_ranks_stop_if_an_action_had_different_outcomes(cases: list[dict[str, Any]]) -> None:
    steps, why = alike(cases, "a_rollback_fails_on_rank_2", "steps", "stopping")
    assert steps == 1 and why.startswith("run.rollback had different outcomes")
    assert [status for status, _ in cases[0]["a_rollback_fails_on_rank_2"]["receipts"]] == ["unknown"]


def test_a_stop_requested_on_any_rank_ends_all_at_the_same_step(cases: list[dict[str, Any]]) -> None:
    steps, why = alike(cases, "rank_2_is_asked_to_end", "steps", "stopping")
    assert steps < 1_000_000 and why == "rank 2 requested a stop"


def test_a_time_budget_ends_all_by_the_clock_of_rank_0(cases: list[dict[str, Any]]) -> None:
    steps, why = alike(cases, "the_time_is_up", "steps", "stopping")
    assert 1 < steps < 1_000_000 and why == "the time budget is used up"


def test_credentials_that_are_refused_are_an_error_on_all(cases: list[dict[str, Any]]) -> None:
    assert alike(cases, "rank_0_is_refused", "raised") == ["the server refused the credentials"]


def test_all_ranks_are_held_and_resumed_and_changes_meanwhile_apply_at_once(cases: list[dict[str, Any]]) -> None:
    assert alike(cases, "held_and_resumed", "steps", "rate", "stopping") == [1, 3.0, ""]


def test_an_actuator_is_announced_only_if_all_ranks_agree(cases: list[dict[str, Any]]) -> None:
    assert alike(cases, "an_actuator_is_announced", "steps", "rate", "stopping") == [8, 150.0, ""]
    assert [rank["an_actuator_is_announced"]["announced"] for rank in cases] == [[200.0], [], []]


def test_in_lockstep_rank_0_waits_for_the_tick_and_all_ranks_apply_its_decisions(cases: list[dict[str, Any]]) -> None:
    assert alike(cases, "in_lockstep", "rates", "timeouts") == [[2.0, 3.0, 4.0], 0]


def test_a_rate_is_read_back_on_all_at_the_same_step(cases: list[dict[str, Any]]) -> None:
    rates, scales = alike(cases, "the_rate_is_read_back", "rates", "status")
    assert rates == pytest.approx([0.1] + [0.05] * 4 + [0.1] * 5) and scales == [0.5, 1.0]
    assert cases[0]["the_rate_is_read_back"]["receipts"] == ["applied", "rejected"]


def test_an_outcome_needs_readings_of_all_ranks(cases: list[dict[str, Any]]) -> None:
    """The evaluation may be a collective, so no rank may evaluate alone."""
    assert alike(cases, "rank_0_has_the_rules", "evaluated") == [[2, 4]]


def test_the_mean_is_over_the_ranks_that_measured(cases: list[dict[str, Any]]) -> None:
    """A NaN anywhere is one: that rank's gradient is in everybody's step."""
    assert cases[0]["each_measures"]["seen"] == [{"loss": "2.0", "own": "0.0", "eval/loss": "5.0"}, {"loss": "nan"}]


def test_all_ranks_end_with_the_same_weights(cases: list[dict[str, Any]]) -> None:
    """By the mean of their readings; where one of them cannot read, with the last."""
    assert alike(cases, "all_end_with_the_best", "weights") == [[2, 3]]
    (status, why), (failed, reason) = cases[0]["all_end_with_the_best"]["said"]
    assert (status, failed) == ("applied", "rejected")
    assert why == "restored the weights of step 2: eval/loss 0.6333, 1.267 at step 3"
    assert "those of step 2 failed: " in reason and "the file is not on this machine" in reason
