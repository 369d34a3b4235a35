"""Runs a compiler and fails where ptxas says that it made a kernel slow. The build's CUDA compiler launcher.

    python3 ptxas_guard.py COMPILER ARGUMENTS...

Refused: spilled registers; serialised wgmma (C7510 to C7514, C7520), an ignored setmaxnreg (C7508), injected waits and
arrives (C7517, C7519). Each is a mistake in a tile size or in the order of products, and none fails a build by itself.
"""

from __future__ import annotations

import re
import subprocess
import sys

REFUSED = re.compile(r"\(C75\d\d\)|[1-9]\d* bytes spill")


def main() -> int:
    """Passes everything on but ptxas' reports of kernels that are as they should be."""
    done = subprocess.run(sys.argv[1:], stderr=subprocess.PIPE, text=True, check=False)
    lines = done.stderr.splitlines()
    refused = [line for line in lines if REFUSED.search(line)]
    report = re.compile(r"ptxas info|bytes stack frame|^$")
    print(*(line for line in lines if line in refused or not report.search(line)), sep="\n", end="", file=sys.stderr)
    if refused:
        print("\nortflash: ptxas reports a slow kernel (above); see sm90/README.md", file=sys.stderr)
    return done.returncode or bool(refused)


if __name__ == "__main__":
    sys.exit(main())
