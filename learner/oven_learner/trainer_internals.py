"""The private names of trainers that this package uses, and what is lost in a version without them.

Only this module reads or replaces private names of TRL, transformers and accelerate. Subclasses that override such
names (`losses/`) check them with `require`. Another version may lack a name. So `attach` probes the trainer, and logs
one sentence for each feature that is switched off. An argument of `attach` that cannot work raises ConfigError instead.

This module imports neither TRL nor transformers, because it is also used next to trainers of other libraries.
"""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from importlib import import_module, metadata
from types import ModuleType
from typing import Any, Final

import torch
from torch.utils._pytree import tree_map_only

from oven_core.errors import ConfigError

OLDEST_VERSIONS: Final = {"torch": "2.6", "transformers": "4.56", "accelerate": "1.0", "trl": "0.24"}
"""Package → the oldest version that `attach` supports. TRL may be absent."""

GENERATE: Final = "_generate"
GENERATE_BATCH: Final = "_generate_and_score_completions"
CALCULATE_REWARDS: Final = "_calculate_rewards"
COMPUTE_LOSS: Final = "_compute_loss"
GET_SAMPLER: Final = "_get_train_sampler"
GET_BATCHES: Final = "get_batch_samples"
PLAN_EPOCHS: Final = "set_initial_training_values"
"""Methods that are wrapped with `wrap`. The last two are public, but undocumented."""

ONLINE_TRAINERS: Final = ("GRPOTrainer", "RLOOTrainer")
SAMPLING_TRAINERS: Final = (*ONLINE_TRAINERS, "DistillationTrainer")
COUNTABLE_TRAINERS: Final = (*ONLINE_TRAINERS, "SDPOTrainer")
"""Trainers whose `_calculate_rewards` returns one row per completion and one column per function, of all ranks. Another
trainer's method of that name may return anything: A2PO's returns one number per completion."""
PENDING_ATTRIBUTES: Final = ("_pending_metrics", "_pending_extra_logs")
"""Attributes in which TRL stores values that reward functions log, until the rewards arrive."""


@dataclass(frozen=True)
class Feature:
    """A feature of an attached trainer that needs private names."""

    consequence: str
    """What happens without the names, as a clause."""
    names: tuple[str, ...]
    """Attributes of the trainer. A name with parameters stands for a method that needs no others."""
    versions: str
    """The versions that have the names."""
    trainers: tuple[str, ...] = ()
    """Names of the trainer classes that have the feature, or () for all trainers."""

    def applies_to(self, trainer: Any) -> bool:
        """Whether the trainer would have the feature in a known version."""
        return not self.trainers or any(is_a(trainer, name) for name in self.trainers)

    def missing_names(self, trainer: Any) -> list[str]:
        """Return the names that the trainer lacks."""
        return [name for name in self.names if not _has_name(trainer, name)]

    def works_on(self, trainer: Any) -> bool:
        """Whether the trainer has the feature."""
        return self.applies_to(trainer) and not self.missing_names(trainer)

    def explain(self, trainer: Any) -> str:
        """Return the sentence about the consequence, the missing names, and the versions that have them."""
        missing = " and no ".join(f"`{name}`" for name in self.missing_names(trainer))
        return f"{self.consequence}, because {self._describe_library(trainer)} has no {missing}; use {self.versions}"

    def _describe_library(self, trainer: Any) -> str:
        if self.versions.startswith("transformers"):
            return f"transformers {_version('transformers')}"
        trl_class = next((cls for cls in type(trainer).__mro__ if cls.__module__.startswith("trl.")), type(trainer))
        return f"the {trl_class.__name__} of TRL {_version('trl') or '(not installed)'}"

    def require(self, trainer: Any) -> None:
        """Raise ConfigError with the sentence unless the trainer has the names."""
        if self.missing_names(trainer):
            raise ConfigError(self.explain(trainer))


TRL: Final = "TRL 0.24 to 1.16"
TRL_1: Final = "TRL 1.0 to 1.16"

OWN_METRICS: Final = Feature(
    "the trainer's own metrics (such as reward and entropy) are not published", ("_metrics",), TRL,
    (*COUNTABLE_TRAINERS, "SFTTrainer", "DPOTrainer", "DistillationTrainer"),
)  # fmt: skip
COMPLETION_LOG: Final = Feature("completions are not shown", ("_logs", GENERATE_BATCH), TRL, ONLINE_TRAINERS)
REWARD_COUNTS: Final = Feature(
    "missing and infinite rewards are not counted", (CALCULATE_REWARDS,), TRL, COUNTABLE_TRAINERS
)
GENERATION_TIME: Final = Feature(
    "the times of generation and rewards are counted as training time", (GENERATE, CALCULATE_REWARDS), TRL,
    ONLINE_TRAINERS,
)  # fmt: skip
GREEDY_REWARDS: Final = Feature(
    "`run.best` is available only with `attach(evaluate=…)`", (f"{GENERATE}(prompts)", CALCULATE_REWARDS), TRL_1,
    ONLINE_TRAINERS,
)  # fmt: skip
BUFFER: Final = Feature(
    "completions that are buffered when a run is rolled back, gets another teacher or stops are not generated again",
    ("_step", "_buffered_inputs"), TRL, SAMPLING_TRAINERS,
)  # fmt: skip
LOGGED_LOSS: Final = Feature(
    "after a rollback, the first loss in the trainer's own log includes the discarded steps",
    ("_tr_loss", "_globalstep_last_logged"), "transformers 5.3 or newer",
)  # fmt: skip
EPOCHS: Final = Feature(
    "training ends after the planned epochs, even if a rollback has discarded steps", (PLAN_EPOCHS,),
    "transformers 4.56 to 5.24",
)  # fmt: skip
IDLE_TEACHER_KL: Final = Feature(
    "the distance from inactive teachers is not measured", (COMPUTE_LOSS, "_get_per_token_logps_and_entropies"), TRL,
    ("GRPOTrainer",),
)  # fmt: skip
ALWAYS_USED: Final = (
    OWN_METRICS, COMPLETION_LOG, REWARD_COUNTS, GENERATION_TIME, BUFFER, LOGGED_LOSS, EPOCHS,
)  # fmt: skip
"""Features of every attached trainer."""

MIXTURE: Final = Feature(
    "attach(mixture=…) cannot set the order of the data", (GET_SAMPLER, GET_BATCHES), "transformers 4.56 to 5.24"
)
COMMITTEE: Final = Feature(
    "attach(committee=…) cannot exclude unscored groups from the loss", (GENERATE_BATCH, COMPUTE_LOSS, "_metrics"), TRL
)
GENERATION_AHEAD: Final = Feature(
    "committee.ahead: 1 cannot generate ahead",
    (GENERATE_BATCH, GET_BATCHES, "_buffered_inputs", "_metrics", *PENDING_ATTRIBUTES), TRL_1,
)  # fmt: skip
CHANNELS: Final = Feature(
    "the loss channels have no effect", (GENERATE_BATCH, CALCULATE_REWARDS, COMPUTE_LOSS, "_metrics"), TRL
)
CHANNEL_STATE: Final = Feature(
    "the state of loss channels is not saved", ("_save_optimizer_and_scheduler", "_load_optimizer_and_scheduler"),
    "transformers 4.56 to 5.24",
)  # fmt: skip


def missing_features(trainer: Any, *, has_teachers: bool) -> list[str]:
    """Return a sentence for each package that is too old, and for each feature that this trainer lacks."""
    sentences = [
        f"{package} {version} is older than {oldest}, the oldest supported version; upgrade it if training fails"
        for package, oldest in OLDEST_VERSIONS.items()
        if (version := _version(package)) and _release(version) < _release(oldest)
    ]
    features = list(ALWAYS_USED)
    if trainer.args.eval_strategy != "no":
        features.append(GREEDY_REWARDS)
    if has_teachers:
        features.append(IDLE_TEACHER_KL)
    if hasattr(trainer, "reward_funcs") and not any(is_a(trainer, name) for name in COUNTABLE_TRAINERS):
        sentences.append(  # for example the classes that Unsloth puts in the place of TRL's
            f"completions are not shown, missing rewards are not counted, and β and ε are not knobs, because "
            f"{type(trainer).__name__} is none of {', '.join(COUNTABLE_TRAINERS)}"
        )
    missing = [feature for feature in features if feature.applies_to(trainer) and feature.missing_names(trainer)]
    return sentences + [feature.explain(trainer) for feature in missing]


def is_a(trainer: Any, name: str) -> bool:
    """Whether the trainer is an instance of the named class. Names avoid importing TRL for a plain Trainer."""
    return any(cls.__name__ == name for cls in type(trainer).__mro__)


def wrap(trainer: Any, name: str, create_wrapper: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
    """Replace a method by `create_wrapper(method)`."""
    setattr(trainer, name, create_wrapper(getattr(trainer, name)))


def all_metrics(trainer: Any) -> dict[str, Any]:
    """Return the trainer's own metrics since its last log: "train" or "eval" → name → values."""
    metrics: dict[str, Any] = trainer._metrics
    return metrics


def metric_lists(trainer: Any) -> dict[str, list[Any]]:
    """Return the trainer's own training metrics: name → values since its last log."""
    metrics = getattr(trainer, "_metrics", None) or _stored_metrics(trainer) or {}
    training_metrics: dict[str, list[Any]] = metrics.get("train", {})
    return training_metrics


@contextmanager
def preserve_metrics(trainer: Any) -> Iterator[None]:
    """Restore the trainer's own metrics at the end."""
    metrics = deepcopy(getattr(trainer, "_metrics", None))
    try:
        yield
    finally:
        if metrics is not None:
            trainer._metrics = metrics


def metric_stores(trainer: Any) -> list[dict[str, list[Any]]]:
    """Return the dicts in which TRL stores its own training metrics, and those that reward functions log."""
    return [trainer._metrics["train"], *(getattr(trainer, name) for name in PENDING_ATTRIBUTES)]


def set_metric_stores(trainer: Any, stores: Sequence[dict[str, list[Any]]]) -> None:
    """Replace the dicts that `metric_stores` returns."""
    trainer._metrics["train"], *pending = stores
    for name, store in zip(PENDING_ATTRIBUTES, pending, strict=True):
        setattr(trainer, name, store)


def completion_log(trainer: Any) -> Any:
    """Return TRL's record of its newest generation: prompts, completions, rewards and advantages of all ranks."""
    return trainer._logs


def generate(trainer: Any, prompts: list[Any]) -> tuple[Any, Any]:
    """Return the token ids of one completion per prompt, and the completions as texts or conversations."""
    generated = trainer._generate(prompts)
    # (prompt ids, completion ids, …, completions, …): RLOO returns three values, GRPO eight
    return generated[1], generated[3 if len(generated) > 3 else 2]


def calculate_rewards(trainer: Any, rows: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
    """Return the reward of each completion of all ranks by each function, (ranks · rows, functions)."""
    rewards: torch.Tensor = trainer._calculate_rewards(rows, prompts, completions, ids)
    return rewards


def has_log_probabilities(trainer: Any) -> bool:
    """Whether `log_probabilities` works, as it does on a GRPOTrainer."""
    return hasattr(trainer, "_get_per_token_logps_and_entropies")


def log_probabilities(
    trainer: Any, model: Any, ids: torch.Tensor, attention: torch.Tensor, length: int
) -> torch.Tensor:
    """Return the log-probabilities of the last `length` tokens, (B, length), computed as in the trainer's loss."""
    log_probs: torch.Tensor = trainer._get_per_token_logps_and_entropies(model, ids, attention, length)[0]
    return log_probs


def group_size(trainer: Any) -> int:
    """Return the number of completions per prompt, in training or in evaluation. TRL 0.24 has one number for both."""
    size = trainer.num_generations if trainer.model.training else getattr(trainer, "num_generations_eval", None)
    return int(size or trainer.num_generations)


def buffered_batches(trainer: Any) -> Sequence[Any]:
    """Return the batches of completions that TRL has generated and not dropped."""
    return getattr(trainer, "_buffered_inputs", None) or ()


def drop_buffer(trainer: Any) -> None:
    """Make TRL generate new completions for its next step, if it buffers completions."""
    if hasattr(trainer, "_buffered_inputs"):
        trainer._buffered_inputs = None


def has_dropped_buffer(trainer: Any) -> bool:
    """Whether TRL generates new completions for its next step."""
    return trainer._buffered_inputs is None


def buffer_state(trainer: Any) -> dict[str, Any]:
    """Return TRL's position in its buffer, and the buffer if a resumed run needs it, or {} without a buffer."""
    if not (hasattr(trainer, "_buffered_inputs") and hasattr(trainer, "_step")):
        return {}
    batches = getattr(trainer.args, "steps_per_generation", None) or trainer.args.gradient_accumulation_steps
    is_in_use = trainer._step % (batches * getattr(trainer, "num_iterations", 1)) != 0
    return {"generated": trainer._step, "buffer": trainer._buffered_inputs if is_in_use else None}


def restore_buffer(trainer: Any, state: dict[str, Any]) -> None:
    """Restore the result of `buffer_state`."""
    if "generated" in state:
        trainer._step = state["generated"]
        to_device = partial(torch.Tensor.to, device=trainer.args.device)
        trainer._buffered_inputs = tree_map_only(torch.Tensor, to_device, state["buffer"])


def reset_logged_loss(trainer: Any, step: int) -> None:
    """Make the trainer's next log line begin at `step`. The line divides the loss since the last line by the number of
    steps since then, so both are reset."""
    if hasattr(trainer, "_globalstep_last_logged"):
        trainer._globalstep_last_logged = step
    if isinstance(getattr(trainer, "_tr_loss", None), torch.Tensor):
        trainer._tr_loss.zero_()


def reload_vllm_weights(trainer: Any) -> None:
    """Make vLLM load the weights again before the next generation, if the trainer uses it."""
    if hasattr(trainer, "_last_loaded_step"):
        trainer._last_loaded_step = -1


def dpo_losses(trainer: Any) -> set[str]:
    """Return the names of a DPOTrainer's losses, which TRL 0.24 stores under another name."""
    return set(trainer.loss_types if hasattr(trainer, "loss_types") else trainer.loss_type)


def has_precomputed_reference(trainer: Any) -> bool:
    """Whether a DPOTrainer computes the reference's log-probabilities before training."""
    names = ("precompute_ref_logps", "precompute_ref_log_probs")  # the second one in TRL 0.24
    return any(bool(getattr(trainer, name, False)) for name in names)


def fuse_head(trainer: Any, teacher: Any) -> None:
    """Prepare a teacher for a trainer that reads its log-probabilities from a fused output head, as TRL does from 1.15
    on. Otherwise do nothing."""
    from trl.trainer import utils

    add_head = getattr(utils, "add_fused_lm_head", None)
    if add_head is not None:
        add_head(teacher, temperature=trainer.temperature, cast_lm_head_to_fp32=trainer.args.cast_lm_head_to_fp32)


def environment_tools(trainer: Any) -> dict[str, Any]:
    """Return the tools of a GRPOTrainer with environments, by the environment's name."""
    tools: dict[str, Any] = trainer._env_tools
    return tools


def tools_of_rows(trainer: Any, row_count: int) -> list[Sequence[Any]]:
    """Return the tools of each row of a GRPOTrainer's newest batch. TRL before 1.0 has no tools."""
    if getattr(trainer, "environment_factories", None) is not None:
        return [trainer._env_tools[name] for name in trainer._batch_environments]
    return [getattr(trainer, "tools", None) or []] * row_count


def set_overflow(optimizer: Any, flag: bool) -> None:
    """Tell accelerate's optimizer whether its last step was skipped. The trainer then also skips the scheduler."""
    optimizer._is_overflow = flag


def forget_model(accelerator: Any, model: Any) -> None:
    """Remove a prepared model from accelerate, which would otherwise keep it in memory."""
    accelerator._models[:] = [prepared for prepared in accelerator._models if prepared is not model]


def forget_loader(accelerator: Any, loader: Any) -> None:
    """Remove a data loader from accelerate, which would otherwise save its state in checkpoints."""
    loaders = getattr(accelerator, "_dataloaders", [])
    loaders[:] = [other_loader for other_loader in loaders if other_loader is not loader]


def offload_hook(module: Any) -> Any:
    """Return the hook that loads an offloaded module's weights before its forward pass."""
    return module._hf_hook


def sdpo_losses() -> ModuleType:
    """Return TRL's module with the losses of self-distillation. Raises ConfigError if this TRL has none."""
    return _experimental_module("channel.sdpo", "sdpo.loss_utils", "compute_topk_self_distillation_loss")


def gold_trainer() -> ModuleType:
    """Return TRL's module with ULDLoss, which compares two tokenizers. Raises ConfigError if this TRL has none."""
    return _experimental_module("channel.distill", "gold.gold_trainer", "ULDLoss")


def _experimental_module(feature: str, name: str, attribute: str) -> ModuleType:
    path = f"trl.experimental.{name}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the API is experimental
            module = import_module(path)
    except ImportError:
        module = ModuleType(path)
    if not hasattr(module, attribute):
        installed_trl = f"TRL {_version('trl')}" if _version("trl") else "this environment, without TRL,"
        raise ConfigError(
            f"{feature} is not available, because {installed_trl} has no `{path}.{attribute}`; use TRL 1.6 to 1.16"
        )
    return module


def _stored_metrics(trainer: Any) -> Any:
    """Return the metrics of TRL 0.24's DPOTrainer, which has its own name for them, or None."""
    return getattr(trainer, "_stored_metrics", None) if is_a(trainer, "DPOTrainer") else None


def _has_name(trainer: Any, name: str) -> bool:
    """Whether the trainer has the attribute, or a method of its class uses it, because some are created by `train`."""
    attribute, _, parameters = name.partition("(")
    if attribute == "_metrics" and _stored_metrics(trainer) is not None:
        return True
    if not (hasattr(trainer, attribute) or attribute in _names_in_methods(trainer)):
        return False
    if attribute == COMPUTE_LOSS:  # Unsloth's trainers have it, but never call it
        return attribute in inspect.unwrap(type(trainer).compute_loss).__code__.co_names
    return not parameters or _needs_only(getattr(type(trainer), attribute), parameters.rstrip(")").split(", "))


def _needs_only(method: Callable[..., Any], parameters: Sequence[str]) -> bool:
    """Whether a method can be called with these arguments alone."""
    try:
        inspect.signature(method).bind("self", *parameters)
    except TypeError:
        return False
    return True


def _names_in_methods(trainer: Any) -> frozenset[str]:
    """Return the names of all attributes that the methods of the trainer's class use."""
    members = (member for cls in type(trainer).__mro__ for member in vars(cls).values())
    methods = (inspect.unwrap(member) for member in members if inspect.isfunction(member))
    return frozenset(name for method in methods for name in method.__code__.co_names)


def _version(package: str) -> str:
    """Return the installed version, or "" if the package is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def _release(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    return tuple(int(number) for number in re.findall(r"\d+", version)[:2])
