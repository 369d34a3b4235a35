"""Every family that :mod:`export_zoo` can export, by name."""

from __future__ import annotations

import zoo_diffusion  # noqa: F401  # each registers its families
import zoo_speech  # noqa: F401
import zoo_text  # noqa: F401
import zoo_vision  # noqa: F401
from zoo_family import FAMILIES, SEQ, Example, Family

__all__ = ["FAMILIES", "SEQ", "Example", "Family"]
