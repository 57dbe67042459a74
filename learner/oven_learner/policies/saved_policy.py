"""Loads a policy from a folder that `Policy.save` wrote. The folder contains a description, the weights, and a
diffusion policy's scheduler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file
from oven_learner.policies.diffusion_policy import DiffusionPolicy, TemporalUNet, diffusers
from oven_learner.policies.gaussian_policy import GaussianTrajectory, TrajectoryNetwork
from oven_learner.policies.policy import DESCRIPTION, SCHEDULER, WEIGHTS, Description, Policy, as_vectors, named_tensors

REMEDY = "pass a folder that was written by `Policy.save`"
POLICIES: Mapping[str, type[Policy]] = {"DiffusionPolicy": DiffusionPolicy, "GaussianTrajectory": GaussianTrajectory}
NETWORKS: Mapping[str, type[nn.Module]] = {"TemporalUNet": TemporalUNet, "TrajectoryNetwork": TrajectoryNetwork}
"""Classes by name in `policy.json`. No other class is ever created from a folder."""


def load_policy(folder: Path | str, encode: Callable[[Sequence[Any]], Tensor] = as_vectors) -> Policy:
    """Load a policy on the CPU, in evaluation mode. `encode` must be the function that the policy was trained with,
    because it is not saved. Loading uses no random generator, so it does not affect training in another thread. Raises
    ConfigError if the folder is missing or damaged, or has an unknown class or weights of another shape."""
    folder = Path(folder)
    description = _read_description(folder)
    for name, choices in ((description.policy, POLICIES), (description.network, NETWORKS)):
        if name not in choices:
            raise ConfigError(f"{folder / DESCRIPTION} names a {name!r}; only {' and '.join(choices)} can be loaded")
    try:
        with torch.device("meta"):
            network = NETWORKS[description.network](**description.network_arguments)
        _load_weights(network, folder)
        if description.policy == "GaussianTrajectory":
            return GaussianTrajectory(network, encode, **description.arguments).eval()
        scheduler = diffusers().DDIMScheduler.from_pretrained(str(folder), subfolder=SCHEDULER, local_files_only=True)
        return DiffusionPolicy(network, scheduler, encode=encode, **description.arguments).eval()
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(f"the policy in {folder} cannot be loaded: {reason(error)[:300]}; {REMEDY}") from error


def _read_description(folder: Path) -> Description:
    """Read the description. Raises ConfigError if the folder is missing or has no policy."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}; {REMEDY}")
    if not (folder / DESCRIPTION).exists():
        raise ConfigError(f"{folder} has no {DESCRIPTION}; {REMEDY}")
    content = read_file(folder / DESCRIPTION, "the description of a policy")
    try:
        return Description.model_validate_json(content)
    except ValueError as error:
        raise ConfigError(
            f"{folder / DESCRIPTION} is damaged, or not a policy description: {reason(error)}; {REMEDY}"
        ) from error


def _load_weights(network: nn.Module, folder: Path) -> None:
    """Load weights and buffers into a network on the meta device. Raises ConfigError if the file is damaged or does not
    match."""
    path = folder / WEIGHTS
    try:
        # Loaded tensors are unaligned and memory-mapped, and another `save` may change the file, so they are copied.
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except Exception as error:
        raise ConfigError(f"{path} cannot be read and may be damaged: {reason(error)}; {REMEDY}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in named_tensors(network)}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name in sorted(expected.keys() | stored.keys()):
        if stored.get(name) != expected.get(name):
            raise ConfigError(
                f"{path} has {name!r} with the shape {stored.get(name, 'none')}, but {DESCRIPTION} requires "
                f"{expected.get(name, 'none')}; {REMEDY}"
            )
    for name, tensor in tensors.items():
        module_name, _, attribute = name.rpartition(".")
        module = network.get_submodule(module_name)
        is_parameter = isinstance(getattr(module, attribute), nn.Parameter)
        setattr(module, attribute, nn.Parameter(tensor) if is_parameter else tensor)
