"""The wheel: what is in it, and that it works in a fresh environment that has no compiler."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that these tests run on, where setup_venv.sh has built it (as in CI); else one for the CPU alone."""
    if os.environ.get("ORTFLASH_INSTALL") == "wheel":
        (built,) = (ROOT / "dist").glob("*.whl")
        return built
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-build-isolation", "--no-deps", "-w", str(folder), "."]
    options = ["-C", "cmake.define.ORTFLASH_CUDA=OFF", "-C", f"build-dir={folder / 'build'}"]
    subprocess.run([*command, *options], cwd=ROOT, check=True)
    (built,) = folder.glob("*.whl")
    return built


def test_one_wheel_serves_every_python_of_a_platform(wheel: Path) -> None:
    assert re.fullmatch(r"ortflash-[\w.]+-py3-none-linux_\w+\.whl", wheel.name)


def test_the_wheel_holds_the_packages_and_the_libraries(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    sources = {f"ortflash/{path.relative_to(ROOT / 'ortflash')}" for path in (ROOT / "ortflash").rglob("*.py")}
    sources |= {f"ortflash/{path.relative_to(ROOT)}" for path in (ROOT / "graph_tools").rglob("*.py")}
    cuda = any(name.endswith("libortflash_trt.so") for name in names)
    built = ("ort", "core", "trt", "trt8", "trt_register") if cuda else ("ort", "core")
    libraries = {f"ortflash/lib/libortflash_{name}.so" for name in built}
    others = {"ortflash/py.typed", "ortflash/graph_tools/flash_attention.toml"}
    assert sources | libraries | others == {name for name in names if ".dist-info/" not in name}


def test_the_wheel_is_as_small_and_as_old_as_the_readme_says(wheel: Path) -> None:
    """README: at most so many MB, from that glibc on; libstdc++ is in the libraries."""
    said = re.search(r"at most (\d+) MB.*?glibc (2\.\d+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    assert said is not None
    assert wheel.stat().st_size <= int(said[1]) * 1_000_000
    with zipfile.ZipFile(wheel) as archive:
        libraries = b"".join(archive.read(name) for name in archive.namelist() if name.endswith(".so"))
    versions = {(int(major), int(minor)) for major, minor in re.findall(rb"GLIBC_(\d+)\.(\d+)", libraries)}
    assert max(versions) <= tuple(map(int, said[2].split(".")))
    assert b"GLIBCXX_" not in libraries


def test_the_wheel_works_where_nothing_can_be_compiled(wheel: Path, tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    environment = {"PATH": str(venv / "bin"), "HOME": str(tmp_path)}
    subprocess.run([venv / "bin/pip", "install", "-q", f"{wheel}[cpu]"], check=True)
    doctor = subprocess.run(
        [venv / "bin/ortflash", "doctor"], env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    assert str(venv) in doctor.stdout.replace("\n", "")
