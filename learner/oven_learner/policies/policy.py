"""The base class of the policies that GRPO trains, and helpers for them. A policy draws samples and returns their
differentiable log-probabilities."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import BaseModel, ConfigDict
from safetensors.torch import save_file
from torch import Tensor

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_learner.random_state import preserve_state

DESCRIPTION, WEIGHTS, SCHEDULER = "policy.json", "policy.safetensors", "scheduler"
"""Contents of a saved policy's folder: two files, and for diffusion policies the folder of diffusers' scheduler."""
SAVABLE_NETWORKS = ("TemporalUNet", "TrajectoryNetwork")
"""Networks that store their constructor arguments, so that they can be recreated."""


class Description(BaseModel):
    """The contents of `policy.json`: the class names and constructor arguments of a policy and its network."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    arguments: dict[str, Any]
    network: str
    network_arguments: dict[str, Any]


@dataclass(frozen=True)
class Samples:
    """B samples of a policy. Each has up to T steps, which are tokens or coordinates of a trajectory."""

    tensors: Mapping[str, Tensor]
    """Tensors that the policy needs for scoring. The first dimension of each is B."""
    mask: Tensor
    """1 for each step that counts, otherwise 0, (B, T) float."""
    outputs: Sequence[Any]
    """Outputs for the reward functions. Each is a string or a trajectory."""

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def select(self, rows: Tensor) -> Samples:
        """Return the samples with these row numbers, (R,) int64, in that order."""
        outputs = [self.outputs[row] for row in rows.tolist()] if self.outputs else []
        return Samples({name: tensor[rows] for name, tensor in self.tensors.items()}, self.mask[rows], outputs)


class Policy(torch.nn.Module):
    """The base class of policies. Subclasses define `sample` and `step_log_probs`, and otherwise work like any torch
    module. GRPO keeps policies in evaluation mode, because dropout would change log-probabilities on every call."""

    dims: int | None = None
    """Number of coordinates per frame, or None if the samples have no frames or the number is unknown."""
    intent_dim: int | None = None
    """Size of an encoded condition, or None if unknown."""
    saved_arguments: dict[str, Any] | None = None
    """Constructor arguments that `save` writes, or None if the policy cannot be saved."""

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """Return `n` samples per condition, grouped by condition, using torch's global generator."""
        raise NotImplementedError

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the natural log-probability or log-density of each step, given the previous steps, (B, T).
        `conditions` has one entry per sample. For masked steps the result may be any finite number."""
        raise NotImplementedError

    def save(self, folder: Path | str) -> None:
        """Write a folder that `load_policy` can read, without the `encode` function. The description is written last,
        so an interrupted write does not leave a valid policy. Raises OSError if the folder cannot be written.
        Raises ConfigError for policies other than trajectory policies, and for networks not in SAVABLE_NETWORKS."""
        class_name, network = type(self).__name__, getattr(self, "network", None)
        if self.saved_arguments is None:
            raise ConfigError(f"a {class_name} does not support save(); save its state_dict, or the model itself")
        if not isinstance(network, torch.nn.Module) or type(network).__name__ not in SAVABLE_NETWORKS:
            raise ConfigError(
                f"the network is a {type(network).__name__}, but only {' or '.join(SAVABLE_NETWORKS)} can be saved; "
                "save its state_dict instead, and pass the network to the teacher with `model=`"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DESCRIPTION).unlink(missing_ok=True)
        weights = {name: tensor.detach().cpu().contiguous() for name, tensor in named_tensors(network)}
        save_file(weights, folder / WEIGHTS)
        scheduler: Any = getattr(self, "scheduler", None)
        if scheduler is not None:
            scheduler.save_pretrained(folder / SCHEDULER)
        description = Description(
            policy=class_name,
            arguments=self.saved_arguments,
            network=type(network).__name__,
            network_arguments=network.arguments,
        )
        write_atomic(folder / DESCRIPTION, description.model_dump_json(indent=2) + "\n")

    def log_prob(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the log-probability of each sample, which is the sum over its steps, (B,)."""
        return (self.step_log_probs(samples, conditions) * samples.mask).sum(-1)


def named_tensors(network: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and buffers with their names. Non-persistent buffers are included, because a network on
    the meta device cannot compute them."""
    yield from network.named_parameters()
    yield from network.named_buffers()


def repeat_conditions(conditions: Sequence[Any], n: int) -> list[Any]:
    """Return one condition per sample, in the order of `Policy.sample`."""
    return [condition for condition in conditions for _ in range(n)]


def network_device(network: torch.nn.Module) -> torch.device:
    """Return the device on which a network runs. For offloaded weights, accelerate's hooks contain the device."""
    device: torch.device = next(network.parameters()).device
    if device.type == "meta":
        hooks: Iterator[Any] = (getattr(module, "_hf_hook", None) for module in network.modules())
        device = next(hook.execution_device for hook in hooks if hasattr(hook, "execution_device"))
    return device


def to_network_device(inputs: Tensor, network: torch.nn.Module) -> Tensor:
    """Move `inputs` to the network's device and dtype."""
    return inputs.to(network_device(network), next(network.parameters()).dtype)


def as_vectors(conditions: Sequence[Any]) -> Tensor:
    """Stack conditions that are vectors of the same length, (B, I) float32. Raises ConfigError for other conditions."""
    try:
        return torch.stack([torch.as_tensor(condition, dtype=torch.float32) for condition in conditions])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"conditions are not vectors of the same length ({reason(error)}); pass encode= to the policy to convert "
            "them"
        ) from error


def check_policy(policy: Policy, conditions: Sequence[Any]) -> None:
    """Raise ConfigError before training starts if the policy cannot be trained. The check draws two samples for the
    first condition and computes a gradient. It changes neither the policy's gradients nor the random generators."""
    if not isinstance(policy, Policy):
        raise ConfigError(f"{type(policy).__name__} is not a policy; subclass oven_learner.policies.Policy")
    trained_parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if not trained_parameters:
        raise ConfigError(
            "none of the policy's parameters requires a gradient, so there is nothing to train; set requires_grad"
        )
    with preserve_state(policy):
        policy.eval()
        with torch.no_grad():
            samples = policy.sample(conditions[:1], 2)
        log_probs = policy.step_log_probs(samples, repeat_conditions(conditions[:1], 2))
        if log_probs.shape != samples.mask.shape:
            raise ConfigError(
                f"step_log_probs has the shape {tuple(log_probs.shape)}, but the mask has {tuple(samples.mask.shape)}; "
                "return one number per sample and step"
            )
        if not bool(torch.isfinite(log_probs).all()):
            raise ConfigError("step_log_probs is not finite on the policy's own samples; check its weights")
        if not log_probs.requires_grad:
            raise ConfigError(
                "step_log_probs has no gradient, so the policy would not learn; compute it outside torch.no_grad() "
                "and without detach()"
            )
        total = (log_probs * samples.mask).sum()
        gradients = torch.autograd.grad(total, trained_parameters, allow_unused=True)
        if all(gradient is None for gradient in gradients):
            raise ConfigError(
                "step_log_probs does not depend on the policy's trainable parameters; use them to compute it"
            )
