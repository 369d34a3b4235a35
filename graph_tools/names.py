"""Names that a model doesn't have yet."""

from __future__ import annotations


class Names:
    """Hands out new names; each is taken from then on."""

    def __init__(self, taken: set[str]) -> None:
        self._taken = taken

    def fresh(self, wanted: str) -> str:
        """``wanted``, or ``wanted_2``, ``wanted_3``, ... where that is taken."""
        name, number = wanted, 1
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name
