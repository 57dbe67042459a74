"""An Oven whose training runs in another thread: teachers that are registered meanwhile, and what cancelling does."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.support.policies import conditions, liked, made

from oven_core.errors import ConfigError, TeacherRefusedError
from oven_learner.baking import training_handle as baking
from oven_learner.baking.child_stack import StackAddress
from oven_learner.baking.policy_training import OvenPolicyTrainer
from oven_learner.baking.training_handle import CommandRefusedError, Oven
from oven_learner.policies import PolicyTeachers, PolicyTrainerConfig
from oven_learner.rewards import Committee
from oven_learner.teachers import TeacherConfig
from oven_learner.testing import FakeLink
from oven_runs.settings.committee_settings import CommitteeSettings

FOR_EVER = 10**6


class Linked(OvenPolicyTrainer):
    """On a link without a bus."""

    before: Callable[[], object] = staticmethod(lambda: None)
    after: Callable[[], object] = staticmethod(lambda: None)

    def train(self, **options: Any) -> None:
        self.before()
        super().train(link=FakeLink(), **options)
        self.after()


def oven(folder: Path, *, teachers: int = 1, steps: int = FOR_EVER) -> Oven:
    committee = Committee({"liked": liked}, quorum=1)
    models = {f"teacher-{number}": made("gaussian", number) for number in range(1, teachers + 1)}
    training = Linked(
        StackAddress("there", folder, {}),
        made("gaussian"),
        committee,
        conditions("gaussian"),
        PolicyTrainerConfig(max_steps=steps, group_size=2, conditions_per_step=1, beta=0.1 if teachers else 0.0),
        teachers=models,
    )
    return Oven(training, StackAddress("there", folder, {}), None, committee, CommitteeSettings())


def late(name: str = "late", **values: Any) -> TeacherConfig:
    return TeacherConfig(name=name, **({"model": made("gaussian", 5)} | values))


def test_a_teacher_is_loaded_by_the_caller_and_admitted_by_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: dict[str, int] = {}
    prepare, admit = PolicyTeachers._prepare, PolicyTeachers._admit  # noqa: SLF001

    def prepared(self: Any, *arguments: Any) -> Any:
        threads["prepared"] = threading.get_ident()
        return prepare(self, *arguments)

    def admitted(self: Any, candidate: Any) -> Any:
        threads["admitted"] = threading.get_ident()
        return admit(self, candidate)

    monkeypatch.setattr(
        baking, "run_in_thread", lambda waiting: waiting.close()
    )  # no log: tests/e2e/test_bake.py has one
    baked = oven(tmp_path)
    monkeypatch.setattr(PolicyTeachers, "_prepare", prepared)
    monkeypatch.setattr(PolicyTeachers, "_admit", admitted)
    made("gaussian", 6).save(tmp_path / "saved")
    with ThreadPoolExecutor(1) as thread:
        training = thread.submit(lambda: (baked.run_sync(), threading.get_ident())[1])
        assert baked.began.wait(60)
        try:
            baked.register_teacher(late(model=None, model_name=str(tmp_path / "saved")))
            assert baked.teachers is not None and "late" in baked.teachers.names
            with pytest.raises(TeacherRefusedError, match="there is no folder"):
                baked.register_teacher(late("lost", model=None, model_name=str(tmp_path / "nowhere")))
            with pytest.raises(TeacherRefusedError, match="cannot score"):
                baked.register_teacher(late("text", model=made("causal")))
            with pytest.raises(ConfigError, match="'late' already exists"):
                baked.register_teacher(late())
            assert not training.done(), "none of them ended the training"
        finally:
            baked.trainer.client.request_stop("seen")
        assert threads == {"prepared": threading.get_ident(), "admitted": training.result()}
    assert threads["prepared"] != threads["admitted"]
    with pytest.raises(ConfigError, match="training has ended"):
        baked.register_teacher(late("last"))
    with pytest.raises(CommandRefusedError, match="set has no effect, because training has ended"):
        baked.swap_teacher("late")
    assert baked.teachers.names == ("teacher-1", "late", "lost", "text") and baked.teachers.active == "teacher-1"


def test_before_training_a_teacher_is_there_at_once_and_without_a_first_one_never(tmp_path: Path) -> None:
    baked = oven(tmp_path)
    baked.register_teacher(late())
    assert baked.teachers is not None and baked.teachers.names == ("teacher-1", "late")
    assert baked.swap_teacher("late") is None and baked.teachers.active == "late"
    baked.attach_to_model(baked)
    assert vars(baked)["teacher"] is baked.teachers["late"]
    untaught = oven(tmp_path, teachers=0)
    with pytest.raises(ConfigError, match="needs a training run with a teacher"):
        untaught.register_teacher(late())
    untaught.attach_to_model(untaught)
    assert vars(untaught)["teacher"] is None


@pytest.mark.parametrize("early", [True, False], ids=["before it is announced", "while it trains"])
async def test_a_cancelled_run_ends_after_its_step(early: bool, tmp_path: Path) -> None:
    baked, inside, go = oven(tmp_path), threading.Event(), threading.Event()

    def before() -> None:
        inside.set()
        assert go.wait(60)

    baked.trainer.before = before
    running = asyncio.create_task(baked.run())
    assert await asyncio.to_thread(inside.wait, 60)
    if not early:
        go.set()
        assert await asyncio.to_thread(baked.began.wait, 60)
    running.cancel()
    await asyncio.sleep(0)  # the cancellation is delivered
    running.cancel()  # once more: it waits all the same
    go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert baked.trainer.step < FOR_EVER and baked.trainer.client.stop_reason == "cancelled by the script"


async def test_what_training_raises_while_it_is_cancelled_is_raised(tmp_path: Path) -> None:
    def full() -> None:
        raise OSError("no space left for the last checkpoint")

    baked = oven(tmp_path)
    baked.trainer.after = full
    running = asyncio.create_task(baked.run())
    assert await asyncio.to_thread(baked.began.wait, 60)
    running.cancel()
    with pytest.raises(OSError, match="last checkpoint"):
        await running
