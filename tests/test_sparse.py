"""Block-sparse patterns: what each keeps, that kernels agree with an explicit mask, and that the matcher sees them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from cases import AttentionCase

from ortflash import core, sparse
from ortflash.errors import OrtflashError
from ortflash.graph_tools.find import Analysis

LENGTH, BLOCK = 1024, 32
PATTERNS: dict[str, Callable[[int, int], sparse.BlockMask]] = {
    "sliding_window": lambda s, t: sparse.sliding_window(s, t, BLOCK, left=100, right=20),
    "dilated": lambda s, t: sparse.dilated(s, t, BLOCK, window=2, dilation=3),
    "bigbird": lambda s, t: sparse.bigbird(s, t, BLOCK),
    "longformer": lambda s, t: sparse.longformer(s, t, BLOCK, window=128, global_tokens=(0, 500)),
    "strided": lambda s, t: sparse.strided(s, t, BLOCK, stride=4),
    "butterfly": lambda s, t: sparse.butterfly(s, t, BLOCK),
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(LENGTH, LENGTH), (300, 517), (1, 1), (40, 5000)])
def test_a_pattern_has_one_element_a_block(name: str, q_len: int, kv_len: int) -> None:
    mask = PATTERNS[name](q_len, kv_len)
    assert mask.dtype == np.bool_
    assert mask.shape == (-(-q_len // BLOCK), -(-kv_len // BLOCK))


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_is_sparse_and_keeps_the_diagonal(name: str) -> None:
    mask = PATTERNS[name](LENGTH, LENGTH)
    assert mask.diagonal().all()
    assert sparse.density(mask) < 0.5


def test_a_window_keeps_exactly_the_blocks_that_a_row_reaches() -> None:
    rows, columns = np.arange(300)[:, None], np.arange(517)[None, :]
    seen = (columns >= rows - 100) & (columns <= rows + 20)
    padded = np.zeros((320, 544), bool)
    padded[:300, :517] = seen
    blocks = padded.reshape(10, 32, 17, 32).any(axis=(1, 3))
    np.testing.assert_array_equal(PATTERNS["sliding_window"](300, 517), blocks)


def test_patterns_of_their_papers() -> None:
    # Child et al., figure 3b: the last `stride`, and every stride-th before.
    assert np.flatnonzero(sparse.strided(10, 10, 1, stride=3)[8]).tolist() == [2, 5, 6, 7, 8]
    # Neighbours in a hypercube.
    assert np.flatnonzero(sparse.butterfly(8, 8, 1)[5]).tolist() == [1, 4, 5, 7]
    assert np.flatnonzero(sparse.butterfly(8, 8, 1, max_stride=2)[5]).tolist() == [4, 5]
    assert np.flatnonzero(sparse.dilated(20, 20, 1, window=2, dilation=3)[10]).tolist() == [4, 7, 10, 13, 16]
    longformer = sparse.longformer(64, 64, 8, window=16, global_tokens=(20,))
    assert longformer[2].all()
    assert longformer[:, 2].all()


def test_bigbird_has_its_window_its_global_and_its_random_blocks() -> None:
    mask = sparse.bigbird(4096, 4096, 64, window=3, global_blocks=2, random_blocks=3)
    assert mask[:2].all()
    assert mask[:, :2].all()
    assert set(mask[3:-1].sum(1)) == {3 + 2 + 3}
    np.testing.assert_array_equal(mask, sparse.bigbird(4096, 4096, 64))
    assert not np.array_equal(mask, sparse.bigbird(4096, 4096, 64, seed=1))


@pytest.mark.parametrize("name", PATTERNS)
def test_the_kernels_agree_with_the_same_pattern_as_elements(name: str) -> None:
    case = AttentionCase("sparse", q_len=300, kv_len=517, head_size=16)
    inputs = case.make_inputs()
    blocks = PATTERNS[name](300, 517)
    output, lse = core.attention(**inputs, block_mask=blocks, block_size=BLOCK, return_lse=1)
    elements = sparse.to_elements(blocks, 300, 517, BLOCK)
    expected, expected_lse = core.attention(**inputs, attn_mask=elements, return_lse=1)
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    assert lse is not None
    assert expected_lse is not None
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-5)


def model_with_mask(mask: Any) -> onnx.ModelProto:
    """``softmax(where(mask, q k^T, -3e38)) v`` with a constant mask of elements (S,T)."""
    length = mask.shape[0]
    text = f"""
        <ir_version: 8, opset_import: ["" : 17]>
        attention (float[1,2,{length},16] q, float[1,2,16,{length}] k, float[1,2,{length},16] v)
            => (float[1,2,{length},16] y)
        {{
            fill = Constant <value = float {{-3e38}}> ()
            s = MatMul(q, k)
            kept = Where(mask, s, fill)
            p = Softmax <axis = -1> (kept)
            y = MatMul(p, v)
        }}
    """
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(mask, "mask"))
    return model


@pytest.mark.parametrize("name", PATTERNS)
def test_a_constant_mask_of_a_pattern_is_proved_to_be_one(name: str) -> None:
    """A model that spells the pattern element by element gets the block mask without being told."""
    blocks = PATTERNS[name](LENGTH, LENGTH)
    elements = sparse.to_elements(blocks, LENGTH, LENGTH, BLOCK)
    (site,) = Analysis(model_with_mask(elements)).sites
    assert site.form is not None, site.refusal
    assert site.form.block_mask is not None
    kept = sparse.to_elements(site.form.block_mask, LENGTH, LENGTH, site.form.block_size)
    assert (kept | ~elements).all()  # nothing that takes part is left out
    assert kept.mean() < 1.5 * elements.mean()  # larger blocks are taken where they leave out nearly as much


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: sparse.sliding_window(-5, 10, left=3), "q_len is -5; it must be a whole number of 0 or more"),
        (lambda: sparse.sliding_window(5, 10.5, left=3), "kv_len is 10.5"),  # type: ignore[arg-type]
        (lambda: sparse.sliding_window(5, 10, 0, left=3), "block_size is 0; it must be a whole number of 1 or more"),
        (lambda: sparse.sliding_window(5, 10, left=-3), "left is -3"),
        (lambda: sparse.dilated(500, 500, window=2, dilation=0), "dilation is 0"),
        (lambda: sparse.bigbird(500, 500, random_blocks=-1), "random_blocks is -1"),
        (lambda: sparse.bigbird(500, 500, seed=-1), "seed is -1"),
        (lambda: sparse.longformer(500, 500, window=-1), "window is -1"),
        (lambda: sparse.longformer(500, 500, window=1, global_tokens=(-1,)), "global_tokens is -1"),
        (lambda: sparse.strided(500, 500, stride=0), "stride is 0"),
        (lambda: sparse.butterfly(500, 500, max_stride=-4), "max_stride is -4"),
        (lambda: sparse.to_elements(np.ones((2, 2), bool), 500, 500, 128), r"has shape \(2, 2\); .* \(..., 4, 4\)"),
        (lambda: sparse.to_elements(np.ones(4, bool), 500, 500, 128), r"has shape \(4,\)"),
    ],
)
def test_sizes_that_make_no_pattern_are_one_sentence(call: Callable[[], object], message: str) -> None:
    with pytest.raises(OrtflashError, match=message):
        call()


def test_no_tokens_have_no_blocks() -> None:
    assert sparse.bigbird(0, 0).shape == (0, 0)
    assert sparse.density(sparse.butterfly(0, 300)) == 0.0
