"""A teacher's config, in Python and from YAML: what it takes, and what each mistake is answered with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from oven_core.errors import ConfigError
from oven_learner.teachers import TeacherConfig, parse_teachers, read_teachers


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"bits": 5}, "bits: it should be 4 or 8"),
        ({"stratgy": "offload"}, "stratgy: Extra inputs are not permitted"),
        ({"name": ""}, "name: String should have at least 1 character"),
        ({"model_name": None}, "pass either `model` or `model_name`"),
        ({"model": torch.nn.Linear(1, 1)}, "pass either `model` or `model_name`"),
        ({"model_name": None, "model": "folder"}, "`model` is a str; to load one, pass its folder as `model_name`"),
        ({"joint_dim": 72}, "joint_dim are for diffusion teachers, but this one is 'small'"),
        ({"kind": "diffusion", "joint_dim": 72}, "a diffusion teacher needs intent_dim"),
        ({"kind": "diffusion", "joint_dim": 0, "intent_dim": 3}, "joint_dim: it should be greater than 0"),
        ({"kind": "diffusion", "joint_dim": 72, "intent_dim": 3, "tokenizer": "t"}, "uses no tokens"),
    ],
)
def test_invalid_values_are_named_in_the_error(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        TeacherConfig(**({"name": "strong", "model_name": "folder"} | values))
    assert str(raised.value).startswith(f"teacher {values.get('name', 'strong')!r}: ") and message in str(raised.value)


def test_a_list_in_yaml_is_read(tmp_path: Path) -> None:
    file = tmp_path / "teachers.yaml"
    file.write_text(
        "- {name: small, model_name: here/small}\n"
        "- name: big\n  kind: big\n  model_name: here/big\n  strategy: quantized\n  bits: 4\n"
        "- {name: moves, kind: diffusion, model_name: here/moves, joint_dim: 72, intent_dim: 384}\n"
    )
    small, big, moves = read_teachers(file)
    assert small == TeacherConfig(name="small", model_name="here/small")
    assert (big.strategy, big.bits) == ("quantized", 4)
    assert (moves.joint_dim, moves.intent_dim) == (72, 384)
    assert parse_teachers([small, {"name": "big", "model_name": "b"}])[0] is small
