"""The command line: each subcommand's docstring is its help.

Exit codes: 0 done (and verified, unless --no-verify); 1 nothing to do; 2 bad input or usage; 3 a site was rolled back
or the whole model differs.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from . import bench
from .engine.command import Precision, Tensorrt, build
from .errors import OrtflashError

if TYPE_CHECKING:
    from .api import Progress
    from .graph_tools.report import ModelReport


class _Sentences(TyperGroup):
    """Errors that ortflash raises on purpose end as one sentence and exit code 2, never as a traceback."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except OrtflashError as error:
            typer.echo(f"ortflash: {error}", err=True)
        except BrokenPipeError:
            sys.stderr.close()
        except MemoryError:
            typer.echo("ortflash: There is not enough memory for this model; --no-verify needs the least.", err=True)
        except OSError as error:
            where = f" {error.filename}" if error.filename else ""
            typer.echo(f"ortflash: The system refused{where}: {error.strerror or error}.", err=True)
        except Exception as error:
            if type(error).__module__.split(".")[0] in ("click", "typer") or sys.flags.dev_mode:
                raise  # exits and usage errors; bugs too, with python -X dev
            kind, text = type(error).__name__, " ".join(str(error).split())
            typer.echo(f"ortflash: This is a bug of ours, please report it: {kind}: {text[:300]}", err=True)
        raise typer.Exit(2)


app = typer.Typer(
    cls=_Sentences,
    help="Find attention in ONNX models, fuse it into one operator, and prove that the numbers stay the same.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(bench.app, name="bench")

ModelPath = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Target = Annotated[
    Literal["ort", "ort-trt", "onnx"],
    typer.Option(
        help="ort: ortflash::FlashAttention; ort-trt: the same for ONNX Runtime's TensorRT provider; onnx: the "
        "standard Attention (opset 23 and up)."
    ),
]
Only = Annotated[
    list[str] | None, typer.Option(help="Sites to fuse, by name; * and ? fit anything. Again for more.", metavar="SITE")
]
Skip = Annotated[list[str] | None, typer.Option(help="Sites to leave alone, likewise.", metavar="SITE")]
Inputs = Annotated[
    Path | None, typer.Option(help="Arrays to run the model on, an .npz file; generated without it.", metavar="NPZ")
]
Shapes = Annotated[
    list[str] | None,
    typer.Option("--shape", help="Size of an input to generate. Again for more.", metavar="INPUT:2x77"),
]
CopyData = Annotated[bool, typer.Option("--copy-data", help="Copy external data beside an output in another folder.")]
Training = Annotated[
    bool, typer.Option("--training", help="Fuse sites with a live Dropout, too; they can't be verified.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Report = Annotated[
    Path | None, typer.Option(help="Also write the report to a .html, .json or .md file.", metavar="FILE")
]


@app.command()
def inspect(
    model: ModelPath,
    target: Target = "ort",
    training: Training = False,
    as_json: AsJson = False,
    report: Report = None,
    plan: Annotated[
        Path | None, typer.Option(help="Write a plan to edit and hand to rewrite --plan.", metavar="FILE")
    ] = None,
) -> None:
    """Say what attention a model has, what would be fused, and for the rest which node is in the way and why.

    For each site: the operations of its two products, and the bytes of scores that fusing never stores.
    """
    from . import api, console

    write_report = _report_writer(report, model, target)
    found = api.inspect(model, target=target, training=training)
    if plan is not None:
        _write(plan, api.plan_of(found).to_json())
    write_report(found)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        console.print_report(found)


@app.command()
def rewrite(
    model: ModelPath,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Default: MODEL.flash.onnx, where something was fused.")
    ] = None,
    target: Target = "ort",
    only: Only = None,
    skip: Skip = None,
    min_length: Annotated[int, typer.Option(min=0, help="Leave sites alone whose known key length is shorter.")] = 0,
    plan: Annotated[Path | None, typer.Option(help="A plan written by inspect --plan.", metavar="FILE")] = None,
    training: Training = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Don't run original and rewritten.")] = False,
    inputs: Inputs = None,
    shape: Shapes = None,
    copy_data: CopyData = False,
    as_json: AsJson = False,
    report: Report = None,
) -> None:
    """Fuse a model's attention, verify it against the original, and write the result.

    A site whose numbers differ is rolled back. Exit code 1: nothing to fuse (with -o the file is copied unchanged);
    3: a site was rolled back (the rest is written), or the whole model differs (nothing is).
    """
    from . import api, console

    write_report = _report_writer(report, model, target)
    with progress_bar() as progress:
        result = api.rewrite(
            model,
            None if dry_run else output or _default_output(model),
            target=target,
            only=only or (),
            skip=skip or (),
            min_length=min_length,
            training=training,
            plan=api.read_plan(plan) if plan else None,
            verify=not (no_verify or dry_run),
            inputs=inputs,
            shapes=_shapes(shape),
            copy_data=copy_data,
            copy_unchanged=output is not None,
            progress=progress,
        )
    write_report(result.report)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    else:
        console.print_rewrite(result, dry_run=dry_run)
    raise typer.Exit(result.exit_code)


@app.command()
def restore(
    model: ModelPath,
    output: Annotated[Path, typer.Option("--output", "-o", help="Where to write.", show_default=False)],
    only: Annotated[list[str] | None, typer.Option(help="Fused nodes, by name; * and ? fit anything.")] = None,
    skip: Annotated[list[str] | None, typer.Option(help="Fused nodes to keep, likewise.")] = None,
    copy_data: CopyData = False,
) -> None:
    """Swap fused nodes back for standard ops (the function that the file carries), so that you can bisect a difference.

    Exit code 1: the file has no fused node (it is written unchanged).
    """
    from . import api

    _, count = api.restore(model, output, only=only or (), skip=skip or (), copy_data=copy_data)
    typer.echo(f"{count} fused node{'' if count == 1 else 's'} swapped back: {output}")
    raise typer.Exit(0 if count else 1)


@app.command()
def verify(
    original: Annotated[Path, typer.Argument(help="The model before rewriting.", show_default=False)],
    rewritten: Annotated[Path, typer.Argument(help="The model after it, or an engine.", show_default=False)],
    backend: Annotated[
        Literal["ort", "trt"],
        typer.Option(help="trt: run a TensorRT engine on this machine's GPU."),
    ] = "ort",
    inputs: Inputs = None,
    shape: Shapes = None,
    precision: Precision = None,
    tensorrt: Tensorrt = "auto",
    as_json: AsJson = False,
) -> None:
    """Hold a rewritten model against its original: every fused site in float64, then all outputs.

    With --backend trt, all outputs of an engine. Exit code 3: a site or an output differs.
    """
    from . import api, console

    with progress_bar() as progress:
        if backend == "trt":
            from .engine.verify import verify_engine

            result = verify_engine(
                original, rewritten, inputs=inputs, shapes=_shapes(shape), precision=precision, flavour=tensorrt
            )
        else:
            result = api.verify(original, rewritten, inputs=inputs, shapes=_shapes(shape), progress=progress)
    if as_json:
        typer.echo(json.dumps(result.to_dict(), indent=2))
    elif backend == "trt":
        console.print_outputs(result)
    else:
        console.print_verification(result)
    raise typer.Exit(0 if result.passed else 3)


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Look at this installation: versions, what was built, clashes, and a real call whose numbers are checked.

    Exit code 1: something is in the way of running a fused model.
    """
    from . import console
    from .doctor import diagnose

    diagnosis = diagnose()
    if as_json:
        typer.echo(json.dumps([finding.__dict__ for finding in diagnosis.findings], indent=2))
    else:
        console.print_diagnosis(diagnosis)
    raise typer.Exit(0 if diagnosis.healthy else 1)


@app.command()
def demo(
    model: Annotated[
        Path | None, typer.Argument(help="A model with dynamic batch and sequence.", show_default="models/bert4096-*")
    ] = None,
    lengths: Annotated[str, typer.Option(help="Sequence lengths to run at.")] = "128,512,2048",
) -> None:
    """Do the main job on a real model: rewrite it, run both at several lengths, and print one table.

    Each run has a process of its own, so that its peak memory is its own.
    """
    from . import console
    from .demo import run_demo

    with progress_bar() as progress:
        result = run_demo(model, [int(length) for length in lengths.split(",")], progress)
    console.print_demo(result)
    raise typer.Exit(result.rewrite.exit_code)


app.command()(build)


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A progress bar on stderr for work that takes long; silent where nobody looks."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        tasks: dict[str, Any] = {}

        def advance(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bar.add_task(stage, total=total)
            bar.update(tasks[stage], completed=done)

        yield advance


def _default_output(model: Path) -> Path:
    return model.with_suffix(".flash.onnx") if model.name else model


def _shapes(texts: Sequence[str] | None) -> Mapping[str, Sequence[int]] | None:
    from .inputs import parse_shape

    return dict(parse_shape(text) for text in texts) if texts else None


def _report_writer(
    path: Path | None, model: Path, target: Literal["ort", "ort-trt", "onnx"]
) -> Callable[[ModelReport], None]:
    """What writes the report when it is known; whether it can is checked now, and graphs are drawn before they go."""
    if path is None:
        return lambda report: None
    if not os.access(path.parent, os.W_OK):
        raise OrtflashError(f"Can't write the report {path}: {path.parent} isn't a folder that can be written to.")
    if path.suffix == ".json":
        return lambda report: _write(path, json.dumps(report.to_dict(), indent=2) + "\n")
    if path.suffix == ".md":
        return lambda report: _write(path, report.to_markdown())
    if path.suffix == ".html":
        from . import api
        from .html_report import render

        drawings = api.draw(model, target=target)
        return lambda report: _write(path, render(report, drawings))
    raise OrtflashError(f"A report is a .html, .json or .md file, not {path.name!r}.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OrtflashError(f"Can't write {path}: {error.strerror}.") from None


if __name__ == "__main__":
    app()
