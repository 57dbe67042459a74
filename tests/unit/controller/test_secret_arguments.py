"""Secrets in the command-line arguments of a process are overwritten, with and without a scheme."""

import subprocess
import sys

import pytest

CODE = """
import sys
from pathlib import Path
from oven_runs.process.secret_arguments import conceal
assert conceal(sys.argv[1:])
print(Path("/proc/self/cmdline").read_text())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc/self/mem")
def test_secrets_are_overwritten() -> None:
    secrets = ["https://host/token", "plain-token"]
    output = subprocess.run([sys.executable, "-c", CODE, *secrets], capture_output=True, text=True, check=True).stdout
    assert output.strip().rstrip("\0").split("\0")[-2:] == ["https://**********", "***********"]
