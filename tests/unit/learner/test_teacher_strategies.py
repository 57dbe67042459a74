"""How a teacher is kept changes its memory and not what it teaches: quantized, offloaded, and what cannot be."""

from __future__ import annotations

import copy
import gc
import logging
import resource
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.support.attached import THIRD_PARTY
from tests.support.random_states import same_state
from tests.unit.learner.test_attach_trl import grpo, tokenizer
from tests.unit.learner.test_teachers import batch, gradient, kl_gradient, poisoned, shuffled, teacher

from oven_core.errors import ConfigError, TeacherRefusedError
from oven_learner import random_state
from oven_learner.hf.attach import attach
from oven_learner.teachers import TeacherConfig, Teachers, memory_forms
from oven_learner.teachers.memory_forms import Footprint, fastest_fitting_form, memory_bytes
from oven_learner.testing import FakeLink

pytestmark = [pytest.mark.filterwarnings(text) for text in THIRD_PARTY]
KEPT: dict[str, dict[str, Any]] = {
    "resident": {},
    "8 bits": {"strategy": "quantized", "bits": 8},
    "4 bits": {"strategy": "quantized", "bits": 4},
    "offload": {"strategy": "offload"},
}


def wide(seed: int) -> Any:
    """Most of it is in linear layers."""
    return teacher(seed, width=64)


def beside(folder: Path, **settings: Any) -> tuple[Any, Teachers]:
    """A trainer with a small teacher that is active."""
    job: Any = grpo(folder, lr_scheduler_type="constant")
    teachers = Teachers(job, offload_folder=folder / "offloaded", initial_name="none", **settings)
    teachers.add("small", teacher(11), tokenizer())
    teachers.swap("small")
    job.beta = job.args.beta = 0.5
    return job, teachers


def with_one_nan() -> Any:
    """In a layer that is quantized."""
    model = wide(1)
    with torch.no_grad():
        model.model.layers[0].mlp.up_proj.weight[3, 5] = float("nan")
    return model


def config(name: str = "big", **values: Any) -> TeacherConfig:
    return TeacherConfig(**({"name": name, "kind": "big", "tokenizer": tokenizer()} | values))


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.parametrize("from_disk", [False, True], ids=["in memory", "from a folder"])
def test_the_term_has_its_gradient_however_the_teacher_is_kept(tmp_path: Path, form: str, from_disk: bool) -> None:
    job, teachers = beside(tmp_path)
    source: dict[str, Any] = {"model": wide(12)}
    if from_disk:
        wide(12).save_pretrained(tmp_path / "big")
        source = {"model_name": str(tmp_path / "big")}
    small = gradient(job, batch(job))
    teachers.register(config(**source, **KEPT[form]))
    assert teachers.active == "small", "to register one is not to choose it"
    assert torch.equal(gradient(job, batch(job)), small)
    assert teachers.memory_form("big") == form

    teachers.swap("big")
    inputs = batch(job)
    actual = gradient(job, inputs)
    assert actual.norm() > 1e-3
    torch.testing.assert_close(actual, kl_gradient(job, job.ref_model, inputs), rtol=1e-3, atol=1e-5)
    assert (actual - small).norm() > 0.1 * small.norm(), "the new one's"
    exact = kl_gradient(job, wide(12).eval(), inputs)
    least = {"resident": 0.9999, "8 bits": 0.99, "4 bits": 0.95, "offload": 0.9999}[form]
    assert torch.cosine_similarity(actual, exact, dim=0) > least
    assert not any(parameter.requires_grad for parameter in job.ref_model.parameters())
    job.beta = 0.0
    assert not gradient(job, inputs).any(), "exactly nothing"


@pytest.mark.parametrize("form", KEPT)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_teacher_prepared_during_a_step_does_not_change_the_step(
    tmp_path: Path, form: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, teachers = beside(tmp_path)
    wide(12).to(dtype).save_pretrained(tmp_path / "big")
    described = config(model_name=str(tmp_path / "big"), **KEPT[form])
    teachers.register(described.model_copy(update={"name": "before"}))
    state, models, defaults = random_state.capture(), list(job.accelerator._models), set()
    set_default = torch.set_default_dtype

    def watched(default: torch.dtype) -> None:
        defaults.add(default)
        set_default(default)

    monkeypatch.setattr(torch, "set_default_dtype", watched)
    with ThreadPoolExecutor(1) as thread:
        prepared = thread.submit(teachers.prepare, "big", described, during_training=True).result()
    assert defaults <= {torch.float32}, "a step beside it computes in the default dtype"
    assert same_state(state, random_state.capture()) and job.accelerator._models == models
    assert "big" not in teachers.names
    teachers.admit(prepared)
    assert same_state(state, random_state.capture())
    assert teachers.names == ("small", "before", "big") and teachers.memory_form("big") == form
    both = [teachers.idle_models[name](input_ids=torch.arange(8)[None]).logits for name in ("before", "big")]
    assert both[0].dtype == both[1].dtype and torch.equal(*both)
    assert memory_bytes(teachers.idle_models["big"]) == memory_bytes(teachers.idle_models["before"])


def test_a_swap_to_each_form_takes_no_step_of_a_run(tmp_path: Path) -> None:
    job, teachers = beside(tmp_path, kl_every=0)
    for seed, (form, storage) in enumerate(KEPT.items()):
        teachers.register(config(form, model=wide(20 + seed), **storage))
    line = FakeLink(
        {1: ("teacher.active", "8 bits"), 2: ("teacher.active", "4 bits"), 3: ("teacher.active", "offload")}
    )
    attach(job, link=line, teachers=teachers)
    job.train()
    assert [(receipt.status, receipt.after) for receipt in line.receipts()] == [
        ("applied", "8 bits"), ("applied", "4 bits"), ("applied", "offload"),
    ]  # fmt: skip
    assert len(line.series("kl")) == job.args.max_steps and all(value > 0 for value in line.series("kl"))


def test_bytes_in_memory_are_counted(tmp_path: Path) -> None:
    _, teachers = beside(tmp_path)
    model = wide(1)
    whole = memory_bytes(model)
    head = memory_bytes(model.lm_head) + memory_bytes(model.model.embed_tokens)
    assert whole == sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])
    for form, storage in KEPT.items():
        teachers.register(config(form, model=copy.deepcopy(model), **storage))
    held = {form: memory_bytes(teachers.idle_models[form]) for form in KEPT}
    linear = whole - head
    assert held["resident"] == whole
    assert head + linear / 4 < held["8 bits"] < head + linear * 0.35
    assert head + linear / 8 < held["4 bits"] < head + linear * 0.25
    assert held["offload"] < 0.05 * whole
    offloaded = teachers.idle_models["offload"]
    with torch.no_grad():
        torch.testing.assert_close(
            offloaded(input_ids=torch.arange(8)[None]).logits, model.eval()(input_ids=torch.arange(8)[None]).logits
        )
    assert memory_bytes(offloaded) == held["offload"], "after a pass, too"


def test_tied_weights_are_kept_in_each_form(tmp_path: Path) -> None:
    job, teachers = beside(tmp_path)
    model = wide(1)
    model.config.tie_word_embeddings = True
    model.tie_weights()
    ids = torch.arange(8)[None]
    wanted = model.eval()(input_ids=ids).logits.detach()
    for form, storage in KEPT.items():
        teachers.register(config(form, model=copy.deepcopy(model), **storage))
        with torch.no_grad():
            logits = teachers.idle_models[form](input_ids=ids).logits
        assert torch.cosine_similarity(logits.flatten(), wanted.flatten(), dim=0) > 0.98
        teachers.swap(form)
        assert gradient(job, batch(job)).norm() > 1e-3


def test_offloaded_weights_lie_in_the_folder_and_go_with_the_teacher(tmp_path: Path) -> None:
    job, teachers = beside(tmp_path)
    teachers.register(config(model=wide(1), strategy="offload"))
    (folder,) = (tmp_path / "offloaded").iterdir()
    written = sum(path.stat().st_size for path in folder.glob("*.dat"))
    assert written == sum(parameter.nbytes for parameter in wide(1).parameters())
    del job, teachers
    gc.collect()
    assert not folder.exists()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """No file of this process may be longer: the nearest to a full disk that needs no file system of its own."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk_is_an_error_that_names_folder_and_need_and_the_old_teacher_stays(tmp_path: Path) -> None:
    job, teachers = beside(tmp_path)
    big = wide(1)
    needed = sum(parameter.nbytes for parameter in big.parameters())
    with file_limit(4096), pytest.raises(TeacherRefusedError) as refused:
        teachers.register(config(model=big, strategy="offload"))
    text = str(refused.value)
    assert f"its {needed:,} bytes cannot be written to {tmp_path / 'offloaded'}" in text and "large" in text
    assert "offload_folder" in text
    assert list((tmp_path / "offloaded").iterdir()) == [], "what was written is removed"
    assert teachers.active == "small" and gradient(job, batch(job)).any()
    assert memory_bytes(big) > needed, "its weights are still there"


def test_a_disk_that_is_known_to_be_too_small_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, teachers = beside(tmp_path)
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda where: usage._replace(free=1000))
    with pytest.raises(TeacherRefusedError, match="only 1,000 bytes are free"):
        teachers.register(config(model=wide(1), strategy="offload"))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda folder, job: {"model_name": str(folder / "nowhere")}, "there is no folder"),
        (lambda folder, job: {"model_name": str(folder)}, "cannot be loaded"),
        (lambda folder, job: {"model": wide(1), "tokenizer": str(folder / "words")}, "tokenizer cannot be loaded"),
        (lambda folder, job: {"model": wide(1), "tokenizer": shuffled()}, "Distillation(teacher=…, tokenizer=…)"),
        (lambda folder, job: {"model": teacher(1, vocabulary=31)}, "31 rows, but the policy's has 32"),
        (lambda folder, job: {"model": teacher(1, width=512)}, "the limit is 300,000"),
        (lambda folder, job: {"model": poisoned()}, "probe token is nan"),
        (lambda folder, job: {"model": with_one_nan()}, "probe token is nan"),
        (lambda folder, job: {"model": job.model}, "shares parameters"),
    ],
    ids=[
        "no folder",
        "no model",
        "no tokenizer",
        "other tokenizer",
        "vocabulary",
        "too large",
        "NaN",
        "one NaN",
        "shares",
    ],
)
@pytest.mark.parametrize("form", ["8 bits", "4 bits", "offload"])
def test_unsuitable_teachers_are_refused_in_every_form(
    tmp_path: Path, form: str, make: Callable[[Path, Any], dict[str, Any]], message: str
) -> None:
    job, teachers = beside(tmp_path, limit_bytes=300_000)
    values = make(tmp_path, job)
    before = len(job.accelerator._models)
    trained = {name: value.clone() for name, value in job.model.state_dict().items()}
    if message.startswith("the limit") and form == "offload":
        teachers.register(config(**values, **KEPT[form]))
        assert teachers.memory_form("big") == "offload", "what waits on disk takes none of the limit"
        return
    with pytest.raises(TeacherRefusedError, match="teacher 'big' is refused") as refused:
        teachers.register(config(**values, **KEPT[form]))
    assert message in str(refused.value)
    assert teachers.active == "small" and teachers.refused.keys() == {"big"}
    assert len(job.accelerator._models) == before, "nothing keeps it in memory"
    assert not list(tmp_path.glob("offloaded/*/index.json")) or form == "offload"
    assert all(torch.equal(value, job.model.state_dict()[name]) for name, value in trained.items())
    with pytest.raises(ConfigError, match="already exists"):
        teachers.register(config(model=wide(1)))


def test_without_bitsandbytes_the_pip_line_is_named_and_a_hybrid_teacher_goes_to_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    _, teachers = beside(tmp_path)
    model = wide(1)
    with pytest.raises(ConfigError, match=r'pip install "oven-controller\[quantized\]"'):
        teachers.register(config(model=model, strategy="quantized"))
    assert type(model.model.layers[0].mlp.up_proj) is torch.nn.Linear, "untouched"
    assert teachers.names == ("small",), "the name is free again"
    monkeypatch.setattr(memory_forms, "free_bytes", lambda device: 0)
    teachers.register(config("other", model=wide(2), strategy="hybrid"))
    assert teachers.memory_form("other") == "offload"


def test_a_hybrid_teacher_is_kept_as_memory_allows_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, teachers = beside(tmp_path, kl_every=0)
    size = sum(parameter.nbytes for parameter in wide(1).parameters())
    wide(1).save_pretrained(tmp_path / "big")
    seen = []
    with caplog.at_level(logging.INFO, "oven.learner"):
        for free in (10**9, size, size * 0.6, 100):
            monkeypatch.setattr(memory_forms, "free_bytes", lambda device, free=free: int(free))
            name = f"with {free:g}"
            teachers.register(config(name, model_name=str(tmp_path / "big"), strategy="hybrid"))
            seen.append(teachers.memory_form(name))
            assert f"teacher {name!r} is stored as {seen[-1]!r}" in caplog.text
    assert seen == ["resident", "8 bits", "4 bits", "offload"]
    with pytest.raises(TeacherRefusedError):
        teachers.register(config("odd", model=poisoned()))
    with pytest.raises(TeacherRefusedError, match="nan"):
        teachers.memory_form("odd")


@given(st.integers(1, 10**12), st.floats(0, 1), st.sampled_from([2, 4]), st.integers(-(10**9), 10**13), st.booleans())
def test_the_form_that_is_chosen_fits_and_a_faster_one_does_not(
    total: int, share: float, width: int, room: int, quantizable: bool
) -> None:
    weights = int(total * share) // width
    size = Footprint(total, weights * width, weights)
    forms = ["resident", "8 bits", "4 bits", "offload"] if quantizable else ["resident", "offload"]
    form = fastest_fitting_form(size, room, quantizable=quantizable)
    assert form in forms
    assert form == "offload" or size.bytes_as(form) <= room
    assert all(size.bytes_as(faster) > room for faster in forms[: forms.index(form)])  # type: ignore[arg-type]
    held = [size.bytes_as(form) for form in forms]  # type: ignore[arg-type]
    assert held == sorted(held, reverse=True)
