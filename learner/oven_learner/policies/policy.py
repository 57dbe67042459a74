"""The base class of policies for GRPO, which return samples and differentiable log-probabilities."""

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
"""Files of a saved policy, and the folder of a diffusion policy's scheduler in diffusers' format."""
NETWORKS = ("TemporalUNet", "TrajectoryNetwork")
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

    def rows(self, index: Tensor) -> Samples:
        """Return the samples with these row numbers, (R,) int64, in that order."""
        outputs = [self.outputs[row] for row in index.tolist()] if self.outputs else []
        return Samples({name: tensor[index] for name, tensor in self.tensors.items()}, self.mask[index], outputs)


class Policy(torch.nn.Module):
    """The base class of policies. Subclasses define `sample` and `step_log_probs`. Weights, device and state are
    managed by the torch module. GRPO keeps policies in evaluation mode, because dropout would change log-probabilities
    on every call."""

    dims: int | None = None
    """Number of coordinates per frame of the samples, or None if there are no frames or the number is unknown."""
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
        """Write a folder that `load_policy` can read. The `encode` function is not saved. Only trajectory policies
        support this. The description is written last, so an interrupted write does not leave a valid policy. Raises
        OSError if the folder cannot be written, and ConfigError for a network that is not in NETWORKS."""
        kind, network = type(self).__name__, getattr(self, "network", None)
        if self.saved_arguments is None:
            raise ConfigError(f"a {kind} does not support save(); save its state_dict, or the model itself")
        if not isinstance(network, torch.nn.Module) or type(network).__name__ not in NETWORKS:
            raise ConfigError(
                f"the network is a {type(network).__name__}, but only {' or '.join(NETWORKS)} can be saved; save its "
                "state_dict instead, and pass the network to the teacher with `model=`"
            )
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DESCRIPTION).unlink(missing_ok=True)
        save_file({key: value.detach().cpu().contiguous() for key, value in tensors_of(network)}, folder / WEIGHTS)
        scheduler: Any = getattr(self, "scheduler", None)
        if scheduler is not None:
            scheduler.save_pretrained(folder / SCHEDULER)
        description = Description(
            policy=kind,
            arguments=self.saved_arguments,
            network=type(network).__name__,
            network_arguments=network.arguments,
        )
        write_atomic(folder / DESCRIPTION, description.model_dump_json(indent=2) + "\n")

    def log_prob(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the log-probability of each sample, which is the sum over its steps, (B,)."""
        return (self.step_log_probs(samples, conditions) * samples.mask).sum(-1)


def tensors_of(network: torch.nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield all parameters and buffers with their names. Non-persistent buffers are included, because the meta device
    does not compute them."""
    yield from network.named_parameters()
    yield from network.named_buffers()


def repeat_conditions(conditions: Sequence[Any], n: int) -> list[Any]:
    """Return one condition per sample, in the order of `Policy.sample`."""
    return [condition for condition in conditions for _ in range(n)]


def to_network_device(inputs: Tensor, network: torch.nn.Module) -> Tensor:
    """Move `inputs` to the network's device and dtype. For offloaded weights, accelerate's hooks know the device."""
    weight = next(network.parameters())
    device = weight.device
    if device.type == "meta":
        hooks: Iterator[Any] = (getattr(module, "_hf_hook", None) for module in network.modules())
        device = next(hook.execution_device for hook in hooks if hasattr(hook, "execution_device"))
    return inputs.to(device, weight.dtype)


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
    """Raise ConfigError for an unusable policy, before training starts. The check samples twice for the first condition
    and computes a gradient. It changes neither the policy's gradients nor the random generators."""
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
