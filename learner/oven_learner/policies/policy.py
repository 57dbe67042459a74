"""What GRPO needs of a policy: samples, and their log-probabilities with a gradient."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError, reason
from oven_learner.random_state import undisturbed


@dataclass(frozen=True)
class Samples:
    """B samples of a policy, each made in up to T steps: tokens, or coordinates of a trajectory."""

    tensors: Mapping[str, Tensor]
    """What the policy needs to score them again; the first dimension of each is B."""
    mask: Tensor
    """(B, T) float, 1 for a step that counts."""
    outputs: Sequence[Any]
    """What reward functions are given, one per sample: texts, trajectories."""

    def __len__(self) -> int:
        return int(self.mask.shape[0])

    def rows(self, index: Tensor) -> Samples:
        """The samples at these rows, (R,) int64, in that order."""
        places = index.tolist()
        return Samples(
            {name: tensor[index] for name, tensor in self.tensors.items()},
            self.mask[index],
            [self.outputs[place] for place in places] if self.outputs else [],
        )


class Policy(torch.nn.Module):
    """Base of policies. Subclasses give `sample` and `step_log_probs`; weights, device and state are the module's.

    GRPO takes a policy in evaluation mode throughout: with dropout, the log-probability of a sample would be another
    one each time that it is asked for.
    """

    dims: int | None = None
    """Coordinates of a frame of its samples; None: they have no frames, or it does not say."""
    intent_dim: int | None = None
    """Numbers of an encoded condition; None: it does not say."""

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """`n` samples per condition, those of one condition side by side, drawn from torch's global generator."""
        raise NotImplementedError

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """(B, T): natural log-probability or log-density of each step, given those before it. `conditions` has one
        per sample. Where the mask is 0 it is any finite number."""
        raise NotImplementedError

    def save(self, folder: Path | str) -> None:
        """Write what `load_policy` reads: policies of trajectories do."""
        raise ConfigError(f"a {type(self).__name__} is not saved in a folder: keep its state_dict, or the model's own")

    def log_prob(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """(B,): of each whole sample, the sum over its steps."""
        return (self.step_log_probs(samples, conditions) * samples.mask).sum(-1)


def repeated(conditions: Sequence[Any], n: int) -> list[Any]:
    """One condition per sample, in the order of `Policy.sample`."""
    return [condition for condition in conditions for _ in range(n)]


def on_weights(inputs: Tensor, network: torch.nn.Module) -> Tensor:
    """`inputs` where the network is run, in the dtype of its weights. Weights that are offloaded lie nowhere; the hooks
    that bring them know where to."""
    weight = next(network.parameters())
    device = weight.device
    if device.type == "meta":
        hooks: Iterator[Any] = (getattr(module, "_hf_hook", None) for module in network.modules())
        device = next(hook.execution_device for hook in hooks if hasattr(hook, "execution_device"))
    return inputs.to(device, weight.dtype)


def as_vectors(conditions: Sequence[Any]) -> Tensor:
    """Conditions that are vectors already, as (B, I) float32. Raises ConfigError for any others."""
    try:
        return torch.stack([torch.as_tensor(condition, dtype=torch.float32) for condition in conditions])
    except (TypeError, ValueError, RuntimeError) as error:
        raise ConfigError(
            f"conditions are not vectors of one length ({reason(error)}); give the policy encode=, which makes them so"
        ) from error


def check_policy(policy: Policy, conditions: Sequence[Any]) -> None:
    """Samples two of the first condition and asks for their gradient: what cannot train fails now, and not in the
    middle of a run. Changes neither gradients nor random generators. Raises ConfigError."""
    if not isinstance(policy, Policy):
        raise ConfigError(f"{type(policy).__name__} is not a policy; subclass oven_learner.policies.Policy, or use one")
    trained = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    if not trained:
        raise ConfigError("none of the policy's parameters requires a gradient, so there is nothing to train")
    with undisturbed(policy):
        policy.eval()
        with torch.no_grad():
            samples = policy.sample(conditions[:1], 2)
        said = policy.step_log_probs(samples, repeated(conditions[:1], 2))
        if said.shape != samples.mask.shape:
            raise ConfigError(
                f"step_log_probs has shape {tuple(said.shape)}, and the mask {tuple(samples.mask.shape)}; give one "
                "number per sample and step"
            )
        if not bool(torch.isfinite(said).all()):
            raise ConfigError("step_log_probs is not finite on the policy's own samples; check its weights")
        if not said.requires_grad:
            raise ConfigError(
                "step_log_probs has no gradient, so nothing would be learnt; compute it outside of torch.no_grad() "
                "and without detach()"
            )
        reached = torch.autograd.grad((said * samples.mask).sum(), trained, allow_unused=True)
        if all(gradient is None for gradient in reached):
            raise ConfigError("step_log_probs has a gradient, but of none of the policy's own parameters")
