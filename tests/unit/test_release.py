"""A release: what is in the sdist and the wheel, and that the installed wheel does what README promises first."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CONFIG = tomllib.loads((ROOT / "pyproject.toml").read_text())
VERSION = CONFIG["project"]["version"]
PACKAGES = [ROOT / name for name in CONFIG["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]]


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an sdist, and the wheel that was built from it. Nothing is downloaded."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    assert sorted(path.name for path in folder.iterdir()) == [
        f"oven_controller-{VERSION}-py3-none-any.whl",
        f"oven_controller-{VERSION}.tar.gz",
    ]
    return folder


@pytest.fixture(scope="module")
def wheel(dist: Path) -> Path:
    return next(dist.glob("*.whl"))


def run(command: list[str | Path], folder: Path = ROOT) -> str:
    """Run a command without this checkout on its path, and return its output."""
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" and not name.startswith("OVEN_")}
    result = subprocess.run(command, cwd=folder, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert result.returncode == 0, result.stdout
    return result.stdout


def package_files(package: Path) -> dict[str, bytes]:
    """Return the package's files by their path in a wheel: code, data files and py.typed."""
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package.parent)): path.read_bytes() for path in files}


def test_the_wheel_holds_every_file_of_every_package_and_nothing_else(wheel: Path) -> None:
    expected = {name: data for package in PACKAGES for name, data in package_files(package).items()}
    with zipfile.ZipFile(wheel) as archive:
        contents = {name: archive.read(name) for name in archive.namelist()}
    info = f"oven_controller-{VERSION}.dist-info"
    metadata = {name: data for name, data in contents.items() if name.startswith(f"{info}/")}
    assert {name: data for name, data in contents.items() if name not in metadata} == expected
    assert {f"{package.name}/py.typed" for package in PACKAGES} <= contents.keys()
    assert metadata[f"{info}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    assert "oven-controller = oven_controller.cli.console_script:run" in metadata[f"{info}/entry_points.txt"].decode()


def test_the_sdist_holds_what_a_wheel_and_the_tests_need(dist: Path) -> None:
    with tarfile.open(dist / f"oven_controller-{VERSION}.tar.gz") as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers()}
    expected = {str(path.relative_to(ROOT)) for package in PACKAGES for path in package.rglob("*.py")}
    expected |= {"LICENSE", "README.md", "CHANGELOG.md", "AGENTS.md", "pyproject.toml", "Makefile", "tests/conftest.py"}
    assert expected - names == set()
    assert not [name for name in names if name.startswith((".venv/", "dist/", "site/")) or "__pycache__" in name]


def test_twine_accepts_both_files(dist: Path) -> None:
    assert run([sys.executable, "-m", "twine", "check", "--strict", *sorted(dist.iterdir())]).count("PASSED") == 2


def test_the_changelog_has_a_section_for_the_version() -> None:
    assert f"\n## {VERSION} " in (ROOT / "CHANGELOG.md").read_text()


def test_the_workflow_is_valid() -> None:
    workflow = ROOT / ".github" / "workflows" / "release.yml"
    run([Path(sys.executable).with_name("check-jsonschema"), "--builtin-schema", "vendor.github-workflows", workflow])


def test_the_installed_wheel_reviews_a_log_as_the_readme_shows(wheel: Path, tmp_path: Path) -> None:
    """The environment holds the wheel alone. It reads the dependencies, but not this checkout, from the tests' own."""
    environment = tmp_path / "env"
    venv.create(environment, with_pip=False)
    python = environment / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel])
    site_packages = Path(run([python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]).strip())
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    # A .pth file in a folder that a .pth file names is not read, so the editable install stays out of sight.
    code = "import oven_controller, oven_core; print(oven_controller.__file__, oven_core.__file__)"
    assert str(ROOT) not in run([python, "-c", code], tmp_path)

    write = "import sys; sys.path.insert(0, sys.argv[1]); import example_runs; from pathlib import Path; "
    write += "next(run for run in example_runs.RUNS if run.kind == 'overfit').write_text(Path('train.log'))"
    run([python, "-c", write, ROOT / "docs"], tmp_path)
    program = environment / "bin" / "oven-controller"
    printed = run([program, "review", "train.log"], tmp_path)
    readme = (ROOT / "README.md").read_text().partition("<!-- generated: review-short -->")[2].partition("<!-- end -->")
    finding = readme[0].partition("act: ")[2].partition("\n```")[0]
    assert finding and finding in printed
    help_text = run([program, "--help"], tmp_path)
    assert all(name in help_text for name in ("review", "propose", "monitor"))
    assert run([program, "--version"], tmp_path).strip() == VERSION
