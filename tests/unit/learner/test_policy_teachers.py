"""The teachers of a policy: from memory or a folder, in each form, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support.attached import THIRD_PARTY, llama
from tests.support.policies import conditions, liked, made, trainer
from tests.support.random_states import same_state
from tests.unit.learner.test_teacher_strategies import file_limit

from oven_core.errors import ConfigError, TeacherRefusedError, UnknownNameError
from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import RunStarted
from oven_learner import random_state
from oven_learner.policies import (
    DiffusionPolicy,
    GaussianTrajectory,
    PolicyTeachers,
    PolicyTrainer,
    PolicyTrainerConfig,
    load_policy,
)
from oven_learner.policies.gaussian_policy import TrajectoryNetwork
from oven_learner.policies.policy import DESCRIPTION, as_vectors, repeat_conditions
from oven_learner.teachers import TeacherConfig, memory_forms
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
SAVED = ["gaussian", "diffusion"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved policy of each kind, to copy before it is broken."""
    root = tmp_path_factory.mktemp("policies")
    for kind in SAVED:
        made(kind, 7).save(root / kind)
    return root


def taught(kind: str = "gaussian", **limits: Any) -> PolicyTeachers:
    """With one teacher, `small`."""
    teachers = PolicyTeachers(made(kind), conditions(kind), **limits)
    teachers.add("small", made(kind, 1))
    return teachers


def config(name: str = "big", **values: Any) -> TeacherConfig:
    return TeacherConfig(name=name, **values)


@pytest.mark.parametrize("kind", SAVED)
def test_saved_policies_load_without_using_random_numbers(kind: str, folders: Path) -> None:
    before = random_state.capture()
    loaded: Any = load_policy(folders / kind, encode=lambda rows: as_vectors(rows))
    assert same_state(before, random_state.capture()), "a training in another thread would have gone another way"
    policy: Any = made(kind, 7)
    samples, rows = policy.sample(conditions(kind), 2), repeat_conditions(conditions(kind), 2)
    assert torch.equal(loaded.step_log_probs(samples, rows), policy.step_log_probs(samples, rows))
    assert not loaded.training and all(parameter.requires_grad for parameter in loaded.parameters())
    assert type(loaded) in (GaussianTrajectory, DiffusionPolicy) and loaded.dims == 2


def described(**changes: Any) -> Callable[[Path], object]:
    def change(folder: Path) -> None:
        path = folder / DESCRIPTION
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


def cut(name: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:40])


OTHER = {"intent_dim": 3, "frames": 4, "dims": 2, "hidden": 9, "waves": 8}


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("gaussian", shutil.rmtree, "there is no folder"),
        ("gaussian", lambda folder: (folder / "policy.json").unlink(), "has no policy.json"),
        ("gaussian", cut("policy.json"), "is damaged, or not a policy"),
        ("gaussian", described(surprise=1), "surprise: Extra inputs"),
        ("gaussian", described(policy="Pickled"), "names a 'Pickled'; only DiffusionPolicy and GaussianTrajectory"),
        ("gaussian", described(network="Sequential"), "names a 'Sequential'; only TemporalUNet and TrajectoryNetwork"),
        ("gaussian", described(network_arguments={"depth": 3}), "cannot be loaded"),
        ("gaussian", described(network_arguments=OTHER | {"frames": 0}), "each must be at least 1"),
        ("gaussian", described(network_arguments=OTHER), "with the shape (8,), but policy.json requires (9,)"),
        ("gaussian", cut("policy.safetensors"), "cannot be read and may be damaged"),
        ("gaussian", lambda folder: (folder / "policy.safetensors").unlink(), "policy.safetensors"),
        ("diffusion", lambda folder: shutil.rmtree(folder / "scheduler"), "cannot be loaded"),
        (
            "diffusion",
            described(arguments={"frames": 4, "dims": 2, "steps": 99, "eta": 1.0}),
            "steps=99 is invalid",
        ),
    ],
)
def test_invalid_policy_folders_are_refused(
    kind: str, change: Callable[[Path], object], message: str, folders: Path, tmp_path: Path
) -> None:
    shutil.copytree(folders / kind, tmp_path / "big")
    change(tmp_path / "big")
    teachers = taught(kind)
    with pytest.raises(TeacherRefusedError, match="teacher 'big' is refused") as refused:
        teachers.register(config(model_name=str(tmp_path / "big")))
    assert message in str(refused.value) and "\n" not in str(refused.value)
    assert teachers.active == "small" and teachers.names == ("small", "big") and teachers.refused.keys() == {"big"}


def test_a_teacher_from_a_folder_reads_conditions_as_the_policy_does(folders: Path) -> None:
    words = dict(zip(("wave", "reach", "bow"), conditions("gaussian"), strict=True))
    policy = GaussianTrajectory(
        TrajectoryNetwork(3, 4, 2, hidden=8), lambda rows: as_vectors([words[row] for row in rows])
    )
    teachers = PolicyTeachers(policy, list(words))
    teachers.register(config(model_name=str(folders / "gaussian")))
    samples = policy.sample(["wave"], 2)
    wanted = made("gaussian", 7).step_log_probs(samples, [words["wave"]] * 2)
    assert torch.equal(teachers["big"].step_log_probs(samples, ["wave"] * 2), wanted)


def broken() -> GaussianTrajectory:
    policy: Any = made("gaussian", 1)
    with torch.no_grad():
        next(policy.parameters()).fill_(math.nan)
    return policy  # type: ignore[no-any-return]


@pytest.mark.parametrize("form", ["plain", "resident", "offload", "hybrid"])
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda policy: policy, "shares parameters"),
        (lambda policy: made("causal"), "cannot score"),
        (lambda policy: broken(), "not finite"),
        (lambda policy: llama(), "is a LlamaForCausalLM, but this trainer needs `step_log_probs`"),
        (lambda policy: GaussianTrajectory(TrajectoryNetwork(3, 4, 2, hidden=300)), "the limit is 300,000"),
    ],
    ids=["shares", "other kind", "NaN", "no policy", "too large"],
)
def test_unsuitable_teachers_are_refused_and_the_old_one_stays(
    form: str, make: Callable[[Any], Any], message: str, tmp_path: Path
) -> None:
    policy = made("gaussian")
    teachers = PolicyTeachers(policy, conditions("gaussian"), limit_bytes=300_000, offload_folder=tmp_path)
    teachers.add("small", made("gaussian", 1))
    model = make(policy)
    teacher = model if form == "plain" else config(model=model, strategy=form)
    if message.startswith("the limit") and form in ("offload", "hybrid"):
        teachers.add("big", teacher)
        assert teachers.memory_form("big") == "offload", "what waits on disk takes none of the limit"
        return
    with pytest.raises(TeacherRefusedError, match=message):
        teachers.add("big", teacher)
    with pytest.raises(TeacherRefusedError, match=message):
        teachers.swap("big")
    assert teachers.active == "small" and all(parameter.requires_grad for parameter in policy.parameters())
    with pytest.raises(ConfigError, match="'small' already exists"):
        teachers.add("small", made("gaussian"))
    with pytest.raises(ConfigError, match="needs a name"):
        teachers.add("", made("gaussian"))
    with pytest.raises(UnknownNameError, match="did you mean 'small'"):
        teachers.swap("smal")


@pytest.mark.parametrize("kind", SAVED)
def test_hybrid_policies_are_offloaded_when_memory_is_short(
    kind: str, folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teachers = taught(kind, offload_folder=tmp_path)
    for free, form in ((1e9, "resident"), (0, "offload")):
        monkeypatch.setattr(memory_forms, "free_bytes", lambda device, free=free: int(free) - 10**6)
        teachers.register(config(form, model_name=str(folders / kind), strategy="hybrid"))
        assert teachers.memory_form(form) == form
    samples, rows = made(kind).sample(conditions(kind), 2), repeat_conditions(conditions(kind), 2)
    both = [teachers[form].step_log_probs(samples, rows) for form in ("resident", "offload")]
    assert torch.equal(*both) and len(teachers["offload"].sample(conditions(kind), 1)) == 3


def test_a_full_disk_refuses_the_teacher_and_leaves_no_files(tmp_path: Path) -> None:
    teachers, big = taught(offload_folder=tmp_path), GaussianTrajectory(TrajectoryNetwork(3, 4, 2))
    with file_limit(4096), pytest.raises(TeacherRefusedError, match=r"cannot be written to .*offload_folder"):
        teachers.register(config(model=big, strategy="offload"))
    assert list(tmp_path.iterdir()) == [] and teachers.active == "small"


def test_preparing_changes_nothing_and_two_of_a_name_are_not_admitted() -> None:
    teachers = taught()
    events: list[str] = []
    teachers.on_add = lambda: events.append("added")
    before = random_state.capture()
    first, second = (teachers.prepare("big", config(model=made("gaussian", seed))) for seed in (2, 3))
    assert teachers.names == ("small",) and events == []
    random_state.restore(before)
    teachers.admit(first)
    assert same_state(before, random_state.capture())
    with pytest.raises(ConfigError, match="'big' already exists"):
        teachers.admit(second)
    assert teachers["big"] is first.model and events == ["added"] and teachers.active == "small"


def test_a_decision_for_a_refused_teacher_is_answered_with_the_reason_and_the_old_one_stays() -> None:
    job = trainer("gaussian", beta=0.1, teachers={"one": made("gaussian", 1), "two": made("gaussian", 2)})
    with pytest.raises(TeacherRefusedError):
        job.teachers.register(config(model=broken()))
    line = FakeLink({2: ("teacher.active", "big")})
    job.train(link=line)
    (receipt,) = line.receipts()
    assert (receipt.status, receipt.before, receipt.after) == ("rejected", "one", "one")
    assert "not finite" in receipt.reason and job.teachers.active == "one" and len(line.series("kl")) == 4


class Growing(PolicyTrainer):
    """Gets teachers while it trains: step → name."""

    late: dict[int, str]

    def update(self, number: int, conditions: Sequence[Any]) -> dict[str, float]:
        if self.step in self.late:
            self.teachers.add(self.late[self.step], made("gaussian", 10 + self.step))
        return super().update(number, conditions)


@pytest.mark.parametrize("first", [1, 2])
def test_a_teacher_that_is_added_while_training_is_announced_and_can_be_swapped_to(first: int) -> None:
    teachers = {name: made("gaussian", seed) for seed, name in enumerate(["one", "two"][:first], start=1)}
    job = Growing(
        made("gaussian"),
        {"liked": liked},
        conditions("gaussian"),
        PolicyTrainerConfig(max_steps=6, group_size=4, conditions_per_step=2, beta=0.1),
        teachers=teachers,
    )
    job.late = {2: "late", 3: "later"}
    line = FakeLink({5: ("teacher.active", "later")})
    job.train(link=line)
    job.late, job.step = {}, 0
    job.train(link=line)  # the second training has them from its start
    first_run, second_run = (body for body in line.sent if isinstance(body, RunStarted))
    offered = [{spec.name: spec.choices for spec in run.actuators} for run in (first_run, second_run)]
    assert offered[0].get("teacher.active") == (None if first == 1 else ("one", "two"))
    announcements = [body for body in line.sent if isinstance(body, ActuatorAnnounced)]
    names = tuple(teachers)
    assert [
        (announcement.step, announcement.actuator.name, announcement.actuator.choices, announcement.actuator.value)
        for announcement in announcements
    ] == [
        (2, "teacher.active", (*names, "late"), "one"),
        (3, "teacher.active", (*names, "late", "later"), "one"),
    ]
    (receipt,) = (receipt for receipt in line.receipts() if receipt.actuator == "teacher.active")
    assert (receipt.status, receipt.before, receipt.after) == ("applied", "one", "later")
    assert job.teachers.active == "later" and offered[1]["teacher.active"] == (*names, "late", "later")
