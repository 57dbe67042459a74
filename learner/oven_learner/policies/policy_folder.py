"""The folder of a saved policy: `policy.json` says what it is made of, `policy.safetensors` has its weights, and
`scheduler/` a diffusion policy's scheduler, as diffusers writes it."""

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
"""Those whose arguments are kept, so that one can be made again."""
REMEDY = "give a folder that a policy's `save` wrote"


class Description(BaseModel):
    """`policy.json`: names of classes, and what they are made with."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    policy: str
    arguments: dict[str, Any]
    network: str
    network_arguments: dict[str, Any]


def write(folder: Path | str, policy: Policy, arguments: dict[str, Any]) -> None:
    """The description comes last: without it a folder holds no policy. Raises ConfigError for another network than
    those above, and OSError."""
    network: Any = policy.network
    name = type(network).__name__
    if name not in NETWORKS:
        raise ConfigError(
            f"the network is a {name}, and {' or '.join(NETWORKS)} are saved: keep its state_dict, and give a teacher "
            "of it in memory, as model="
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
    """Raises ConfigError where the folder is missing, or holds no policy."""
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {str(folder)!r}; {REMEDY}")
    if not (folder / DESCRIPTION).exists():
        raise ConfigError(f"{folder} has no {DESCRIPTION}; {REMEDY}")
    try:
        return Description.model_validate_json(read_file(folder / DESCRIPTION, "the description of a policy"))
    except ValueError as error:
        if isinstance(error, ConfigError):
            raise
        raise ConfigError(f"{folder / DESCRIPTION} is cut, or no policy's: {reason(error)}; {REMEDY}") from error


def fill(network: nn.Module, folder: Path) -> None:
    """Give a network that was made on the meta device its weights and buffers. Raises ConfigError where the file is
    cut, or has others."""
    path = folder / WEIGHTS
    try:
        # Copied: what is read lies in the mapped file, which another `save` may change, and unaligned.
        found = {name: tensor.clone() for name, tensor in load_file(path).items()}
    except Exception as error:
        raise ConfigError(f"{path} cannot be read, it may be cut: {reason(error)}; {REMEDY}") from error
    wanted = {name: tuple(tensor.shape) for name, tensor in _tensors(network).items()}
    there = {name: tuple(tensor.shape) for name, tensor in found.items()}
    if differing := sorted(name for name in wanted.keys() | there.keys() if wanted.get(name) != there.get(name)):
        name = differing[0]
        raise ConfigError(
            f"{path} has {name!r} in shape {there.get(name, 'none')}, and {DESCRIPTION} says {wanted.get(name, 'none')}"
            f"; {REMEDY}"
        )
    for name, tensor in found.items():
        owner, _, last = name.rpartition(".")
        module = network.get_submodule(owner)
        setattr(module, last, nn.Parameter(tensor) if isinstance(getattr(module, last), nn.Parameter) else tensor)


def _tensors(network: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers, also those that a state_dict leaves out: on the meta device nothing computes them."""
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}
