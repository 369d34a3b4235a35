#!/usr/bin/env python3
"""Bring ONNX Runtime's C headers (API version 21) into a folder, without root.

The project builds against the oldest ONNX Runtime that it supports, so that one library runs on it and on everything
newer. Two places have those headers: the official release archive, and Debian's package ``libonnxruntime-dev``, which
is taken from the mirror that this machine's own apt is configured for. Nothing is installed on the machine: apt works
in a folder of its own.

Usage: ``fetch_onnxruntime_headers.py OUT``. Does nothing where OUT already has the headers. On failure it exits 1 with
one sentence that says what to install or to set.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
from collections.abc import Callable
from pathlib import Path

API_VERSION = 21
RELEASE = f"1.{API_VERSION}.0"
ARCHIVE_URL = (
    f"https://github.com/microsoft/onnxruntime/releases/download/v{RELEASE}/onnxruntime-linux-x64-{RELEASE}.tgz"
)
CONNECT_TIMEOUT_S = 5
DEBIAN_SUITE = "trixie"  # the Debian release whose libonnxruntime-dev is 1.21
DEBIAN_PACKAGE = "libonnxruntime-dev"
DEBIAN_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
HEADER = "onnxruntime_c_api.h"


class UnavailableError(Exception):
    """This place does not have the headers; the message says why in a few words."""


def api_version(folder: Path) -> int:
    """``ORT_API_VERSION`` of the headers in ``folder``; 0 where there are none."""
    header = folder / HEADER
    if not header.is_file():
        return 0
    match = re.search(r"^#define ORT_API_VERSION (\d+)", header.read_text(encoding="utf-8"), re.MULTILINE)
    return int(match[1]) if match else 0


def from_release_archive(out: Path) -> None:
    """Unpack ``include/*.h`` of the official release archive into ``out``."""
    try:
        with urllib.request.urlopen(ARCHIVE_URL, timeout=CONNECT_TIMEOUT_S) as response:
            data = response.read()
    except OSError as error:
        raise UnavailableError(f"the release archive cannot be downloaded ({error})") from error
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for member in archive.getmembers():
            path = Path(member.name)
            source = archive.extractfile(member) if path.suffix == ".h" and path.parent.name == "include" else None
            if source:
                (out / path.name).write_bytes(source.read())


def from_debian_mirror(out: Path) -> None:
    """Unpack Debian's ``libonnxruntime-dev`` into ``out``, from each mirror that apt is configured for in turn."""
    if not (shutil.which("apt-get") and shutil.which("dpkg-deb")):
        raise UnavailableError("this machine has no apt")
    listing = run(["apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"])
    mirrors = list(dict.fromkeys(line.strip() for line in listing.splitlines() if line.strip()))
    if not mirrors:
        raise UnavailableError("apt has no mirror configured")
    for mirror in mirrors:
        with tempfile.TemporaryDirectory() as folder:
            try:
                package = download_from_mirror(mirror, Path(folder))
            except UnavailableError:
                continue
            run(["dpkg-deb", "-x", str(package), folder])
            for header in (Path(folder) / "usr/include/onnxruntime").glob("*.h"):
                shutil.copy(header, out)
            return
    raise UnavailableError(f"none of apt's {len(mirrors)} mirrors has Debian {DEBIAN_SUITE}'s {DEBIAN_PACKAGE}")


def download_from_mirror(mirror: str, folder: Path) -> Path:
    """Download the package with an apt that reads and writes nothing outside ``folder``; return its path."""
    signed = f"[signed-by={DEBIAN_KEYRING}] " if DEBIAN_KEYRING.exists() else ""
    (folder / "sources.list").write_text(f"deb {signed}{mirror} {DEBIAN_SUITE} main\n")
    (folder / "status").touch()
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    options = {
        "Dir::Etc::SourceList": folder / "sources.list",
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Acquire::Languages": "none",
        "Acquire::Retries": "0",
        "Acquire::http::Timeout": "20",
        "Acquire::https::Timeout": "20",
        "APT::Sandbox::User": "root",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    run([*apt, "--error-on=any", "update"])
    run([*apt, "download", DEBIAN_PACKAGE], cwd=folder)
    packages = list(folder.glob(f"{DEBIAN_PACKAGE}_*.deb"))
    if not packages:
        raise UnavailableError(f"apt downloaded no {DEBIAN_PACKAGE}")
    return packages[0]


def run(command: list[str], cwd: Path | None = None) -> str:
    """Standard output of ``command``; raises :class:`UnavailableError` with its last words where it fails."""
    result = subprocess.run(command, cwd=cwd, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
    if result.returncode != 0:
        words = (result.stderr.strip() or result.stdout.strip() or "no output").splitlines()
        raise UnavailableError(f"{command[0]} failed ({words[-1]})")
    return result.stdout


def fetch(out: Path) -> str | None:
    """Fill ``out`` from the first place that works; return ``None``, or the sentence that says what to do."""
    places: dict[str, Callable[[Path], None]] = {
        "the release archive": from_release_archive,
        "Debian's package": from_debian_mirror,
    }
    reasons = []
    for name, place in places.items():
        with tempfile.TemporaryDirectory() as staging:
            try:
                place(Path(staging))
            except UnavailableError as reason:
                reasons.append(str(reason))
                continue
            found = api_version(Path(staging))
            if found != API_VERSION:
                reasons.append(f"{name} has headers of API version {found}")
                continue
            shutil.copytree(staging, out, dirs_exist_ok=True)
            return None
    return (
        f"ONNX Runtime's C headers (API version {API_VERSION}, release {RELEASE}) were not found: "
        f"{'; '.join(reasons)}: install {DEBIAN_PACKAGE} {RELEASE} or set ONNXRUNTIME_INCLUDE_DIR to the folder that "
        f"has {HEADER}."
    )


def main() -> int:
    """Run the command line; see the module's docstring."""
    if len(sys.argv) != 2:
        print("usage: fetch_onnxruntime_headers.py OUT", file=sys.stderr)
        return 2
    out = Path(sys.argv[1])
    problem = None if api_version(out) == API_VERSION else fetch(out)
    if problem:
        print(problem, file=sys.stderr)
    return 1 if problem else 0


if __name__ == "__main__":
    sys.exit(main())
