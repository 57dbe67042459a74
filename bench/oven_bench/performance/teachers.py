"""`bench teachers`: what does each way of keeping a teacher cost in memory, time per batch, error and swap time?

The teacher is a Llama of at least 100 MB in float32 with random weights. Its log-probabilities are flatter than those
of a trained model, and their errors are numerical errors only. Each form is measured in its own process, with a
GRPOTrainer whose policy has a few thousand parameters, and with the resident model as a control. Bytes are those of
parameters, buffers and quantization states. RSS is the process's, and includes freed memory that torch keeps. Times are
medians of batches that alternate with the control's. A swap's stall is the time of `swap` plus the extra time of the
next batch.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import click

from oven_bench.performance.step_arm import Dtype
from oven_bench.study import Report, Study
from oven_bench.worker_processes import in_new_process

FORMS: dict[str, dict[str, Any]] = {
    "resident": {},
    "8 bits": {"strategy": "quantized", "bits": 8},
    "4 bits": {"strategy": "quantized", "bits": 4},
    "offload": {"strategy": "offload"},
}
MEMORY = {"8 bits": ("active", 0.35), "4 bits": ("active", 0.25), "offload": ("idle", 0.05)}
"""Form → which of its bytes are bounded, and the bound as a share of the resident model's."""
RESIDENT_S, PER_100_MB_S = 0.2, 2.0
"""Longest acceptable stall of a swap: to a resident teacher, and to another one per 100 MB."""
VOCABULARY, ROWS, TOKENS = 2048, 8, 64


def teacher_model(megabytes: float, device: Any = "cpu", dtype: Dtype = "f32") -> Any:
    """The smallest model of whole layers with at least this size in float32. Its weights are drawn on the device."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    hidden = 768
    per_layer = 4 * (4 * hidden * hidden + 3 * hidden * 3 * hidden) / 1e6
    layers = max(1, round(-(-(megabytes - 8 * VOCABULARY * hidden / 1e6) // per_layer)))
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
        num_attention_heads=12, num_key_value_heads=12, max_position_embeddings=256,
    )  # fmt: skip
    with torch.device(device):
        model: Any = LlamaForCausalLM(config)
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).eval()


def measure(form: str, megabytes: float, batches: int, dtype: Dtype = "f32") -> dict[str, float]:
    """Measure one form of a teacher, on the card if there is one."""
    os.environ.update({"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"})
    with tempfile.TemporaryDirectory() as folder:
        return _measured(form, megabytes, batches, dtype, Path(folder))


def _measured(form: str, megabytes: float, batches: int, dtype: Dtype, folder: Path) -> dict[str, float]:
    import psutil
    import torch

    from oven_learner.teachers import TeacherConfig, Teachers
    from oven_learner.teachers.memory_forms import memory_bytes

    process = psutil.Process()
    trainer = tiny_trainer(folder)
    device = trainer.accelerator.device
    teachers = Teachers(trainer, initial_name="none", offload_folder=folder)
    teachers.register(TeacherConfig(name="control", model=teacher_model(megabytes, device, dtype)))
    teachers.swap("control")
    whole = memory_bytes(trainer.ref_model)
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), device=device)  # (B, T)

    def score() -> Any:
        with torch.no_grad():
            log_probs, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model, ids, torch.ones_like(ids), TOKENS - 1
            )
        return log_probs.float()  # (B, T − 1)

    exact = score()
    settled = process.memory_info().rss
    teachers.register(TeacherConfig(name="measured", model=teacher_model(megabytes, device, dtype), **FORMS[form]))
    teacher = teachers.idle_models["measured"]
    idle, idle_rss = memory_bytes(teacher), process.memory_info().rss - settled

    stalls: list[float] = []
    times: dict[str, list[float]] = {"control": [], "measured": []}
    for _ in range(batches):
        for name, batch_times in times.items():
            swap_s = _timed(partial(teachers.swap, name), device)
            first_s = _timed(score, device)
            batch_times.append(_timed(score, device))
            if name == "measured":
                stalls.append(swap_s + max(0.0, first_s - batch_times[-1]))
    teachers.swap("measured")
    errors = (score() - exact).abs()
    active = most_bytes(teacher, score)
    return {
        "resident_bytes": whole,
        "idle": round(idle / whole, 4),
        "active": round(active / whole, 4),
        "idle_rss_bytes": idle_rss,
        "batch_ms": round(1000 * median(times["measured"]), 1),
        "batch_resident_ms": round(1000 * median(times["control"]), 1),
        "batch_ratio": round(median(times["measured"]) / median(times["control"]), 3),
        "error_mean": float(f"{errors.mean().item():.3g}"),
        "error_max": float(f"{errors.max().item():.3g}"),
        "stall_s": round(median(stalls), 4),
        "stall_max_s": round(max(stalls), 4),
    }


def most_bytes(model: Any, act: Callable[[], object]) -> int:
    """The most bytes that the model holds while it runs: after each load of a layer's weights and at the end."""
    from oven_learner.teachers.memory_forms import memory_bytes

    sizes: list[int] = []
    for module in model.modules():
        if (hook := getattr(module, "_hf_hook", None)) is not None:

            def counted(*args: Any, pre_forward: Callable[..., Any] = hook.pre_forward, **kwargs: Any) -> Any:
                result = pre_forward(*args, **kwargs)
                sizes.append(memory_bytes(model))
                return result

            hook.pre_forward = counted
    act()
    return max([*sizes, memory_bytes(model)])


def tiny_trainer(folder: Path) -> Any:
    """TRL's GRPOTrainer with a policy of a few thousand parameters and a tokenizer of four words."""
    from datasets import Dataset
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    policy = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip
    words = Tokenizer(WordLevel({"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}, unk_token="<pad>"))
    return GRPOTrainer(
        model=policy,
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=GRPOConfig(
            output_dir=str(folder), per_device_train_batch_size=8, report_to=[], bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
            tokenizer_object=words, pad_token="<pad>", eos_token="</s>"
        ),
    )  # fmt: skip


def _timed(act: Callable[[], object], device: Any) -> float:
    import torch

    start = time.perf_counter()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def missed_bars(forms: dict[str, dict[str, float]]) -> list[str]:
    """A sentence for each figure above its bar."""
    wrong = []
    for form, figures in forms.items():
        which, share = MEMORY.get(form, ("active", 1.01))
        if figures[which] > share:
            held = f"{figures[which]:.3f} × the resident model's bytes"
            wrong.append(f"{form}: when {which}, it holds {held}, bar {share}")
        bar = RESIDENT_S if form == "resident" else PER_100_MB_S * figures["resident_bytes"] / 1e8
        if figures["stall_s"] >= bar:
            wrong.append(f"{form}: a swap stalls {figures['stall_s']:.2f} s, bar {bar:.2f}")
    return wrong


@click.option("--megabytes", type=click.FloatRange(min=100), default=110.0, help="Size of the model in float32, in MB.")
@click.option("--batches", type=click.IntRange(min=1), default=5, help="Batches of each form, each after a swap.")
def bench(megabytes: float, batches: int) -> Report:
    forms = {form: in_new_process(measure, form, megabytes, batches) for form in FORMS}
    wrong = missed_bars(forms)
    rows = [{"form": form, **figures} for form, figures in forms.items()]
    return Report({"forms": rows, "batch": [ROWS, TOKENS], "above_bar": wrong}, rows, wrong)


STUDY = Study("teachers", bench, "--json", "Exit code 1: a bar on memory or on the stall of a swap is missed.")
