"""Rewrite every model of the corpus, run it, and hold it against its original: what `make corpus` prints.

    python -m tests.corpus [--models 'bert*'] [--corpus FOLDER_OR_ARCHIVE] [--jobs 2] [--list-refusals]

A corpus holds, for each model, ``<name>.onnx`` and inputs ``<name>.npz``, and one ``table.json`` with the true number
of sites, how many of them can be fused, and how many each other tool fuses. The command fails where a site is missed,
a site is fused that mustn't be, or an output is off.
"""

from __future__ import annotations

import fnmatch
import json
import os
import sys
import tarfile
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import onnx
import typer

import ortflash
from ortflash.criterion import Comparison, compare
from ortflash.errors import OrtflashError
from ortflash.library import import_onnxruntime
from ortflash.runner import run_model
from ortflash.verify import WHOLE_MODEL_FLOOR, float_types, run_in_float64

ROOT = Path(__file__).parents[1]
ARCHIVE = ROOT.parent / "shared" / "corpus.tar.xz"
UNPACKED = ROOT / ".cache" / "corpus"

PEERS = {
    "ort_optimizer_best": "ORT optimizer",
    "ort_session_all": "ORT session",
    "onnxscript_ort_fusions": "onnxscript",
    "onnxslim": "OnnxSlim",
}

Values = dict[str, npt.NDArray[np.generic]]


@dataclass(frozen=True)
class Outcome:
    """What became of one model."""

    model: str
    fusable: int
    optional: int
    """Sites that may be fused or refused: both are right."""
    fused: int = 0
    refusals: tuple[str, ...] = ()
    error: float = 0.0
    """Largest error of any output against float64, in units of its bound."""
    faults: tuple[str, ...] = ()
    seconds: float = 0.0
    peers: Mapping[str, str] = field(default_factory=dict)

    def line(self) -> str:
        """The model's row of the table."""
        peers = "".join(f"{self.peers.get(peer, '-'):>{len(title) + 2}}" for peer, title in PEERS.items())
        verdict = "; ".join(self.faults) or "ok"
        return (
            f"{self.model:<34}{self.fusable:>8}{self.fused:>7}{peers}{self.error:>9.3f}{self.seconds:>7.1f}  {verdict}"
        )


def header() -> str:
    """The table's first line."""
    peers = "".join(f"{title:>{len(title) + 2}}" for title in PEERS.values())
    return f"{'model':<34}{'fusable':>8}{'ours':>7}{peers}{'error':>9}{'s':>7}"


def find_corpus(place: Path = ARCHIVE) -> Path | None:
    """The folder of an unpacked corpus, unpacked now where only the archive is there; None where neither is."""
    if (place / "table.json").exists():
        return place
    if not place.is_file():
        return None
    stamp = f"{place.stat().st_size} {place.stat().st_mtime_ns}"
    if (UNPACKED / "stamp").exists() and (UNPACKED / "stamp").read_text() == stamp:
        return UNPACKED
    UNPACKED.parent.mkdir(exist_ok=True)
    fresh = Path(tempfile.mkdtemp(dir=UNPACKED.parent))
    with tarfile.open(place) as archive:
        archive.extractall(fresh, filter="data")
    tables = list(fresh.rglob("table.json"))
    content = tables[0].parent
    (content / "stamp").write_text(stamp)
    try:
        content.rename(UNPACKED)
    except OSError:  # another process was faster, or an older corpus lies there
        return content if not (UNPACKED / "stamp").exists() else UNPACKED
    return UNPACKED


def read_table(folder: Path, pattern: str = "*") -> list[dict[str, Any]]:
    """The corpus's rows whose model fits the pattern."""
    rows: list[dict[str, Any]] = json.loads((folder / "table.json").read_text())
    return [row for row in rows if fnmatch.fnmatch(row["model"], pattern)]


def run_without_library(model: onnx.ModelProto, feed: Values) -> Values:
    """Run a model in plain ONNX Runtime: a FlashAttention node is its function's body."""
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    known = {value.name for value in session.get_inputs()}
    return dict(zip(names, session.run(names, {k: v for k, v in feed.items() if k in known}), strict=True))


def compare_outputs(actual: Values, original: Values, truth: Values, floor: float) -> Iterator[tuple[str, Comparison]]:
    """Each output against float64, with twice the original's own error and a share of its largest value as bound."""
    for name, ours in actual.items():
        reordered = original[name]
        if ours.dtype.kind != "f":
            same = np.array_equal(ours, reordered)
            yield name, Comparison(0.0, 0.0, (), 0, 0, "" if same else "differs")
            continue
        yield name, compare(ours, reordered, truth[name].astype(np.float64), relative_floor=floor)


def check_model(folder: Path, row: Mapping[str, Any]) -> Outcome:
    """Rewrite one model with verification, and run the result with the library and without it."""
    start = time.perf_counter()
    name, fusable, optional = row["model"], row["fusable"], row.get("optional", 0)
    faults_of_peers = row.get("peer_faults", {})
    peers = {peer: f"{count}{'!' if peer in faults_of_peers else ''}" for peer, count in row.get("peers", {}).items()}
    outcome = Outcome(name, fusable, optional, peers=peers)
    try:
        changes = _rewrite_and_run(folder / f"{name}.onnx", outcome)
    except OrtflashError as error:
        changes = {"faults": (str(error),)}
    except Exception:
        changes = {"faults": ("crash: " + traceback.format_exc(limit=-3),)}
    return Outcome(**{**outcome.__dict__, **changes, "seconds": time.perf_counter() - start})


def _rewrite_and_run(path: Path, outcome: Outcome) -> dict[str, Any]:
    with np.load(path.with_suffix(".npz")) as arrays:
        feed: Values = dict(arrays)
    original = onnx.load(path)
    ortflash.get_library_path()  # a missing library is a fault: both ways would run the function's body
    result = ortflash.rewrite(original, inputs=feed)
    sites = result.report.sites
    refusals = tuple(
        f"{site.name}: {site.decision}: {site.rule} at {site.node}: {site.reason}"
        for site in sites
        if site.decision != "fused"
    )
    faults = [f"{site.name} was rolled back: {site.reason}" for site in sites if site.decision == "rolled back"]
    if result.fused < outcome.fusable:
        faults.append(f"{outcome.fusable - result.fused} of {outcome.fusable} sites missed ({'; '.join(refusals)})")
    if result.fused > outcome.fusable + outcome.optional:
        faults.append(f"{result.fused - outcome.fusable} sites fused that must not be")
    if result.verification is not None and not result.verification.model_passed:
        faults.append("verification says that an output differs")
    worst = 0.0
    if result.fused:
        expected = run_model(original, feed)
        truth: Values = dict(run_in_float64(original, feed))
        floor = max(WHOLE_MODEL_FLOOR[elem_type] for elem_type in float_types(original))
        ways = {
            "with the library": run_model(result.model, feed),
            "without it": run_without_library(result.model, feed),
        }
        for way, values in ways.items():
            for output, comparison in compare_outputs(values, expected, truth, floor):
                worst = max(worst, comparison.error / comparison.bound if comparison.bound else 0.0)
                if not comparison.passed:
                    faults.append(f"output {output} {way} {comparison.problem}")
    return {"fused": result.fused, "refusals": refusals, "faults": tuple(faults), "error": worst}


def check_all(folder: Path, rows: Sequence[Mapping[str, Any]], jobs: int) -> Iterator[Outcome]:
    """Check models in ``jobs`` processes, in the order of the rows."""
    if jobs == 1:
        yield from (check_model(folder, row) for row in rows)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(check_model, [folder] * len(rows), rows, chunksize=4)


def main(
    models: Annotated[str, typer.Option(help="Pattern of model names.")] = "*",
    corpus: Annotated[Path, typer.Option(help="Folder or archive.")] = ARCHIVE,
    jobs: Annotated[int, typer.Option(help="Processes.")] = min(2, os.cpu_count() or 1),
    list_refusals: Annotated[bool, typer.Option(help="Print why the other sites stay as they are.")] = False,
) -> None:
    """Check every model of a corpus and print the table."""
    folder = find_corpus(corpus)
    if folder is None:
        typer.echo(f"There is no corpus at {corpus}; put corpus.tar.xz there, or name one with --corpus.")
        raise typer.Exit(2)
    rows = read_table(folder, models)
    if not rows:
        typer.echo(f"No model of the corpus has a name like {models}.")
        raise typer.Exit(2)
    start = time.perf_counter()
    typer.echo(header())
    outcomes = []
    for outcome in check_all(folder, rows, jobs):
        outcomes.append(outcome)
        typer.echo(outcome.line())
        if list_refusals:
            for refusal in outcome.refusals:
                typer.echo(f"    {refusal}")
    typer.echo(summary(rows, outcomes, time.perf_counter() - start))
    sys.exit(any(outcome.faults for outcome in outcomes))


def summary(rows: Sequence[Mapping[str, Any]], outcomes: Sequence[Outcome], seconds: float) -> str:
    """The totals, ours beside the other tools'."""
    fusable = sum(outcome.fusable for outcome in outcomes)
    lines = [f"\n{len(outcomes)} models, {fusable} fusable sites, {seconds:.0f} s"]
    lines.append(f"  {'ours':<16}{sum(outcome.fused for outcome in outcomes):>5} fused")
    for peer, title in PEERS.items():
        count = sum(row.get("peers", {}).get(peer, 0) for row in rows)
        broken = sum(peer in row.get("peer_faults", {}) for row in rows)
        lines.append(f"  {title:<16}{count:>5} fused" + (f", {broken} files wrong or broken" if broken else ""))
    lines.append(f"  {sum(bool(outcome.faults) for outcome in outcomes)} models with faults")
    return "\n".join(lines)


if __name__ == "__main__":
    typer.run(main)
