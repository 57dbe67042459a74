"""`bench teachers`: what each way of keeping a teacher costs: memory idle and active, time per batch, error, and swap.

A Llama of at least 100 MB in float32 is made on the spot, with random weights: its log-probabilities are flatter than a
trained model's, and their errors are those of the numbers alone. Each form is measured in its own process, beside the
same GRPOTrainer with a policy of a few thousand parameters and, as a control, the resident model of the same run. Bytes
are those of parameters, buffers and quantization states; RSS is the process's, and includes what torch keeps of freed
memory. Times are medians of batches that alternate with the control's; the swap is the longest of `swap` and what the
first batch after it took more than the median.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Annotated, Any

from typer import Option

from oven_bench.study import Report, Study, in_new_process

FORMS: dict[str, dict[str, Any]] = {
    "resident": {},
    "8 bits": {"strategy": "quantized", "bits": 8},
    "4 bits": {"strategy": "quantized", "bits": 4},
    "offload": {"strategy": "offload"},
}
MEMORY = {"8 bits": ("active", 0.35), "4 bits": ("active", 0.25), "offload": ("idle", 0.05)}
"""Form → which of its bytes are bounded, and by what share of the resident model's."""
RESIDENT_S, PER_100_MB_S = 0.2, 2.0
"""The longest that a swap may stall a step: to a resident teacher, and to another for each 100 MB."""
VOCABULARY, ROWS, TOKENS = 2048, 8, 64


def made(megabytes: float) -> Any:
    """The smallest model of whole layers that has so many MB in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM, set_seed

    hidden = 768
    per_layer = 4 * (4 * hidden * hidden + 3 * hidden * 3 * hidden) / 1e6
    layers = max(1, round(-(-(megabytes - 8 * VOCABULARY * hidden / 1e6) // per_layer)))
    set_seed(0)
    return LlamaForCausalLM(  # type: ignore[no-untyped-call]
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=hidden, intermediate_size=3 * hidden, num_hidden_layers=layers,
            num_attention_heads=12, num_key_value_heads=12, max_position_embeddings=256,
        )
    ).eval()  # fmt: skip


def measure(form: str, megabytes: float, batches: int) -> dict[str, float]:
    """One form, in this process."""
    os.environ.update({"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"})
    with tempfile.TemporaryDirectory() as folder:
        return _measured(form, megabytes, batches, Path(folder))


def _measured(form: str, megabytes: float, batches: int, folder: Path) -> dict[str, float]:
    import psutil
    import torch

    from oven_learner.teachers import TeacherConfig, Teachers
    from oven_learner.teachers.memory import own_bytes

    process = psutil.Process()
    trainer = _trainer(folder)
    device = trainer.accelerator.device
    teachers = Teachers(trainer, own="none", offload_folder=folder)
    teachers.register(TeacherConfig(name="control", model=made(megabytes)))
    teachers.swap("control")
    control = trainer.ref_model
    whole = own_bytes(control)
    ids = torch.randint(0, VOCABULARY, (ROWS, TOKENS), device=device)  # (B, T)

    def score() -> Any:
        with torch.no_grad():
            found, _, _ = trainer._get_per_token_logps_and_entropies(
                trainer.ref_model, ids, torch.ones_like(ids), TOKENS - 1
            )
        return found.float()  # (B, T − 1)

    exact = score()
    settled = process.memory_info().rss
    began = time.perf_counter()
    teachers.register(TeacherConfig(name="measured", model=made(megabytes), **FORMS[form]))
    registered_s = time.perf_counter() - began
    teacher = teachers.idle["measured"]
    idle, idle_rss = own_bytes(teacher), process.memory_info().rss - settled

    swaps: list[float] = []
    stalls: list[float] = []
    times: dict[str, list[float]] = {"control": [], "measured": []}
    for _ in range(batches):
        for name, taken in times.items():
            swap_s = _timed(partial(teachers.swap, name), device)
            first_s = _timed(score, device)
            taken.append(_timed(score, device))
            if name == "measured":
                swaps.append(swap_s)
                stalls.append(swap_s + max(0.0, first_s - taken[-1]))
    teachers.swap("measured")
    errors = (score() - exact).abs()
    active = most_bytes(teacher, score)
    ratio = median(times["measured"]) / median(times["control"])
    return {
        "float32_bytes": whole,
        "idle_bytes": idle,
        "active_bytes": active,
        "idle": round(idle / whole, 4),
        "active": round(active / whole, 4),
        "idle_rss_bytes": idle_rss,
        "register_s": round(registered_s, 2),
        "batch_ms": round(1000 * median(times["measured"]), 1),
        "batch_resident_ms": round(1000 * median(times["control"]), 1),
        "batch_ratio": round(ratio, 3),
        "error_mean": float(f"{errors.mean().item():.3g}"),
        "error_max": float(f"{errors.max().item():.3g}"),
        "swap_s": round(median(swaps), 5),
        "stall_s": round(median(stalls), 4),
        "stall_max_s": round(max(stalls), 4),
    }


def most_bytes(model: Any, act: Callable[[], object]) -> int:
    """The most that the model holds while it is run: whenever a hook has brought a layer's weights, and afterwards."""
    from oven_learner.teachers.memory import own_bytes

    seen: list[int] = []
    for module in model.modules():
        if (hook := getattr(module, "_hf_hook", None)) is not None:

            def counted(*args: Any, brought: Callable[..., Any] = hook.pre_forward, **kwargs: Any) -> Any:
                result = brought(*args, **kwargs)
                seen.append(own_bytes(model))
                return result

            hook.pre_forward = counted
    act()
    return max([*seen, own_bytes(model)])


def _trainer(folder: Path) -> Any:
    """TRL's GRPOTrainer with a policy that takes next to no memory."""
    from datasets import Dataset
    from trl.trainer.grpo_config import GRPOConfig
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer(
        model=tiny_policy(),
        reward_funcs=[lambda completions, **_: [0.0] * len(completions)],
        args=GRPOConfig(
            output_dir=str(folder),
            per_device_train_batch_size=8,
            report_to=[],
            bf16=False,
            gradient_checkpointing=False,
        ),
        train_dataset=Dataset.from_list([{"prompt": "a"}] * 8),
        processing_class=word_tokenizer(),
    )


def tiny_policy() -> Any:
    """A Llama of a few thousand parameters beside its embeddings, with the vocabulary of `made`."""
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY, hidden_size=8, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        )
    )  # fmt: skip


def word_tokenizer() -> Any:
    """Of four words; the other tokens of the vocabulary have none."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    words = {"<pad>": 0, "<s>": 1, "</s>": 2, "a": 3}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer(WordLevel(words, unk_token="<pad>")), pad_token="<pad>", eos_token="</s>"
    )


def _timed(act: Callable[[], object], device: Any) -> float:
    import torch

    began = time.perf_counter()
    act()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def verdicts(found: dict[str, dict[str, float]]) -> list[str]:
    """What lies above its bar, a sentence each."""
    wrong = []
    for form, one in found.items():
        which, share = MEMORY.get(form, ("active", 1.01))
        if one[which] > share:
            wrong.append(f"{form}: {which} it holds {one[which]:.3f} × the resident model's bytes, bar {share}")
        bar = RESIDENT_S if form == "resident" else PER_100_MB_S * one["float32_bytes"] / 1e8
        if one["stall_s"] >= bar:
            wrong.append(f"{form}: a swap stalls {one['stall_s']:.2f} s, bar {bar:.2f}")
    return wrong


def bench(
    megabytes: Annotated[float, Option(min=100.0, help="Size of the model in float32, in MB.")] = 110.0,
    batches: Annotated[int, Option(min=1, help="Batches of each form, each after a swap.")] = 5,
) -> Report:
    forms = {form: in_new_process(measure, form, megabytes, batches) for form in FORMS}
    wrong = verdicts(forms)
    rows = [{"form": form, **figures} for form, figures in forms.items()]
    return Report({"forms": forms, "batch": [ROWS, TOKENS], "above_bar": wrong}, rows, wrong)


STUDY = Study(
    "teachers",
    bench,
    "--json",
    "Exit code 1: a bar on memory or on the stall of a swap is missed.",
)
