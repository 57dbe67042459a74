"""Classic BPF for seccomp: rules about system calls, assembled into the bytes that the kernel takes (linux/filter.h).

A program is told the call's number, its convention and six 64-bit arguments (struct seccomp_data, little-endian), and
returns what to do. Rules are tried in their order; what none of them names is refused with EPERM.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from oven_llm.sandbox.syscalls import Machine

LOAD: Final = 0x20
"""BPF_LD | BPF_W | BPF_ABS: a word of seccomp_data into the accumulator."""
EQUAL, AT_LEAST, ANY_BIT, AND, RETURN = 0x15, 0x35, 0x45, 0x54, 0x06
"""BPF_JMP with JEQ, JGE, JSET; BPF_ALU with AND; BPF_RET: each with a constant."""

ALLOW: Final = 0x7FFF0000
KILL: Final = 0x80000000
ERRNO: Final = 0x00050000
"""SECCOMP_RET_… of linux/seccomp.h; an error's number is added to ERRNO."""
EPERM, ENOSYS = 1, 38

NUMBER_AT, CONVENTION_AT, ARGUMENTS_AT = 0, 4, 16
"""Offsets in struct seccomp_data."""
LONGEST: Final = 4096
"""BPF_MAXINSNS: the kernel takes no longer program."""

Test = Literal["one_of", "none_of", "without", "with", "not_all"]


@dataclass(frozen=True)
class Argument:
    """A condition on an argument: its 64 bits are `one_of` some values, or its low 32 (where the kernel has descriptors
    and flags) are `none_of` some, `without` any, `with` all, or `not_all` of a mask's bits."""

    index: int
    test: Test
    values: tuple[int, ...]


@dataclass(frozen=True)
class Rule:
    """A call is allowed where all conditions hold; else it is refused with `errno`."""

    call: str
    conditions: tuple[Argument, ...] = ()
    errno: int = EPERM
    allowed: bool = True
    """False: refused in any case, with `errno`."""


Instruction = tuple[int, int, int, int]
"""(code, jump if true, jump if false, constant); jumps count the instructions that are skipped."""


def program(machine: Machine, rules: Sequence[Rule]) -> bytes:
    """The filter, as an array of struct sock_filter. Calls that the machine does not have are left out."""
    code: list[Instruction] = [
        (LOAD, 0, 0, CONVENTION_AT),
        (EQUAL, 1, 0, machine.audit),
        (RETURN, 0, 0, KILL),
        (LOAD, 0, 0, NUMBER_AT),
    ]
    if machine.foreign_from is not None:
        code += [(AT_LEAST, 0, 1, machine.foreign_from), (RETURN, 0, 0, ERRNO | EPERM)]
    for rule in rules:
        if (number := machine.numbers.get(rule.call)) is not None:
            body = _body(rule)
            code += [(EQUAL, 0, len(body), number), *body]
    code.append((RETURN, 0, 0, ERRNO | EPERM))
    if len(code) > LONGEST:
        raise ValueError(f"a filter of {len(code)} instructions; the kernel takes {LONGEST}")
    return b"".join(struct.pack("<HBBI", *one) for one in code)


def _body(rule: Rule) -> list[Instruction]:
    refuse: Instruction = (RETURN, 0, 0, ERRNO | rule.errno)
    if not rule.allowed:
        return [refuse]
    body = [one for condition in rule.conditions for one in _condition(condition, refuse)]
    return [*body, (RETURN, 0, 0, ALLOW)]


def _condition(condition: Argument, refuse: Instruction) -> list[Instruction]:
    """Falls through where the condition holds, and returns `refuse` where it does not."""
    low = ARGUMENTS_AT + 8 * condition.index
    load: Instruction = (LOAD, 0, 0, low)
    if condition.test == "without":
        (mask,) = condition.values
        return [load, (ANY_BIT, 0, 1, mask), refuse]
    if condition.test == "with":
        (mask,) = condition.values
        return [load, (AND, 0, 0, mask), (EQUAL, 1, 0, mask), refuse]
    if condition.test == "not_all":
        (mask,) = condition.values
        return [load, (AND, 0, 0, mask), (EQUAL, 0, 1, mask), refuse]
    last = len(condition.values)
    if condition.test == "none_of":
        jumps = [(EQUAL, last - n - 1, int(n == last - 1), value) for n, value in enumerate(condition.values)]
        return [load, *jumps, refuse]
    high: list[Instruction] = [(LOAD, 0, 0, low + 4), (EQUAL, 1, 0, 0), refuse]
    return [*high, load, *((EQUAL, last - n, 0, value) for n, value in enumerate(condition.values)), refuse]
