"""The sandbox's filters: what the assembled program says, against the rules that it was made of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.bpf_machine import verdict

from oven_llm.sandbox import profiles
from oven_llm.sandbox.allow_list import Descriptors, rules_for_repl, rules_for_tests
from oven_llm.sandbox.bpf import (
    AARCH64,
    ALLOW,
    EPERM,
    ERRNO,
    KILL,
    MACHINES,
    X86_64,
    Condition,
    Machine,
    Rule,
    assemble_filter,
)

DESCRIPTORS = Descriptors(7, 9, 11)
RULES = {"repl": rules_for_repl(DESCRIPTORS), "tests": rules_for_tests(DESCRIPTORS)}
PROGRAMS = {
    (name, machine.name): assemble_filter(machine, rules)
    for name, rules in RULES.items()
    for machine in MACHINES.values()
}
LOW = 0xFFFFFFFF


def holds(condition: Condition, arguments: Sequence[int]) -> bool:
    value = arguments[condition.index]
    mask = condition.values[0]
    return {
        "one_of": value in condition.values,
        "none_of": value & LOW not in condition.values,
        "no_bits": not value & mask & LOW,
        "all_bits": value & mask == mask,
        "not_all_bits": value & mask != mask,
    }[condition.test]


def expected(rules: Sequence[Rule], call: str, arguments: Sequence[int]) -> int:
    rule = next((item for item in rules if item.call == call), None)
    if rule is None:
        return ERRNO | EPERM
    allowed = rule.allowed and all(holds(item, arguments) for item in rule.conditions)
    return ALLOW if allowed else ERRNO | rule.errno


words = st.one_of(
    st.sampled_from(
        [0, 1, 2, 3, 4, 6, 7, 9, 11, 0x20, 0x22, 0x10000, 0x3D0F00, 1030, 0x5401, 0x5412, 0x80801, 1 << 32]
    ),
    st.integers(0, 2**64 - 1),
)


@given(
    st.sampled_from(sorted(RULES)),
    st.sampled_from([X86_64, AARCH64]),
    st.sampled_from(sorted(X86_64.numbers)),
    st.lists(words, min_size=6, max_size=6),
)
def test_a_filter_implements_its_rules(profile: str, machine: Machine, call: str, arguments: list[int]) -> None:
    number = machine.numbers.get(call)
    if number is not None:
        output = verdict(PROGRAMS[profile, machine.name], number, machine.audit_arch, arguments)
        assert output == expected(RULES[profile], call, arguments)


@pytest.mark.parametrize("profile", RULES)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_unlisted_calls_are_refused_and_another_convention_kills(profile: str, machine: Machine) -> None:
    code, none = PROGRAMS[profile, machine.name], [0] * 6
    named = {machine.numbers[rule.call] for rule in RULES[profile] if rule.call in machine.numbers}
    for number in {*range(600), -1} - named:
        assert verdict(code, number, machine.audit_arch, none) == ERRNO | EPERM
    assert verdict(code, machine.numbers["read"], 0x40000003, none) == KILL  # i386: other numbers
    if machine.first_x32_number is not None:  # x32
        assert (
            verdict(code, machine.first_x32_number + machine.numbers["getpid"], machine.audit_arch, none)
            == ERRNO | EPERM
        )


def test_no_profile_allows_dangerous_calls() -> None:
    never = {"socket", "connect", "execve", "ptrace", "kill", "capset", "seccomp", "landlock_restrict_self"}
    for rules in RULES.values():
        assert not never & {rule.call for rule in rules}
    assert not {"openat", "open", "close", "clone", "dup2", "fcntl", "ioctl"} & {rule.call for rule in RULES["repl"]}


def test_a_filter_above_the_kernels_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="the kernel accepts at most 4096"):
        assemble_filter(X86_64, [Rule("read")] * 3000)


@pytest.mark.parametrize(
    ("machine", "header"),
    [
        (X86_64, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
        (AARCH64, "/usr/include/asm-generic/unistd.h"),
    ],
    ids=["x86_64", "aarch64"],
)
def test_call_numbers_match_the_kernels_headers(machine: Machine, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    result = re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", Path(header).read_text())
    numbers = {name: int(number) for name, number in reversed(result)}
    numbers["newfstatat"] = numbers.get("newfstatat", numbers.get("fstatat", -1))
    assert {call: numbers.get(call) for call in machine.numbers} == dict(machine.numbers)


def test_landlock_rights_match_the_kernels_version() -> None:
    assert [profiles.file_rights(version).bit_length() for version in range(1, 8)] == [13, 14, 15, 15, 16, 16, 16]
    assert [len(profiles.pack_ruleset(version)) for version in range(1, 8)] == [8, 8, 8, 16, 16, 24, 24]
    links_and_devices = profiles.MAKE_SYM | profiles.MAKE_SOCK | profiles.MAKE_FIFO
    assert not profiles.WRITE & (links_and_devices | profiles.EXECUTE)
