"""A whole model in ONNX Runtime: as exported, rewritten by us, and after ONNX Runtime's own transformers optimizer."""

from __future__ import annotations

import math
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from .. import api
from ..errors import OrtflashError
from ..graph_tools.external_data import load_model
from ..inputs import Feed, feed_of_length
from ..library import import_onnxruntime
from ..measure import peak_bytes
from ..session import CPU, CUDA, register
from . import attention_time
from .attention_time import GpuTime
from .race import Protocol, race, wall_clock
from .results import OURS, Figure, Row

ORIGINAL = "original"
OPTIMIZER = "ONNX Runtime's optimizer"


def race_model(
    path: Path,
    batch: int,
    lengths: list[int],
    device: str,
    model_type: str,
    peers: Mapping[str, Path],
    protocol: Protocol,
    threads: int,
) -> Iterator[Row]:
    """One row a length; errors are against the original's outputs, in the type that the model computes in.

    ``peers`` are further files with the original's inputs and outputs, by the name that the table shows; each is raced
    as it is and rewritten by us.

    Raises:
        OrtflashError: The original doesn't run at one of the lengths, or ONNX Runtime has no such type of model.
    """
    _check_model_type(model_type)
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        folder = Path(name)
        files, problems = _candidates(path, peers, folder, device, model_type)
        model = load_model(path)
        feeds = {length: feed_of_length(model, batch, length) for length in sorted(lengths)}
        held: dict[str, Held] = {}
        if device == "cuda":
            _hold(path, dict(list(feeds.items())[:1]), folder, device, threads)  # loads libraries
        for candidate, file in files.items():
            held[candidate] = _hold(file, feeds, folder, device, threads)
            if candidate == ORIGINAL and len(held[candidate].peaks) < len(feeds):
                failed = list(feeds)[len(held[candidate].peaks)]
                raise OrtflashError(f"{path.name} doesn't run at length {failed}: {held[candidate].reason}")
        sessions, refused = _sessions(files, device, threads)
        problems.update(refused)
        for length, feed in feeds.items():
            yield _row(path, batch, length, sessions, feed, held, device, protocol, problems)


def _check_model_type(model_type: str) -> None:
    from onnxruntime.transformers.optimizer import MODEL_TYPES

    if model_type and model_type not in MODEL_TYPES:
        raise OrtflashError(
            f"ONNX Runtime's optimizer knows no type of model {model_type!r}; it knows {', '.join(MODEL_TYPES)}."
        )


def _sessions(files: Mapping[str, Path], device: str, threads: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Candidate -> session, and candidate -> why it has none."""
    sessions, problems = {}, {}
    for name, file in files.items():
        try:
            sessions[name] = create_session(file, device, threads)
        except Exception as error:  # onnxruntime's exceptions have no common base
            problems[name] = str(error).splitlines()[0][:200]
    return sessions, problems


def _candidates(
    path: Path, peers: Mapping[str, Path], folder: Path, device: str, model_type: str
) -> tuple[dict[str, Path], dict[str, str]]:
    """Candidate -> file, and candidate -> why it has none."""
    files, problems = {ORIGINAL: path, **peers}, {}
    for number, (peer, file) in enumerate(list(files.items())):
        ours = OURS if peer == ORIGINAL else f"{OURS}, {peer}"
        fused = folder / f"ours-{number}.onnx"
        if api.rewrite(file, fused, verify=False, copy_data=True).fused:
            files[ours] = fused
        else:
            problems[ours] = "no site is fused"
    if model_type:
        try:
            files[OPTIMIZER] = _optimize(path, folder / "optimizer.onnx", device, model_type)
        except Exception as error:  # whatever it trips over is the finding
            problems[OPTIMIZER] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
    return files, problems


def _optimize(path: Path, output: Path, device: str, model_type: str) -> Path:
    from onnxruntime.transformers import fusion_options, optimizer

    options = fusion_options.FusionOptions(model_type)
    if model_type == "bert":
        options.use_raw_attention_mask(True)  # its default takes every mask for right padding
    model = optimizer.optimize_model(
        str(path), model_type=model_type, opt_level=0, optimization_options=options, use_gpu=device == "cuda"
    )
    model.save_model_to_file(str(output), use_external_data_format=path.stat().st_size > 1 << 30)
    return output


def _row(
    path: Path,
    batch: int,
    length: int,
    sessions: Mapping[str, Any],
    feed: dict[str, Any],
    held: Mapping[str, Held],
    device: str,
    protocol: Protocol,
    problems: Mapping[str, str],
) -> Row:
    figures = {name: Figure(math.nan, note=note) for name, note in problems.items()}
    runs: dict[str, Callable[[], Any]] = {}
    outputs: dict[str, list[Any]] = {}
    for name, session in sessions.items():
        try:
            runs[name] = bound_run(session, feed, device)
            outputs[name] = runs[name]()
        except Exception as error:  # onnxruntime's exceptions have no common base
            figures[name] = Figure(math.nan, note=str(error).splitlines()[0][:200])
            runs.pop(name, None)
    expected = outputs.get(ORIGINAL, [])
    for name, time_ms in race({name: wall_clock(run) for name, run in runs.items()}, protocol).items():
        pairs = zip(outputs[name], expected, strict=False)
        worst = max((float(np.max(np.abs(a.astype(np.float64) - b), initial=0.0)) for a, b in pairs), default=math.nan)
        figures[name] = Figure(
            time_ms,
            error=worst,
            peak_bytes=held[name].peaks.get(length),
            attention_ms=attention_ms(name, {n: each.gpu[length] for n, each in held.items() if length in each.gpu}),
            note=held[name].reason,
        )
    return Row(f"{path.stem}, B {batch}, S {length}", figures, {"batch": batch, "length": length})


def create_session(path: Path, device: str, threads: int, profile: Path | None = None) -> Any:
    """A session on the device, with the operator registered; its arena grows by what is asked for.

    ``profile``: begin a profile, with a name that begins so.
    """
    onnxruntime = import_onnxruntime()
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    if profile is not None:
        options.enable_profiling, options.profile_file_prefix = True, str(profile)
    register(options)
    gpu = (CUDA, {"arena_extend_strategy": "kSameAsRequested"})
    session = onnxruntime.InferenceSession(str(path), options, providers=[gpu, CPU] if device == "cuda" else [CPU])
    if device == "cuda" and CUDA not in session.get_providers():
        raise RuntimeError("onnxruntime could not start its CUDA provider on this machine")
    return session


def bound_run(session: Any, feed: dict[str, Any], device: str) -> Callable[[], list[Any]]:
    """Runs on inputs that lie on the device; the outputs stay there until they are read."""
    binding = session.io_binding()
    onnxruntime = import_onnxruntime()
    for value in session.get_inputs():
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(feed[value.name], device, 0))
    for value in session.get_outputs():
        binding.bind_output(value.name, device, 0)

    def run() -> list[Any]:
        session.run_with_iobinding(binding)
        binding.synchronize_outputs()
        return binding.get_outputs()  # type: ignore[no-any-return]

    def run_to_arrays() -> list[Any]:
        return [value.numpy() for value in run()]

    return run_to_arrays if device == "cpu" else _first_reads(run)


def _first_reads(run: Callable[[], list[Any]]) -> Callable[[], list[Any]]:
    """Copies the outputs of the first run to the host, where they are compared, and of no other."""
    seen: list[bool] = []

    def call() -> list[Any]:
        values = run()
        if seen:
            return []
        seen.append(True)
        return [value.numpy() for value in values]

    return call


# ------------------------------------------------------------------------------------------------- peak memory
@dataclass
class Held:
    """What a candidate was found to need, by length."""

    peaks: dict[int, int] = field(default_factory=dict)
    gpu: dict[int, GpuTime] = field(default_factory=dict)
    reason: str = ""
    """Why something is missing."""


def attention_ms(name: str, times: Mapping[str, GpuTime]) -> float | None:
    """A candidate's attention; where it has no attention node, what its rewriting saves, and that one's attention."""
    own = times.get(name)
    if own is None or own.attention_ms is not None:
        return None if own is None else own.attention_ms
    ours = times.get(OURS if name == ORIGINAL else f"{OURS}, {name}")
    return None if ours is None or ours.attention_ms is None else own.all_ms - ours.all_ms + ours.attention_ms


def _hold(path: Path, feeds: Mapping[int, Feed], folder: Path, device: str, threads: int) -> Held:
    """Most memory held after a run at each length in turn, and on a GPU what the kernels take.

    Memory is what is resident in a process of its own on the CPU; on a GPU, what the device has less of since before
    the session was made, in this process, so that the CUDA context and the libraries that a first session loads don't
    count. Lengths rise, since neither falls again.
    """
    if device == "cuda":
        return _hold_on_device(path, feeds, folder, threads)
    files = []
    for length, feed in feeds.items():
        files.append(folder / f"{length}.npz")
        np.savez(files[-1], **feed)  # type: ignore[arg-type]
    command = [sys.executable, "-m", "ortflash.bench.model", str(threads), str(path), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    peaks = [int(line) for line in done.stdout.splitlines() if line.isdigit()]
    return Held(dict(zip(feeds, peaks, strict=False)), reason=(done.stderr.strip().splitlines() or [""])[-1])


def _print_peaks(threads: str, path: str, *feeds: str) -> None:
    session = create_session(Path(path), "cpu", int(threads))
    for feed in feeds:
        with np.load(feed) as arrays:
            values = dict(arrays)
        bound_run(session, values, "cpu")()
        print(peak_bytes(), flush=True)


def _hold_on_device(path: Path, feeds: Mapping[int, Feed], folder: Path, threads: int) -> Held:
    held = Held()
    before = _device_bytes()
    try:
        session = create_session(path, "cuda", threads, profile=folder / "profile")
        runs = {}
        for length, feed in feeds.items():
            runs[length] = bound_run(session, feed, "cuda")
            runs[length]()
            held.peaks[length] = _device_bytes() - before
        held.gpu.update(zip(runs, attention_time.measure(session, runs.values()), strict=True))
    except Exception as error:  # onnxruntime's exceptions have no common base
        held.reason = str(error).splitlines()[0][:200]
    return held


def _device_bytes() -> int:
    import torch

    free, total = torch.cuda.mem_get_info()
    return int(total - free)


if __name__ == "__main__":
    _print_peaks(*sys.argv[1:])
