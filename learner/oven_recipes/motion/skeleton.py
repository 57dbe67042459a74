"""A skeleton of 24 joints. Computes the joints' positions from their rotations (forward kinematics)."""

from __future__ import annotations

import torch
from torch import Tensor

JOINTS: tuple[tuple[str, int, tuple[float, float, float]], ...] = (
    ("pelvis", -1, (0.0, 0.0, 0.0)),
    ("left_hip", 0, (0.07, -0.09, 0.0)),
    ("right_hip", 0, (-0.07, -0.09, 0.0)),
    ("spine1", 0, (0.0, 0.11, -0.02)),
    ("left_knee", 1, (0.03, -0.38, 0.0)),
    ("right_knee", 2, (-0.03, -0.38, 0.0)),
    ("spine2", 3, (0.0, 0.13, 0.0)),
    ("left_ankle", 4, (-0.01, -0.42, -0.03)),
    ("right_ankle", 5, (0.01, -0.42, -0.03)),
    ("spine3", 6, (0.0, 0.05, 0.0)),
    ("left_foot", 7, (0.04, -0.06, 0.12)),
    ("right_foot", 8, (-0.04, -0.06, 0.12)),
    ("neck", 9, (0.0, 0.21, -0.03)),
    ("left_collar", 9, (0.07, 0.11, -0.02)),
    ("right_collar", 9, (-0.07, 0.11, -0.02)),
    ("head", 12, (0.0, 0.09, 0.05)),
    ("left_shoulder", 13, (0.12, 0.05, -0.01)),
    ("right_shoulder", 14, (-0.12, 0.05, -0.01)),
    ("left_elbow", 16, (0.26, 0.0, 0.0)),
    ("right_elbow", 17, (-0.26, 0.0, 0.0)),
    ("left_wrist", 18, (0.25, 0.0, 0.0)),
    ("right_wrist", 19, (-0.25, 0.0, 0.0)),
    ("left_hand", 20, (0.08, 0.0, 0.0)),
    ("right_hand", 21, (-0.08, 0.0, 0.0)),
)
"""Each joint's name, its parent's index, and its offset from the parent in metres (x to the left, y up, z forward), at
rest with outstretched arms. This is SMPL's tree with rounded bone lengths of a person of 1.7 m."""
JOINT_INDEX = {name: index for index, (name, _, _) in enumerate(JOINTS)}
PARENTS = tuple(parent for _, parent, _ in JOINTS)
DIMS = 3 * len(JOINTS)  # numbers per frame: an axis-angle vector per joint
ARM_M = 0.59
"""Distance from shoulder to hand in metres."""
ROTATION_LIMITS_RAD = {"shoulder": 2.6, "elbow": 2.5, "knee": 2.3, "hip": 1.8, "wrist": 1.2, "ankle": 0.9}
OTHER_LIMIT_RAD = 0.7
"""Maximum rotation of a joint: by the last word of the joint's name, and for joints whose last word is not listed."""


def rotation_limits() -> Tensor:
    """Return each joint's maximum rotation, (24,), in radians."""
    return torch.tensor([ROTATION_LIMITS_RAD.get(name.split("_")[-1], OTHER_LIMIT_RAD) for name, _, _ in JOINTS])


def rotation_matrices(axis_angles: Tensor) -> Tensor:
    """Convert (…, 3) axis-angles in radians to (…, 3, 3) matrices, by Rodrigues' formula."""
    angle: Tensor = axis_angles.norm(dim=-1, keepdim=True).clamp(min=1e-8)  # (…, 1)
    x, y, z = (axis_angles / angle).unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], -1).reshape(*x.shape, 3, 3)  # cross-product matrices
    sine, cosine = angle.sin()[..., None], angle.cos()[..., None]
    matrices: Tensor = torch.eye(3).to(axis_angles) + sine * cross + (1 - cosine) * (cross @ cross)
    return matrices


def positions(axis_angles: Tensor) -> Tensor:
    """Convert (…, 72) axis-angles to (…, 24, 3) joint positions in metres, with the pelvis at the origin."""
    matrices = rotation_matrices(axis_angles.reshape(*axis_angles.shape[:-1], len(JOINTS), 3))
    offsets = torch.tensor([offset for _, _, offset in JOINTS]).to(axis_angles)
    orientations, joints = [matrices[..., 0, :, :]], [torch.zeros_like(matrices[..., 0, :, 0])]
    for joint in range(1, len(JOINTS)):
        parent = PARENTS[joint]
        joints.append(joints[parent] + orientations[parent] @ offsets[joint])
        orientations.append(orientations[parent] @ matrices[..., joint, :, :])
    return torch.stack(joints, -2)
