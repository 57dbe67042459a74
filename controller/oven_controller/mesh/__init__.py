"""The consensus mesh: a pure function of one ordered log."""

from oven_controller.mesh.core import Mesh, Output
from oven_controller.mesh.identity import code_hash

__all__ = ["Mesh", "Output", "code_hash"]
