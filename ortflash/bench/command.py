"""``ortflash bench``: the subcommands."""

from __future__ import annotations

import functools
import importlib.util
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..errors import MissingExtraError, OrtflashError
from .grids import GRIDS, Shape
from .race import Protocol
from .results import Benchmark, Row, summary

DEFAULT_FOLDER = Path("docs/benchmarks")
MARKERS = ("<!-- benchmarks: written by `ortflash bench table --into` -->", "<!-- end of benchmarks -->")

_PAUSES_MS = {"cpu": 100.0, "cuda": 40.0}
"""On the CPU the threads of a session that has just run wait busily for a while, beside those of the next one."""

app = typer.Typer(
    help="Measure speed, error and memory against every peer in the same process.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Device = Annotated[Literal["cpu", "cuda"], typer.Option(help="Where to run.")]
Repetitions = Annotated[int, typer.Option(min=1, help="Runs of each candidate; the median counts.")]
Pause = Annotated[float, typer.Option(help="Idle time before each run, in ms; by default 100 on the CPU, 40 on a GPU.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads, on the CPU.")]
Output = Annotated[Path, typer.Option("--output", "-o", help="Folder for the JSON.", metavar="FOLDER")]
Name = Annotated[str, typer.Option(help="Name of the JSON and the table; by default what is measured.")]


@app.command()
def kernel(
    grid: Annotated[str, typer.Option(help=f"Which calls: {', '.join(GRIDS)}.")] = "cpu",
    device: Device = "cpu",
    repetitions: Repetitions = 9,
    pause_ms: Pause = -1.0,
    threads: Threads = 2,
    implementation: Annotated[str, typer.Option(help="On a GPU: ours by name (sm80, ..), not the preferred one.")] = "",
    peer: Annotated[
        list[str] | None, typer.Option(help="On a GPU: only this peer, as tables name it. Again for more.")
    ] = None,
    name: Name = "",
    output: Output = DEFAULT_FOLDER,
) -> None:
    """Race single attention calls: ours against ONNX Runtime on the CPU; against every peer that is there on a GPU."""
    if grid not in GRIDS:
        raise OrtflashError(f"There is no grid {grid!r}; there are {', '.join(GRIDS)}.")
    protocol = _protocol(device, repetitions, pause_ms)
    race_shape = _kernel_race(grid, device, implementation, peer or [], protocol, threads)
    unit = "two to twenty launches in a CUDA graph" if device == "cuda" else "one call"
    rows: list[Row] = []
    for shape in GRIDS[grid]:
        rows.append(race_shape(shape))
        _show(rows[-1])
        written = _write(name or f"kernel-{grid}", rows, device, threads, protocol.sentence(unit), output)
    typer.echo(f"Written: {written}")


def _kernel_race(
    grid: str, device: str, implementation: str, peers: list[str], protocol: Protocol, threads: int
) -> Callable[[Shape], Row]:
    """What races one shape of the grid."""
    if device != "cuda":
        from . import kernel_cpu

        return lambda shape: kernel_cpu.race_shape(shape, protocol, threads)
    _need_torch()
    from . import backward_cuda, kernel_cuda

    known = backward_cuda.PEERS if grid.startswith("backward") else kernel_cuda.PEERS
    if strange := [peer for peer in peers if peer not in known]:
        raise OrtflashError(f"There is no peer {strange[0]!r} for this grid; there are {', '.join(map(repr, known))}.")
    module = backward_cuda if grid.startswith("backward") else kernel_cuda
    return lambda shape: module.race_shape(shape, protocol, implementation, peers)


@app.command()
def model(
    path: Annotated[Path, typer.Argument(help="An ONNX file with open batch and length.", exists=True)],
    length: Annotated[list[int] | None, typer.Option(help="Sequence length. Again for more.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 1,
    model_type: Annotated[str, typer.Option(help="Peer: ONNX Runtime's optimizer for this type of model.")] = "",
    peer: Annotated[
        list[str] | None,
        typer.Option(help="Another file of the same model, raced as it is and rewritten by us.", metavar="NAME=PATH"),
    ] = None,
    device: Device = "cpu",
    repetitions: Repetitions = 9,
    pause_ms: Pause = -1.0,
    threads: Threads = 2,
    name: Name = "",
    output: Output = DEFAULT_FOLDER,
) -> None:
    """Race a whole model: as exported, rewritten by us, and optimised by ONNX Runtime; with peak memory."""
    from .model import race_model

    protocol = _protocol(device, repetitions, pause_ms)
    peers = dict(_peer(text) for text in peer or [])
    rows: list[Row] = []
    for row in race_model(path, batch, length or [128, 512, 2048], device, model_type, peers, protocol, threads):
        _show(row)
        rows.append(row)
    _finish(name or f"model-{path.stem}-{device}", rows, device, threads, protocol.sentence("one run"), output)


@app.command()
def density(
    length: Annotated[int, typer.Option(min=1, help="Sequence length.")] = 16384,
    head_size: Annotated[int, typer.Option(min=1, help="Head size.")] = 64,
    repetitions: Repetitions = 5,
    pause_ms: Pause = -1.0,
    name: Name = "density",
    output: Output = DEFAULT_FOLDER,
) -> None:
    """On a GPU: time against the density of a block mask, forward and backward, beside dense attention."""
    from .density import problems, race_problem

    _need_torch()

    protocol = _protocol("cuda", repetitions, pause_ms)
    rows = []
    for problem in problems(length, head_size):
        for row in race_problem(problem, protocol):
            _show(row)
            rows.append(row)
    _finish(
        name, rows, "cuda", 1, protocol.sentence("ours as two launches in a CUDA graph, peers as one launch"), output
    )


@app.command()
def io(
    batch: Annotated[int, typer.Option(min=1, help="Batch size.")] = 64,
    heads: Annotated[int, typer.Option(min=1, help="Heads.")] = 16,
    length: Annotated[int, typer.Option(min=1, help="Sequence length.")] = 1024,
    head_size: Annotated[int, typer.Option(min=1, help="Head size.")] = 64,
    name: Name = "io",
    output: Output = DEFAULT_FOLDER,
) -> None:
    """On a GPU, with ncu: bytes of device memory that forward and backward move; by default GPT-2 medium's call."""
    from .io import measure
    from .io_target import CANDIDATES

    rows = measure(batch, heads, length, head_size, list(CANDIDATES))
    for row in rows:
        _show(row)
    _finish(name, rows, "cuda", 1, "Sums over all kernels of one call, as ncu reports them.", output)


@app.command()
def table(
    folder: Annotated[Path, typer.Argument(help="Folder of JSON files.", exists=True)] = DEFAULT_FOLDER,
    into: Annotated[
        Path | None, typer.Option(help="Put it between this file's two marker lines instead.", metavar="README.md")
    ] = None,
    short: Annotated[bool, typer.Option("--summary", help="A line a file: ours against the best peers.")] = False,
) -> None:
    """Print everything in a folder of results as Markdown."""
    text = summary_of(folder) if short else markdown_of(folder)
    if into is None:
        typer.echo(text)
    else:
        into.write_text(with_tables(into.read_text(encoding="utf-8"), text), encoding="utf-8")


@app.command()
def plot(
    results: Annotated[Path, typer.Argument(help="A JSON that bench kernel or bench density wrote.", exists=True)],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="An .svg or .png; default: beside it.")] = None,
    dtype: Annotated[str, typer.Option(help="Calls of this type.")] = "float16",
) -> None:
    """Draw TFLOP/s against sequence length, or time against density; ours and the peers'."""
    from .plot import plot_densities, plot_lengths

    written = output or results.with_suffix(".svg")
    found = Benchmark.load(results)
    if any("density" in row.sizes for row in found.rows):
        plot_densities(found, written)
    else:
        plot_lengths(found, written, dtype)
    typer.echo(f"Written: {written}")


def markdown_of(folder: Path) -> str:
    """All results of a folder, by name."""
    return "\n\n".join(benchmark.markdown() for benchmark in _load(folder))


def summary_of(folder: Path) -> str:
    """All results of a folder, a line each."""
    return summary(_load(folder))


def _load(folder: Path) -> list[Benchmark]:
    return [Benchmark.load(path) for path in sorted(folder.glob("*.json"))]


def with_tables(text: str, tables: str) -> str:
    """``text`` with ``tables`` between its marker lines.

    Raises:
        OrtflashError: There are no marker lines.
    """
    begin, end = MARKERS
    head, found, rest = text.partition(begin)
    _, closed, tail = rest.partition(end)
    if not (found and closed):
        raise OrtflashError(f"The file lacks the marker lines {begin} and {end}.")
    return f"{head}{begin}\n\n{tables}\n\n{end}{tail}"


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise MissingExtraError("torch", "torch")


def _peer(text: str) -> tuple[str, Path]:
    name, equals, path = text.rpartition("=")
    if not (equals and name and Path(path).is_file()):
        raise OrtflashError(f"--peer {text!r} isn't NAME=PATH with an ONNX file at PATH.")
    return name, Path(path)


def _protocol(device: str, repetitions: int, pause_ms: float) -> Protocol:
    return Protocol(repetitions, pause_ms if pause_ms >= 0 else _PAUSES_MS[device])


def _show(row: Row) -> None:
    times = ", ".join(
        f"{name} {figure.time_ms:.3g} ms"
        + (f" ({figure.tflops:.3g} TFLOP/s)" if figure.tflops else "")
        + (f" ({figure.moved_bytes / 1e9:.2f} GB)" if figure.moved_bytes else "")
        + (f" ({figure.peak_bytes / 2**20:.0f} MiB)" if figure.peak_bytes else "")
        + (f" (attention {figure.attention_ms:.3g} ms)" if figure.attention_ms is not None else "")
        for name, figure in row.figures.items()
        if figure.ran
    )
    ratio = "" if row.ratio is None else f"; {row.ratio:.2f}x of {row.best_peer}"
    error = "" if row.ours is None or row.ours.error is None else f"; error {row.ours.error:.1e}"
    typer.echo(f"{row.case}: {times}{ratio}{error}")


def _finish(name: str, rows: list[Row], device: str, threads: int, protocol: str, folder: Path) -> None:
    typer.echo(f"Written: {_write(name, rows, device, threads, protocol, folder)}")


def _write(name: str, rows: list[Row], device: str, threads: int, protocol: str, folder: Path) -> Path:
    """The JSON; a grid writes it after every row, so that a run that is cut off leaves what it has measured."""
    return Benchmark(name, _command(sys.argv[1:]), _machine(device, threads), protocol, tuple(rows)).save(folder)


def _command(arguments: Sequence[str]) -> str:
    """The command line as a reader would repeat it: without the folder that the results went to."""
    kept = [
        shlex.quote(text)
        for before, text in zip(["", *arguments], arguments, strict=False)
        if not {before, text} & {"-o", "--output"}
    ]
    return " ".join(["ortflash", *kept])


@functools.cache
def _machine(device: str, threads: int) -> dict[str, str]:
    from .machine import describe_machine

    return describe_machine(device, threads)
