"""Export tiny random-weight models with attention in every spelling that exporters produce.

    python models/export_zoo.py list
    python models/export_zoo.py export bert syn_gqa5d --exporter ts --attention eager --opset 17 --out /tmp/zoo
    python models/export_zoo.py shipped

Needs the extra ``ortflash[export]`` (torch, transformers); UNet, VAE and DiT families also need diffusers.
"""

from __future__ import annotations

import inspect
import io
import sys
import warnings
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import onnx
import torch
import typer

sys.path.insert(0, str(Path(__file__).parent))
from zoo_blocks import BLOCKS, HIDDEN, Stack
from zoo_families import FAMILIES, SEQ, Example


@dataclass(frozen=True)
class Variant:
    """One way to export one family."""

    family: str
    exporter: str
    """``ts``: torch.onnx.export(dynamo=False); ``dy``: dynamo=True."""
    attention: str
    """``eager`` or ``sdpa``; empty for hand-written blocks."""
    opset: int
    static: bool = False
    dtype: str = "fp32"

    @property
    def name(self) -> str:
        """The file's stem, e.g. ``bert-ts-eager-op17-static``."""
        parts = [self.family, self.exporter, self.attention, f"op{self.opset}"]
        parts += ["static"] * self.static + [self.dtype] * (self.dtype != "fp32")
        return "-".join(p for p in parts if p)


DTYPES = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


def build(family: str, attention: str) -> Example:
    """Build a family's module and inputs, the same for the same name."""
    torch.manual_seed(zlib.crc32(family.encode()))
    if family.startswith("syn_"):
        name = family.removeprefix("syn_")
        x = torch.randn(2, 25 if name == "decomposed" else 10, HIDDEN)
        dynamic = {0: "batch"} if name in ("decomposed", "fived", "window") else SEQ
        return Example(Stack(name), {"x": x}, {"x": dynamic}, 2, BLOCKS[name].fusable, BLOCKS[name].note)
    return FAMILIES[family].build(attention)


def draw_weights(module: torch.nn.Module) -> None:
    """Make weights coarse (they compress) and large, so that attention is peaked and a wrong scale or mask shows.

    Matrices become multiples of half their standard deviation 2 / sqrt(fan in), vectors get a little noise.
    """
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() >= 2:
                deviation = 2.0 / max(parameter[0].numel(), 1) ** 0.5
                coarse = (torch.randn(parameter.shape) * 2).round().clamp(-5, 5) / 2
                parameter.copy_(coarse * min(deviation, 0.4))
            else:
                parameter.add_((torch.randn(parameter.shape) * 4).round() / 32)


def export(variant: Variant, out: Path) -> Example:
    """Write ``<name>.onnx`` and the inputs ``<name>.npz`` into ``out``.

    Raises whatever torch's exporter raises where it cannot export the model.
    """
    case = build(variant.family, variant.attention)
    draw_weights(case.module)
    dtype = DTYPES[variant.dtype]
    module = case.module.eval().to(dtype)
    inputs = {n: t.to(dtype) if t.is_floating_point() else t for n, t in case.inputs.items()}
    model = export_model(module, inputs, {} if variant.static else case.dynamic, variant)
    drop_source_paths(model)
    onnx.save(model, out / f"{variant.name}.onnx")
    arrays = {n: t.float().numpy() if t.dtype == torch.bfloat16 else t.numpy() for n, t in inputs.items()}
    np.savez(out / f"{variant.name}.npz", **arrays)
    return case


def export_model(module: Any, inputs: dict[str, Any], dynamic: Any, variant: Variant) -> onnx.ModelProto:
    names = list(inputs)
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        if variant.exporter == "ts":
            buffer = io.BytesIO()
            torch.onnx.export(
                module,
                tuple(inputs.values()),
                buffer,
                dynamo=False,
                opset_version=variant.opset,
                input_names=names,
                dynamic_axes=dict(dynamic) or None,
            )
            return onnx.load_from_string(buffer.getvalue())
        shapes = tuple(dict(dynamic[n]) if n in dynamic else None for n in names) if dynamic else None
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            opset_version=variant.opset,
            input_names=names,
            dynamic_shapes=shapes and _by_parameter(module, shapes),
            verbose=False,
        )
        assert program is not None
        proto: onnx.ModelProto = program.model_proto
        return proto


def drop_source_paths(model: onnx.ModelProto) -> None:
    """Remove the stack traces and module paths that torch writes beside each node; nothing reads them."""
    for node in model.graph.node:
        del node.metadata_props[:]
    for value in (*model.graph.value_info, *model.graph.input, *model.graph.output, *model.graph.initializer):
        del value.metadata_props[:]


def _by_parameter(module: torch.nn.Module, shapes: tuple[Any, ...]) -> dict[str, Any]:
    """Dynamic shapes under the names of forward's parameters; ``*inputs`` takes them all."""
    parameters = list(inspect.signature(module.forward).parameters.values())
    if parameters[0].kind is inspect.Parameter.VAR_POSITIONAL:
        return {parameters[0].name: shapes}
    return {p.name: shape for p, shape in zip(parameters, shapes, strict=True)}


app = typer.Typer(add_completion=False, help=__doc__)


@app.command("list")
def list_families() -> None:
    """Print every family, the attention implementations that it has, and what is special about it."""
    for name, family in FAMILIES.items():
        typer.echo(f"{name}\t{' '.join(family.attentions)}")
    for name, block in BLOCKS.items():
        typer.echo(f"syn_{name}\t\t{block.note}")


@app.command("export")
def export_families(
    families: Annotated[list[str], typer.Argument(help="Family names; see `list`.")],
    out: Annotated[Path, typer.Option(help="Folder to write into.")],
    exporter: Annotated[str, typer.Option(help="ts or dy.")] = "ts",
    attention: Annotated[str, typer.Option(help="eager or sdpa.")] = "eager",
    opset: Annotated[int, typer.Option(help="Opset version.")] = 17,
    static: Annotated[bool, typer.Option(help="Keep the example's sizes.")] = False,
    dtype: Annotated[str, typer.Option(help="fp32, fp16 or bf16.")] = "fp32",
) -> None:
    """Export families one way, a .onnx and a .npz of inputs each."""
    out.mkdir(parents=True, exist_ok=True)
    for family in families:
        variant = Variant(family, exporter, "" if family.startswith("syn_") else attention, opset, static, dtype)
        export(variant, out)
        typer.echo(f"{variant.name}: {(out / f'{variant.name}.onnx').stat().st_size} bytes")


SHIPPED = (
    Variant("bert4096", "dy", "sdpa", 18),
    Variant("sdunet", "ts", "eager", 17),
    Variant("sdunet", "dy", "sdpa", 18),
)


@app.command("shipped")
def export_shipped() -> None:
    """Export the models that lie beside this script: the demo's encoder and a UNet from both exporters."""
    folder = Path(__file__).parent
    for variant in SHIPPED:
        export(variant, folder)
        typer.echo(f"{variant.name}: {(folder / f'{variant.name}.onnx').stat().st_size} bytes")


if __name__ == "__main__":
    app()
