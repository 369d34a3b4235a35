"""``ortflash build``: the command line of :func:`.build.build_engine`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from .build import EngineResult

Precision = Annotated[
    Literal["fp16", "bf16"] | None, typer.Option(help="What TensorRT 8 or 10 may lower a float32 model to.")
]
Tensorrt = Annotated[
    Literal["auto", "tensorrt", "rtx"], typer.Option(help="Which TensorRT; auto takes the first that is installed.")
]


def build(
    model: Annotated[Path, typer.Argument(help="An ONNX file, rewritten or not.", show_default=False)],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL.plan.", show_default=False)
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(help="Sizes of an input with open dimensions. Again for more.", metavar="INPUT:1x1:4x128:8x512"),
    ] = None,
    precision: Precision = None,
    compute_capability: Annotated[
        list[str] | None,
        typer.Option(help="GPU to build for, such as 8.9; needs none here (TensorRT-RTX). Again for more."),
    ] = None,
    embed_plugin: Annotated[
        bool, typer.Option("--embed-plugin", help="Put the plugin into the engine: it then runs without ortflash.")
    ] = False,
    timing_cache: Annotated[
        Path | None, typer.Option(help="What TensorRT measured before, and measures now.", metavar="FILE")
    ] = None,
    workspace_mib: Annotated[int | None, typer.Option(help="The most scratch memory of one layer.")] = None,
    optimization_level: Annotated[int | None, typer.Option(help="TensorRT's, 0 to 5.", min=0, max=5)] = None,
    tensorrt: Tensorrt = "auto",
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't run original and rewritten model.")] = False,
) -> None:
    """Build a TensorRT engine with the fused attention in it, from a model that was rewritten or gets it now.

    Prints which layers are ours and which softmaxes are left. Exit code 1: nothing in the model is fused (the engine is
    built all the same); 3: a site was rolled back, or TensorRT dropped a fused node.
    """
    from ..cli import progress_bar
    from . import build as engine
    from .profiles import parse_range

    with progress_bar() as progress:
        result = engine.build_engine(
            model,
            output or model.with_suffix(".plan"),
            shapes=dict(parse_range(text) for text in shapes or ()),
            precision=precision,
            compute_capabilities=compute_capability or (),
            embed_plugin=embed_plugin,
            timing_cache=timing_cache,
            workspace_bytes=None if workspace_mib is None else workspace_mib << 20,
            optimization_level=optimization_level,
            flavour=tensorrt,
            verify=not no_verify,
            progress=progress,
        )
    for line in describe(result):
        typer.echo(line)
    raise typer.Exit(result.exit_code)


def describe(result: EngineResult) -> list[str]:
    """What was built, for people."""
    lines = [*(result.rewrite.report.notes if result.rewrite else ())]
    if result.rewrite is not None:
        lines.insert(0, result.rewrite.report.summary)
    sizes = "; ".join(f"{name} {sizes}" for name, sizes in result.profile.items())
    if sizes:
        lines.append(f"Shapes (min:opt:max): {sizes}")
    if result.layer_count:
        lines.append(
            f"{len(result.plugin_layers)} of {len(result.fused)} fused nodes are layers of the engine, which has "
            f"{result.layer_count}: {', '.join(result.plugin_layers) or 'none'}"
        )
        lines.append(f"Softmaxes left: {', '.join(result.softmaxes) or 'none'}")
    else:
        lines.append(f"{result.tensorrt} does not list its layers; {len(result.fused)} nodes of the model are fused.")
    lines.append(
        f"Written: {result.output} ({result.size_bytes / 2**20:.1f} MiB, {result.tensorrt}, {result.seconds:.1f} s)"
    )
    return lines
