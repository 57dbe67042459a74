"""Gaussian policies over trajectories. Each coordinate of each frame is one step of the GRPO objective, with an exact
density. Whole frames would not work as steps: for 72 coordinates, the density ratio leaves any clipping range after one
update, and the k3 estimate of the KL overflows. The ratio of one coordinate stays about as close to 1 as that of a
token, and the product over all coordinates is the same."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from oven_core.errors import ConfigError
from oven_learner.policies.policy import Policy, Samples, as_vectors, to_network_device

LOG_STD_RANGE = (-7.0, 2.0)
"""Bounds of the log standard deviation, for standard deviations of 0.001 to 7. float32 is too coarse for
narrower densities."""
LOG_2_PI = math.log(2 * math.pi)


def normal_log_density(x: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density of independent Gaussians, elementwise, in nats."""
    return -0.5 * (((x - mean) / log_std.exp()).square() + LOG_2_PI) - log_std


class GaussianTrajectory(Policy):
    """A policy over trajectories of F frames × D dimensions. `network` maps intents (B, I) to means and log standard
    deviations (B, F, 2 · D), in that order. `encode` converts conditions to intents. By default, conditions are already
    vectors. Given the intent, coordinates are independent. So a trajectory's log-density is the sum over its
    coordinates, and the network must learn to be smooth. Raises ConfigError if it returns another shape."""

    def __init__(self, network: torch.nn.Module, encode: Callable[[Sequence[Any]], Tensor] = as_vectors) -> None:
        super().__init__()
        self.network, self.encode, self.saved_arguments = network, encode, {}
        self.dims, self.intent_dim = getattr(network, "dims", None), getattr(network, "intent_dim", None)

    def distribution(self, conditions: Sequence[Any]) -> tuple[Tensor, Tensor]:
        """Return the means and log standard deviations, each (B, F, D)."""
        intents = to_network_device(self.encode(conditions), self.network)
        try:
            parameters = self.network(intents)
        except RuntimeError as error:
            raise ConfigError(
                f"the network does not accept intents of shape {tuple(intents.shape)}: {error}"
            ) from error
        if parameters.dim() != 3 or parameters.shape[0] != len(conditions) or parameters.shape[2] % 2:
            raise ConfigError(
                f"the network returned the shape {tuple(parameters.shape)} for {len(conditions)} intents; expected "
                "(intents, frames, 2 × dims)"
            )
        mean, log_std = parameters.chunk(2, dim=-1)
        return mean, log_std.clamp(*LOG_STD_RANGE)

    def sample(self, conditions: Sequence[Any], n: int) -> Samples:
        """Sample `n` trajectories per condition, each (F, D) float32."""
        with torch.no_grad():
            mean, log_std = self.distribution(conditions)
        mean, log_std = mean.repeat_interleave(n, dim=0), log_std.repeat_interleave(n, dim=0)
        trajectories = mean + log_std.exp() * torch.randn_like(mean)
        return Samples({"trajectory": trajectories}, torch.ones_like(trajectories).flatten(1), list(trajectories.cpu()))

    def step_log_probs(self, samples: Samples, conditions: Sequence[Any]) -> Tensor:
        """Return the log-density of each coordinate, frame by frame, (B, F · D). Raises ConfigError for samples from
        another kind of policy or of another shape."""
        if "trajectory" not in samples.tensors:
            raise ConfigError(
                f"these samples have {', '.join(samples.tensors)}, but no trajectory; use a Gaussian policy only as a "
                "teacher of Gaussian policies"
            )
        trajectories = samples.tensors["trajectory"]
        mean, log_std = self.distribution(conditions)
        if mean.shape != trajectories.shape:
            raise ConfigError(
                f"the policy's trajectories have {tuple(mean.shape[1:])} frames and dimensions, but these samples have "
                f"{tuple(trajectories.shape[1:])}; use samples of the same shape"
            )
        return normal_log_density(trajectories, mean, log_std).flatten(1)


class TrajectoryNetwork(torch.nn.Module):
    """A two-layer network from the intent and a frame's time to the frame's means and log standard deviations."""

    def __init__(
        self, intent_dim: int, frames: int, dims: int, *, hidden: int = 128, waves: int = 8, log_deviation: float = -1.5
    ) -> None:
        """`waves` is the number of cosines that encode the time of a frame. The fastest has `waves` / 2 periods per
        trajectory, which limits how fast the initial means vary. `log_deviation` is the initial log std."""
        super().__init__()
        self.arguments = {"intent_dim": intent_dim, "frames": frames, "dims": dims, "hidden": hidden, "waves": waves}
        """Constructor arguments, for saving."""
        if min(self.arguments.values()) < 1:
            raise ConfigError(f"the network's sizes are {self.arguments}, but each must be at least 1")
        self.intent_dim, self.dims = intent_dim, dims
        times = (torch.arange(frames) + 0.5) / frames  # (F,)
        self.register_buffer("time", torch.cos(math.pi * times[:, None] * torch.arange(waves)), persistent=False)
        self.intent = torch.nn.Linear(intent_dim, hidden)
        self.position = torch.nn.Linear(waves, hidden, bias=False)
        self.body = torch.nn.Sequential(torch.nn.SiLU(), torch.nn.Linear(hidden, hidden), torch.nn.SiLU())
        self.head = torch.nn.Linear(hidden, 2 * dims)
        with torch.no_grad():
            self.head.weight.mul_(0.1)  # so the initial distribution depends little on the intent
            self.head.bias.zero_()
            self.head.bias[dims:] = log_deviation

    def forward(self, intents: Tensor) -> Tensor:
        """Return means and log standard deviations (B, F, 2 · D) for intents (B, I)."""
        output: Tensor = self.head(self.body(self.intent(intents)[:, None] + self.position(self.time)[None]))
        return output
