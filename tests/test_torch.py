"""ortflash.torch on the CPU: values and gradients against PyTorch's own, dropout, both exporters."""

from __future__ import annotations

import inspect
import math
import warnings
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import ortflash
from ortflash import core, dropout
from ortflash.attributes import Attributes
from ortflash.graph_tools.op_schema import schema

torch: Any = pytest.importorskip("torch", reason="ortflash.torch needs PyTorch: pip install 'ortflash[torch]'")
flash_attention = pytest.importorskip("ortflash.torch").flash_attention


def draw(*shape: int, dtype: Any = None, grad: bool = True) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    drawn = torch.randn(*shape, generator=generator).to(dtype or torch.float32)
    return drawn.requires_grad_(grad)


def check_against(expected: Any, actual: Any, tensors: list[Any], tolerance: float) -> None:
    """Values, and gradients of every tensor for the same gradient that comes in."""
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)
    incoming = torch.randn_like(expected)
    wanted = torch.autograd.grad(expected, tensors, incoming)
    given = torch.autograd.grad(actual, tensors, incoming)
    for one, other in zip(given, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def unfused(query: Any, key: Any, value: Any, bias: Any) -> Any:
    """softmax(query key^T / sqrt(D) + bias) value; grouped heads repeated."""
    group = query.shape[1] // key.shape[1]
    key, value = (tensor.repeat_interleave(group, 1) for tensor in (key, value))
    scores = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1]) + bias
    return scores.softmax(-1) @ value


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_values_and_gradients_are_pytorch_s(kv_heads: int) -> None:
    query, key, value = draw(2, 4, 33, 24), draw(2, kv_heads, 50, 24), draw(2, kv_heads, 50, 40)
    bias = draw(1, 4, 33, 50)
    causal = torch.full((33, 50), -torch.inf).triu(1)
    expected = unfused(query, key, value, bias + causal)
    actual = flash_attention(query, key, value, bias, is_causal=True)
    check_against(expected, actual, [query, key, value, bias], 1e-5)


@pytest.mark.parametrize("reduce", ["sum", "row sums", "transposed"])
def test_an_incoming_gradient_may_have_any_strides(reduce: str) -> None:
    """It is expanded after a sum and strided after a transposed use: then it is copied, and the copy has to live on."""
    query, key, value, weight = draw(1, 2, 5, 8), draw(1, 2, 9, 8), draw(1, 2, 9, 8), draw(5, 3)
    uses = {
        "sum": lambda output: output.sum(),
        "row sums": lambda output: output.sum(-1),
        "transposed": lambda output: output.transpose(-1, -2) @ weight.detach(),
    }
    expected = uses[reduce](unfused(query, key, value, 0.0))
    actual = uses[reduce](flash_attention(query, key, value))
    check_against(expected, actual, [query, key, value], 1e-5)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types(dtype: str) -> None:
    query, key, value = (draw(1, 2, 40, 16, dtype=getattr(torch, dtype)) for _ in range(3))
    wide = [tensor.detach().float().requires_grad_() for tensor in (query, key, value)]
    expected = unfused(wide[0], wide[1], wide[2], 0.0).sum()
    actual = flash_attention(query, key, value).float().sum()
    for one, other in zip(
        torch.autograd.grad(actual, [query, key, value]), torch.autograd.grad(expected, wide), strict=True
    ):
        assert one.dtype == query.dtype
        torch.testing.assert_close(one.float(), other, rtol=0.05, atol=0.05)


def test_any_strides_and_expanded_tensors_are_read() -> None:
    packed = draw(2, 33, 3, 4, 16)  # query, key and value side by side, heads last
    query, key, value = packed.permute(2, 0, 3, 1, 4)
    bias = draw(1, 1, 1, 33)
    expanded = bias.expand(2, 4, 33, 33)
    check_against(unfused(query, key, value, bias), flash_attention(query, key, value, expanded), [packed, bias], 1e-5)
    flat = [tensor.transpose(1, 2).reshape(2, 33, 64) for tensor in (query, key, value)]
    packed_output = flash_attention(*flat, num_heads=4, kv_num_heads=4)
    torch.testing.assert_close(
        packed_output.view(2, 33, 4, 16).transpose(1, 2), unfused(query, key, value, 0.0), rtol=1e-5, atol=1e-5
    )


def test_masks_lengths_and_sinks() -> None:
    query, key, value = (draw(2, 2, 20, 8) for _ in range(3))
    mask = torch.rand(2, 1, 20, 20) < 0.7
    mask[:, :, 3] = False
    lengths = torch.tensor([20, 11], dtype=torch.int32)
    sinks = draw(2)
    seen = mask & (torch.arange(20) < lengths[:, None, None, None])
    scores = (query @ key.transpose(-1, -2) / math.sqrt(8)).masked_fill(~seen, -torch.inf)
    with_sink = torch.cat([scores, sinks.view(1, 2, 1, 1).expand(2, 2, 20, 1)], -1).softmax(-1)[..., :-1]
    actual = flash_attention(query, key, value, attn_mask=mask, key_lengths=lengths, sinks=sinks)
    check_against(with_sink @ value, actual, [query, key, value, sinks], 1e-5)
    gradients = torch.autograd.grad(flash_attention(query, key, value, attn_mask=mask).sum(), [query, key, value])
    assert not any(gradient.isnan().any() for gradient in gradients)
    assert gradients[0][:, :, 3].count_nonzero() == 0


# -------------------------------------------------------------------------------------------------------- dropout
def test_dropout_is_the_mask_of_its_seed() -> None:
    query, key, value = (draw(2, 3, 33, 16) for _ in range(3))
    seed = torch.tensor([11, -4])
    keep = np.array([[dropout.keep_mask(11, -4, 0.25, b, n, 33, 33) for n in range(3)] for b in range(2)])
    weights = (query @ key.transpose(-1, -2) / 4).softmax(-1) * torch.from_numpy(keep) / 0.75
    actual = flash_attention(query, key, value, dropout_p=0.25, dropout_seed=seed)
    check_against(weights @ value, actual, [query, key, value], 1e-5)


def test_torch_s_seed_repeats_a_run() -> None:
    query, key, value = (draw(1, 2, 33, 16, grad=False) for _ in range(3))
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(flash_attention(query, key, value, dropout_p=0.5))
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])


# --------------------------------------------------------------------------------------------------------- export
class Block(torch.nn.Module):  # type: ignore[misc]
    """A projection and grouped causal attention with sinks; 3-D inputs where `packed`."""

    def __init__(self, packed: bool) -> None:
        super().__init__()
        self.project = torch.nn.Linear(32, 32 + 16 + 16)
        self.packed = packed
        self.dropout_p = 0.0

    def forward(self, x: Any, sinks: Any) -> Any:
        query, key, value = self.project(x).split([32, 16, 16], -1)
        heads = {"num_heads": 4, "kv_num_heads": 2}
        if not self.packed:
            query, key, value = (tensor.unflatten(-1, (-1, 8)).transpose(1, 2) for tensor in (query, key, value))
            heads = {}
        return flash_attention(query, key, value, sinks=sinks, is_causal=True, dropout_p=self.dropout_p, **heads)


def export(model: Any, path: Path, dynamo: bool) -> onnx.ModelProto:
    inputs = (draw(2, 9, 32, grad=False), draw(4, grad=False))
    sizes: dict[str, Any] = (
        {"dynamic_shapes": ({1: torch.export.Dim("length")}, None)}
        if dynamo
        else {"dynamic_axes": {"x": {1: "length"}}}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's own
        torch.onnx.export(
            model.eval(), inputs, str(path), dynamo=dynamo, input_names=["x", "sinks"], output_names=["y"], **sizes
        )
    return onnx.load(str(path))


@pytest.mark.parametrize("packed", [False, True], ids=["4d", "3d"])
@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
def test_a_call_is_exported_as_one_node(tmp_path: Path, dynamo: bool, packed: bool) -> None:
    model = Block(packed)
    exported = export(model, tmp_path / "model.onnx", dynamo)
    (node,) = (node for node in exported.graph.node if node.op_type == "FlashAttention")
    ortflash.graph_tools.op_schema.check_node(node)
    attributes = ortflash.graph_tools.op_schema.node_attributes(node)
    assert (attributes["is_causal"], attributes["num_heads"], attributes["kv_num_heads"]) == (1, 4, 2)
    assert not any(node.op_type == "Softmax" for node in exported.graph.node)

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    ortflash.register(options)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), options, providers=["CPUExecutionProvider"])
    for length in (9, 70):
        x, sinks = draw(2, length, 32, grad=False), draw(4, grad=False)
        (actual,) = session.run(None, {"x": x.numpy(), "sinks": sinks.numpy()})
        np.testing.assert_allclose(actual, model(x, sinks).detach().numpy(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamo", [False, True], ids=["torchscript", "dynamo"])
def test_dropout_is_not_exported(tmp_path: Path, dynamo: bool) -> None:
    model = Block(packed=True)
    model.dropout_p = 0.1
    with pytest.raises(Exception, match=r"exported with dropout; export model.eval\(\), or pass dropout_p=0"):
        export(model, tmp_path / "model.onnx", dynamo)


# --------------------------------------------------------------------------------------------------------- errors
def test_a_wrong_shape_is_named() -> None:
    with pytest.raises(core.CoreError, match=r"key is float32 \[1, 2, 9, 8\] .* must be float32 \[1, 2, 9, 16\]"):
        flash_attention(draw(1, 2, 9, 16), draw(1, 2, 9, 8), draw(1, 2, 9, 16))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"causal_alignment": "middle"}, "causal_alignment is 'middle'; it must be top_left or bottom_right"),
        ({"block_size": 0}, "block_size is 0; it must be 16, 32, 64, 128 or 256"),
        ({"key": None}, "key is of type NoneType; it must be a torch.Tensor"),
        ({"value": np.zeros((2, 4, 7, 8), np.float32)}, "value is of type ndarray; it must be a torch.Tensor"),
        ({"key": torch.zeros(2, 4, 7, 8, device="meta")}, "key is on meta and query on cpu"),
        ({"attn_mask": torch.ones(5, 7, dtype=torch.bool, device="meta")}, "attn_mask is on meta and query on cpu"),
        ({"query": torch.zeros(2, 4, 5, 8).to_sparse()}, "query is a sparse or nested tensor; it must be a dense one"),
        ({"query": torch.zeros(())}, r"query \[\] has 0 axes; it must have 3 or 4"),
        ({"query": torch.zeros(2, 5, 32), "num_heads": -4}, "cannot be split into -4 heads"),
    ],
)
def test_arguments_that_make_no_call_are_one_sentence(given: dict[str, Any], message: str) -> None:
    key = torch.zeros(2, 4, 7, 8)
    arguments = {"query": torch.zeros(2, 4, 5, 8), "key": key, "value": key} | given
    with pytest.raises(core.CoreError, match=message):
        flash_attention(**arguments)


def test_its_signature_has_the_operator_s_inputs_and_attributes() -> None:
    inputs = [one.name for one in schema().inputs]
    assert list(ortflash.torch._INPUTS) == inputs
    parameters = inspect.signature(flash_attention).parameters
    defaults = {one.name: one.default for one in fields(Attributes)}
    assert {name: parameters[name].default for name in defaults} == defaults
    assert [name for name in parameters if name in inputs and name != "dropout_seed"] == inputs[:-1]
