"""Dropout: the generator against its authors' answers, every implementation against the mask, the mask's statistics."""

from __future__ import annotations

import math

import numpy as np
import pytest
from cases import Array, AttentionCase

from ortflash import core, dropout

IMPLEMENTATIONS = core.library().implementations("cpu")
SEED = np.array([-123456789012345, 987654321], np.int64)


# ---------------------------------------------------------------------------------------------------- generator
@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_gives_the_known_answers(
    counter: tuple[int, int, int, int], key: tuple[int, int], words: tuple[int, int, int, int]
) -> None:
    """Answers published with the generator (Random123's kat_vectors, philox4x32 with 10 rounds)."""
    assert tuple(int(word) for word in dropout.philox(counter, key)) == words


# ------------------------------------------------------------------------------------------------- every kernel
@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("rows", [3, 97])
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_the_mask_is_the_same_bit_for_bit(implementation: str, rows: int, dropout_p: float) -> None:
    """Equal scores and the unit matrix as values: the output is the mask."""
    batch, heads, columns = 2, 3, 101
    query = np.zeros((batch, heads, rows, 8), np.float32)
    key = np.zeros((batch, heads, columns, 8), np.float32)
    value = np.broadcast_to(np.eye(columns, dtype=np.float32), (batch, heads, columns, columns)).copy()
    output, lse = core.attention(
        query, key, value, dropout_seed=SEED, dropout_p=dropout_p, return_lse=1, implementation=implementation
    )
    assert lse is not None
    for b in range(batch):
        for n in range(heads):
            keep = dropout.keep_mask(int(SEED[0]), int(SEED[1]), dropout_p, b, n, rows, columns)
            np.testing.assert_array_equal(output[b, n] != 0, keep)
            np.testing.assert_allclose(output[b, n][keep], 1 / columns / (1 - dropout_p), rtol=1e-5)
    np.testing.assert_allclose(lse, math.log(columns), rtol=1e-6)  # knows nothing of the dropout


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_rate_of_0_changes_no_bit(implementation: str) -> None:
    inputs = AttentionCase("plain", q_len=70, kv_len=90).make_inputs()
    plain, _ = core.attention(**inputs, implementation=implementation)
    off, _ = core.attention(**inputs, dropout_seed=SEED, dropout_p=0.0, implementation=implementation)
    np.testing.assert_array_equal(plain, off)


# --------------------------------------------------------------------------------------------------- statistics
def masks(dropout_p: float, *, seed: int = 5, offset: int = 0) -> Array:
    """Masks of 2 batches and 3 heads, 256 x 512 each."""
    return np.array([[dropout.keep_mask(seed, offset, dropout_p, b, n, 256, 512) for n in range(3)] for b in range(2)])


def correlation_in_sigmas(left: Array, right: Array, dropout_p: float) -> float:
    """How far the correlation of two masks is from that of independent ones."""
    centred = (left - (1 - dropout_p)) * (right - (1 - dropout_p)) / (dropout_p * (1 - dropout_p))
    return abs(float(centred.mean())) * math.sqrt(centred.size)


@pytest.mark.parametrize("dropout_p", [0.05, 0.1, 0.5, 0.75])
def test_the_rate_is_right_everywhere(dropout_p: float) -> None:
    drawn = masks(dropout_p)
    sigma = math.sqrt(dropout_p * (1 - dropout_p))
    for axes in ((0, 1, 2, 3), (2, 3), (0, 1, 3), (0, 1, 2)):  # overall; each head, row and column by itself
        kept = drawn.mean(axis=axes)
        count = drawn.size / kept.size
        assert np.abs(kept - (1 - dropout_p)).max() < 5 * sigma / math.sqrt(count)


@pytest.mark.parametrize("dropout_p", [0.1, 0.5])
def test_neighbours_are_independent(dropout_p: float) -> None:
    drawn = masks(dropout_p)
    for lag in (1, 2, 3, 4, 7, 8, 16):
        assert correlation_in_sigmas(drawn[..., lag:], drawn[..., :-lag], dropout_p) < 5, f"columns {lag} apart"
        assert correlation_in_sigmas(drawn[..., lag:, :], drawn[..., :-lag, :], dropout_p) < 5, f"rows {lag} apart"
    assert correlation_in_sigmas(drawn[:, 1:], drawn[:, :-1], dropout_p) < 5, "heads"
    assert correlation_in_sigmas(drawn[1:], drawn[:-1], dropout_p) < 5, "batches"


def test_seeds_and_offsets_give_independent_masks() -> None:
    drawn = masks(0.5)
    for other in (masks(0.5, seed=6), masks(0.5, offset=1), masks(0.5, offset=1 << 40), masks(0.5, seed=5 - (1 << 63))):
        assert correlation_in_sigmas(drawn, other, 0.5) < 5
    assert correlation_in_sigmas(drawn, drawn, 0.5) > 100  # the yardstick sees a mask that is the same


# ------------------------------------------------------------------------------------------------------- errors
@pytest.mark.parametrize(
    ("dropout_p", "seed", "message"),
    [
        (0.5, None, r"dropout_p is 0.5, but dropout_seed \(2,\) is not given"),
        (1.0, SEED, r"dropout_p is 1; it must be at least 0 and less than 1"),
        (-0.1, SEED, r"dropout_p is -0.1; it must be"),
        (math.nan, SEED, r"dropout_p is nan; it must be"),
        (0.5, SEED[:1], r"dropout_seed \[1\] must be \[2\]"),
        (0.5, SEED.astype(np.int32), r"dropout_seed is int32; it must be int64"),
    ],
)
def test_a_wrong_rate_or_seed_is_refused(dropout_p: float, seed: Array | None, message: str) -> None:
    inputs = AttentionCase("wrong", q_len=3).make_inputs()
    with pytest.raises(core.CoreError, match=message):
        core.attention(**inputs, dropout_seed=seed, dropout_p=dropout_p)
