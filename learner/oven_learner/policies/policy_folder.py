"""The folder of a saved policy: `policy.json` describes it, `policy.safetensors` has its weights, and `scheduler/` has
a diffusion policy's scheduler in diffusers' format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_learner.policies.policy import Policy

DESCRIPTION, WEIGHTS, SCHEDULER = "policy.json", "policy.safetensors", "scheduler"
NETWORKS = ("TemporalUNet", "TrajectoryNetwork")
"""Networks with stored arguments, from which they can be rebuilt."""
REMEDY = "give a folder that a policy's `save` wrote"


class Description(BaseModel):
    """`policy.json`: class names and constructor arguments."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    arguments: dict[str, Any]
    network: str
    network_arguments: dict[str, Any]


def write(folder: Path | str, policy: Policy, arguments: dict[str, Any]) -> None:
    """Write the folder, the description last, so that an interrupted write is not a valid policy. Raises OSError, and
    ConfigError for a network that is not in NETWORKS."""
    network: Any = policy.network
    name = type(network).__name__
    if name not in NETWORKS:
        raise ConfigError(
            f"the network is a {name}, and only {' or '.join(NETWORKS)} can be saved; save its state_dict, and pass a "
            "teacher in memory as model="
        )
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DESCRIPTION).unlink(missing_ok=True)
    save_file({key: tensor.detach().cpu().contiguous() for key, tensor in _tensors(network).items()}, folder / WEIGHTS)
    scheduler: Any = getattr(policy, "scheduler", None)
    if scheduler is not None:
        scheduler.save_pretrained(folder / SCHEDULER)
    description = Description(
        policy=type(policy).__name__, arguments=arguments, network=name, network_arguments=network.arguments
    )
    write_atomic(folder / DESCRIPTION, description.model_dump_json(indent=2) + "\n")


def read(folder: Path) -> Description:
    """Read the description. Raises ConfigError if the folder is missing or has no policy."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}; {REMEDY}")
    if not (folder / DESCRIPTION).exists():
        raise ConfigError(f"{folder} has no {DESCRIPTION}; {REMEDY}")
    try:
        return Description.model_validate_json(read_file(folder / DESCRIPTION, "the description of a policy"))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(
            f"{folder / DESCRIPTION} is damaged, or not a policy description: {reason(error)}; {REMEDY}"
        ) from error


def fill(network: nn.Module, folder: Path) -> None:
    """Load weights and buffers into a network on the meta device. Raises ConfigError if the file is damaged or does not
    match."""
    path = folder / WEIGHTS
    try:
        # Copied: loaded tensors are unaligned and memory-mapped, and another `save` may change the file.
        tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except Exception as error:
        raise ConfigError(f"{path} cannot be read and may be damaged: {reason(error)}; {REMEDY}") from error
    expected = {name: tuple(tensor.shape) for name, tensor in _tensors(network).items()}
    stored = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    if differing := sorted(name for name in expected.keys() | stored.keys() if expected.get(name) != stored.get(name)):
        name = differing[0]
        raise ConfigError(
            f"{path} has {name!r} with shape {stored.get(name, 'none')}, and {DESCRIPTION} says "
            f"{expected.get(name, 'none')}; {REMEDY}"
        )
    for name, tensor in tensors.items():
        owner, _, last = name.rpartition(".")
        module = network.get_submodule(owner)
        setattr(module, last, nn.Parameter(tensor) if isinstance(getattr(module, last), nn.Parameter) else tensor)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers, including non-persistent ones, which the meta device does not compute."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}
