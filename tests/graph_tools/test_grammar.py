"""Random spellings and near misses: what is fused gives the same numbers, and nothing raises.

``ORTFLASH_GRAMMAR_EXAMPLES`` sets how many are tried (300 in ``make test``, 5,000 in ``make nightly``).
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter

import numpy as np
import pytest
from grammar import Spelling, mutate, spell
from graphs import run
from hypothesis import given, settings
from hypothesis import strategies as st

from ortflash.graph_tools.edits import SiteEdit
from ortflash.graph_tools.errors import InvalidModelError
from ortflash.graph_tools.find import Analysis
from ortflash.graph_tools.rewrite import apply_edits

EXAMPLES = int(os.environ.get("ORTFLASH_GRAMMAR_EXAMPLES", "300"))
TOLERANCE = 1e-4


class Dice:
    """Numbers below a bound, from a seed: hypothesis shrinks the seed's draws no further, but replays them."""

    def __init__(self, number: int) -> None:
        self._rng = np.random.default_rng(number)

    def __call__(self, bound: int) -> int:
        return int(self._rng.integers(bound))


def check(out: Spelling, *, mutated: bool = False) -> str:
    """Fuse and compare; returns what became of it.

    A NaN of the original has to be 0. A mutation may make NaN out of query or key (the root of a negative number), with
    which a guard and the op deal differently, and graphs that aren't valid: neither says anything about the rules.
    """
    graph = out.model()
    before = graph.SerializeToString(deterministic=True)
    analysis = Analysis(graph)
    edits = [edit for site in analysis.sites if isinstance(edit := analysis.edit(site), SiteEdit)]
    assert graph.SerializeToString(deterministic=True) == before
    assert mutated or not any(site.refusal and site.refusal.rule == "malformed" for site in analysis.sites)
    if not edits:
        return "refused" if analysis.sites else "no site"
    try:
        expected = run(graph, out.feed)
    except Exception:  # a mutation that ONNX Runtime doesn't run
        return "invalid"
    apply_edits(graph, edits)
    for one, other in zip(expected, run(graph, out.feed), strict=True):
        assert one.shape == other.shape
        wanted = one.astype(np.float64)
        if not mutated:
            wanted = np.where(np.isnan(wanted), 0, wanted)
        finite = np.isfinite(wanted) & ~(mutated & np.isnan(other.astype(np.float64)))
        scale = max(1.0, float(np.abs(wanted[finite]).max(initial=0.0)))
        assert np.abs(other.astype(np.float64) - wanted)[finite].max(initial=0.0) <= TOLERANCE * scale
    return "fused"


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32 - 1))
def test_random_spellings_give_the_same_numbers(number: int) -> None:
    check(spell(Dice(number)))


@settings(max_examples=EXAMPLES)
@given(st.integers(0, 2**32 - 1))
def test_near_misses_are_refused_or_give_the_same_numbers(number: int) -> None:
    dice = Dice(number)
    out = spell(dice)
    for _ in range(1 + dice(2)):
        mutate(out, dice)
    with contextlib.suppress(InvalidModelError):  # a cycle
        check(out, mutated=True)


def test_most_spellings_are_fused() -> None:
    """The grammar holds what the rules know, so little of it may be refused."""
    fates = Counter(check(spell(Dice(number))) for number in range(60))
    assert fates["fused"] >= 45, fates


@pytest.mark.parametrize("number", range(3))
def test_the_dice_replay(number: int) -> None:
    first, second = spell(Dice(number)).model(), spell(Dice(number)).model()
    assert first.SerializeToString(deterministic=True) == second.SerializeToString(deterministic=True)
