"""Attention that can be fused, spelled by hand in the ways that exporters and optimizers were seen to spell it.

Each is the smallest graph that holds its spelling; :mod:`traps` holds the graphs that must be left alone.

    python models/spellings.py OUT      writes them as .onnx with inputs as .npz
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import spellings_layouts  # noqa: F401  # each registers its spellings
import spellings_places  # noqa: F401
import spellings_scores  # noqa: F401
from spelling import SPELLINGS, Spelling

__all__ = ["SPELLINGS", "Spelling"]


def main(out: Path) -> None:
    """Write every spelling into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for name, spelling in SPELLINGS.items():
        onnx.save(spelling.model, out / f"{name}.onnx")
        np.savez(out / f"{name}.npz", **spelling.inputs)  # type: ignore[arg-type]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
