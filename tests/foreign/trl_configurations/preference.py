"""Trainers on preferences: TRL's DPO and KTO, and its experimental CPO, ORPO, TPO and DPO with a moving reference."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from datasets import Dataset
from transformers import Trainer
from trl.trainer.dpo_config import DPOConfig
from trl.trainer.dpo_trainer import DPOTrainer
from trl.trainer.kto_config import KTOConfig
from trl.trainer.kto_trainer import KTOTrainer

from oven_bench.configurations.configuration import resumed

from .tiny import (
    COMMON,
    EVALUATED,
    gpt2,
    labelled,
    llama,
    lora,
    mixtral,
    named,
    preferences,
    preferred_chats,
    saved,
    tokenizer,
)

SAVED = {"save_strategy": "steps", "save_steps": 2, "max_steps": 4}
SYNCED = {"sync_ref_model": True, "ref_model_sync_steps": 2}
DPO_LOSSES = (
    "sigmoid", "hinge", "ipo", "exo_pair", "nca_pair", "robust", "bco_pair", "sppo_hard", "aot", "aot_unpaired",
    "apo_zero", "apo_down", "discopop", "sft", "sigmoid_norm",
)  # fmt: skip
SMOOTHED = {"exo_pair": 1e-3, "robust": 0.1}
"""Losses that need a label smoothing."""


def dpo(
    folder: Path, *, model: Any = llama, data: Any = preferences, stream: bool = False, peft: Any = None,
    reference: Any = None, cls: Any = DPOTrainer, **settings: Any,
) -> Trainer:  # fmt: skip
    rows = data().to_iterable_dataset() if stream else data()
    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    made: Trainer = cls(
        model=saved(folder, model()),
        ref_model=reference() if reference else None,
        args=DPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=rows,
        eval_dataset=data().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )
    return made


def moving_reference(folder: Path, **settings: Any) -> Trainer:
    """TRL's experimental DPO, whose reference follows an average of the policy."""
    from trl.experimental.bema_for_ref_model.callback import BEMACallback
    from trl.experimental.bema_for_ref_model.dpo_trainer import DPOTrainer as Moving

    made = dpo(folder, cls=Moving, **settings)
    made.add_callback(BEMACallback(update_ref_model=True, update_freq=1, ref_model_update_freq=1, update_after=0))
    return made


def kto(folder: Path, *, model: Any = llama, data: Any = labelled, peft: Any = None, **settings: Any) -> Trainer:
    defaults = {"per_device_train_batch_size": 4, "max_length": 32}
    return KTOTrainer(
        model=saved(folder, model()),
        args=KTOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=data(),
        eval_dataset=data().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def cpo(folder: Path, *, model: Any = llama, peft: Any = None, **settings: Any) -> Trainer:
    from trl.experimental.cpo.cpo_config import CPOConfig
    from trl.experimental.cpo.cpo_trainer import CPOTrainer

    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    return CPOTrainer(
        model=model(),
        args=CPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=preferences(),
        eval_dataset=preferences().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def orpo(folder: Path, *, model: Any = llama, peft: Any = None, **settings: Any) -> Trainer:
    from trl.experimental.orpo.orpo_config import ORPOConfig
    from trl.experimental.orpo.orpo_trainer import ORPOTrainer

    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    return ORPOTrainer(
        model=model(),
        args=ORPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=preferences(),
        eval_dataset=preferences().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


def triples() -> Dataset:
    """Preferences with a reference answer beside them."""
    return Dataset.from_list([{**row, "reference": row["chosen"] + "!"} for row in preferences()])


def tpo(folder: Path, *, model: Any = llama, peft: Any = None, **settings: Any) -> Trainer:
    from trl.experimental.tpo.tpo_config import TPOConfig
    from trl.experimental.tpo.tpo_trainer import TPOTrainer

    defaults = {"per_device_train_batch_size": 2, "max_length": 32}
    return TPOTrainer(
        model=model(),
        args=TPOConfig(output_dir=str(folder), **(COMMON | defaults | settings)),
        train_dataset=triples(),
        eval_dataset=triples().select(range(4)),
        processing_class=tokenizer(),
        peft_config=peft() if peft else None,
    )


case, moving = named("dpo", dpo), named("dpo", moving_reference)
unpaired = named("kto", kto)
contrastive, odds, triple = named("cpo", cpo), named("orpo", orpo), named("tpo", tpo)
PREFERENCE = (
    *(case(f"loss_{loss}", loss_type=[loss], label_smoothing=SMOOTHED.get(loss, 0.0)) for loss in DPO_LOSSES),
    case("losses_weighted", loss_type=["sigmoid", "bco_pair", "sft"], loss_weights=[0.8, 0.2, 1.0]),
    *(
        case(f"divergence_{name}", f_divergence_type=name)
        for name in ("forward_kl", "js_divergence", "alpha_divergence")
    ),
    case("length_desensitized", ld_alpha=0.5),
    case("weighted_pairs", use_weighting=True),
    case("precomputed_reference", precompute_ref_log_probs=True),
    case("precomputed_reference_evaluation", precompute_ref_log_probs=True, **EVALUATED),
    case("synced_reference", **SYNCED),
    case("own_reference", reference=lambda: llama(num_hidden_layers=1)),
    case("high_beta", beta=0.5),
    case("conversational", data=preferred_chats),
    case("stream", stream=True),
    case("padding_free", padding_free=True),
    case("truncation", max_length=14),
    case("dropout", model=gpt2, disable_dropout=False),
    case("router_loss", model=mixtral),
    case("accumulation", gradient_accumulation_steps=2),
    case("gradient_checkpointing", gradient_checkpointing=True),
    case("evaluation", **EVALUATED),
    case("liger", use_liger_kernel=True),
    case("lora", peft=lora),
    case("lora_precomputed_reference", peft=lora, precompute_ref_log_probs=True),
    case("resume", resumed, **SAVED),
    moving("moving_reference"),
    unpaired("plain"),
    unpaired("loss_apo_zero_unpaired", loss_type="apo_zero_unpaired"),
    unpaired("weights", desirable_weight=0.5, undesirable_weight=1.5),
    unpaired("precomputed_reference", precompute_ref_log_probs=True),
    unpaired("synced_reference", **SYNCED),
    unpaired("paired_data", data=preferences),
    unpaired("accumulation", gradient_accumulation_steps=2),
    unpaired("evaluation", **EVALUATED),
    unpaired("lora", peft=lora),
    unpaired("resume", resumed, **SAVED),
    *(contrastive(f"loss_{loss}", loss_type=loss) for loss in ("sigmoid", "hinge", "ipo", "simpo", "alphapo")),
    contrastive("evaluation", **EVALUATED),
    contrastive("lora", peft=lora),
    odds("plain"),
    odds("accumulation", gradient_accumulation_steps=2),
    odds("evaluation", **EVALUATED),
    *(triple(f"loss_{loss}", loss_type=loss) for loss in ("sigmoid", "hinge", "ipo", "tpo-l")),
    triple("evaluation", **EVALUATED),
)
