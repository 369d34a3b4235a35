"""The benchmark's bookkeeping, and one small race on the CPU."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from ortflash.bench import grids, kernel_cpu, measures, race
from ortflash.bench.command import app, markdown_of, summary_of, with_tables
from ortflash.bench.measures import geometric_mean
from ortflash.bench.results import OURS, Benchmark, Figure, Row
from ortflash.errors import OrtflashError
from ortflash.measure import measure

TINY = grids.Shape(1, 2, 16, 8, "float32")


def _benchmark() -> Benchmark:
    figures = {
        "slow peer": Figure(4.0),
        OURS: Figure(2.0, 0.5, 1e-6, 3 << 20),
        "absent peer": Figure(math.nan, note="no"),
    }
    return Benchmark("table", "ortflash bench", {"processor": "one"}, "Median.", (Row("a case", figures),))


def test_results_come_back_from_their_file(tmp_path: Path) -> None:
    benchmark = _benchmark()
    assert repr(Benchmark.load(benchmark.save(tmp_path))) == repr(benchmark)


def test_ratio_is_against_the_best_peer_that_ran() -> None:
    figures = {OURS: Figure(2.0), "a": Figure(3.0), "b": Figure(1.0), "c": Figure(math.nan)}
    row = Row("x", figures)
    assert (row.best_peer, row.ratio) == ("b", 0.5)
    assert Row("x", {OURS: Figure(2.0)}).ratio is None


def test_table_shows_every_candidate_and_leaves_gaps_for_those_that_did_not_run(tmp_path: Path) -> None:
    _benchmark().save(tmp_path)
    text = markdown_of(tmp_path)
    assert "| a case | 2 ms, 500 GFLOP/s, 3 MiB | 4 ms |  | 2.00x (slow peer) | 1.0e-06 |" in text


_TERMS = (("", ""), ("1NST", ""), ("", "B11T"))


def _term_rows() -> tuple[Row, ...]:
    plain, biased, padded = (grids.Shape(4, 8, 64, 32, bias=bias, mask=mask) for bias, mask in _TERMS)
    return (
        Row("plain", {OURS: Figure(1.0, 100.0), "cuDNN": Figure(1.1)}, {**vars(plain), "clocks": "1"}),
        Row(
            "bias",
            {OURS: Figure(1.25, 80.0), "cuDNN": Figure(2.5), "flash-attn-4": Figure(1.5)},
            {**vars(biased), "clocks": "2"},
        ),
        Row("mask", {OURS: Figure(2.0, 50.0), "cuDNN": Figure(math.nan)}, {**vars(padded), "clocks": "3"}),
    )


def test_rows_with_terms_are_held_against_pytorch_flash_attn_4_and_their_plain_call() -> None:
    assert measures.columns(_term_rows()) == {
        "against the best of PyTorch": ["", "2.00x", ""],
        "against flash-attn-4": ["", "1.20x", ""],
        "of the speed without": ["", "80%", "50%"],
    }


def test_means_by_peer_take_the_rows_in_which_the_peer_ran() -> None:
    [(name, (mean, rows))] = measures.means_by_peer(_term_rows()).items()
    assert (name, rows) == ("cuDNN", 2)
    assert mean == pytest.approx(math.sqrt(1.1 * 2.0))


def test_reading_keys_and_values_is_held_against_a_copy() -> None:
    row = Row("x", {OURS: Figure(2.0)}, {"kv_bytes": 9e9, "copy_bytes_per_s": 5e12})
    assert measures.columns([row]) == {"of the speed of a copy": ["90%"]}


def test_models_are_held_against_the_peer_with_the_least_memory_and_attention_time() -> None:
    figures = {
        OURS: Figure(2.0, peak_bytes=100, attention_ms=0.5),
        f"{OURS}, opset 23": Figure(1.0, peak_bytes=50, attention_ms=0.25),
        "original": Figure(3.0, peak_bytes=80),
        "opset 23": Figure(1.5, peak_bytes=60, attention_ms=0.5),
    }
    row = Row("x", figures, {"length": 1})
    assert (row.best_peer, row.ratio) == ("opset 23", 1.5)
    assert measures.columns([row]) == {
        "attention's own time, least peer's over ours": ["2.00x"],
        "memory, least peer's over ours": ["1.20x"],
    }


def test_padding_is_no_work() -> None:
    assert grids.Shape(2, 1, 8, 4, key_lengths=(3, 8)).flops == 2 * 8 * 11 * 8


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for text in ("# Title", "{}", "[]"):
        (tmp_path / "other.json").write_text(text, encoding="utf-8")
        with pytest.raises(OrtflashError, match="isn't a file of results"):
            Benchmark.load(tmp_path / "other.json")


def test_summary_is_a_line_a_file(tmp_path: Path) -> None:
    _benchmark().save(tmp_path)
    text = summary_of(tmp_path)
    ratio = "2.00x of slow peer: a case"
    assert text.splitlines()[2:] == [f"| table | 1 | 2.00x | {ratio} | {ratio} | `ortflash bench` |"]


def test_plot_has_a_panel_a_head_size_and_mask_and_a_line_a_candidate(tmp_path: Path) -> None:
    rows = []
    for size in (64, 128):
        for causal in (False, True):
            for length in (512, 1024):
                sizes = {"head_size": size, "is_causal": causal, "q_len": length, "dtype": "float16"}
                figures = {OURS: Figure(1.0, 9.0), "peer": Figure(2.0, 4.5), "absent": Figure(math.nan)}
                rows.append(Row("case", figures, sizes))
    path = Benchmark("grid", "ortflash bench", {"GPU": "one"}, "Median.", tuple(rows)).save(tmp_path)
    assert CliRunner().invoke(app, ["plot", str(path)]).exit_code == 0
    text = path.with_suffix(".svg").read_text(encoding="utf-8")
    titles = [f"head {size}, {mask}" for size in (64, 128) for mask in ("full", "causal")]
    assert [text.count(f"<!-- {title} -->") for title in titles] == [1, 1, 1, 1]
    assert (text.count("<!-- peer -->"), text.count("<!-- absent -->")) == (4, 0)


def test_race_rotates_the_order_and_takes_the_median() -> None:
    order: list[str] = []
    times = {"a": iter([5.0, 1.0, 3.0]), "b": iter([2.0, 2.0, 9.0])}

    def candidate(name: str) -> float:
        order.append(name)
        return next(times[name])

    found = race.race({n: lambda n=n: candidate(n) for n in times}, race.Protocol(3))  # type: ignore[misc]
    assert found == {"a": 3.0, "b": 2.0}
    assert order == ["a", "b", "b", "a", "a", "b"]


def test_operations_count_both_products_and_half_of_them_where_causal() -> None:
    shape = grids.Shape(2, 3, 5, 8, kv_len=7, v_head_size=4)
    assert shape.flops == 2 * 2 * 3 * 5 * 7 * (8 + 4)
    assert grids.Shape(1, 1, 4, 8, is_causal=True).flops == 4 * 4 * 4 * 8 / 2


def test_every_label_of_a_grid_is_its_own() -> None:
    for name, shapes in grids.GRIDS.items():
        assert len({shape.label for shape in shapes}) == len(shapes), name


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)


def test_kernel_race_on_the_cpu_writes_its_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(grids.GRIDS, "tiny", (TINY,))
    done = CliRunner().invoke(
        app, ["kernel", "--grid", "tiny", "--repetitions", "2", "-o", str(tmp_path)], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output
    benchmark = Benchmark.load(tmp_path / "kernel-tiny.json")
    assert str(tmp_path) not in benchmark.command
    [row] = benchmark.rows
    assert set(row.figures) == {OURS, "unfused graph", "MultiHeadAttention"}
    for name, figure in row.figures.items():
        assert figure.ran, (name, figure.note)
        assert figure.error is not None
        assert figure.error < 1e-5, name


def test_a_model_that_cannot_run_at_a_length_says_so(tmp_path: Path) -> None:
    model = Path(__file__).parent.parent / "models" / "bert4096-dy-sdpa-op18.onnx"
    with pytest.raises(OrtflashError, match=r"bert4096-dy-sdpa-op18\.onnx doesn't run at length 8192: .*Expand"):
        CliRunner().invoke(app, ["model", str(model), "--length", "8192", "-o", str(tmp_path)], catch_exceptions=False)
    with pytest.raises(OrtflashError, match="knows no type of model 'foo'; it knows bart, bert,"):
        CliRunner().invoke(
            app, ["model", str(model), "--model-type", "foo", "-o", str(tmp_path)], catch_exceptions=False
        )
    assert not list(tmp_path.iterdir())


def test_readme_shows_the_results_that_the_repository_holds() -> None:
    root = Path(__file__).parent.parent
    folder = root / "docs" / "benchmarks"
    for file, tables in ((root / "README.md", summary_of(folder)), (folder / "README.md", markdown_of(folder))):
        text = file.read_text(encoding="utf-8")
        assert with_tables(text, tables) == text, file


@pytest.mark.slow
def test_peak_memory_at_8192_is_under_a_tenth_of_the_unfused_graphs(tmp_path: Path) -> None:
    shape = grids.Shape(1, 12, 8192, 64, "float32")
    rng = np.random.default_rng(0)
    feed = tmp_path / "feed.npz"
    width = shape.num_heads * shape.head_size
    query, key, value = (rng.standard_normal((1, shape.q_len, width), np.float32) for _ in range(3))
    np.savez(feed, query=query, key=key, value=value)
    peaks = {}
    for name in (OURS, "unfused graph"):
        path = tmp_path / f"{name}.onnx"
        path.write_bytes(kernel_cpu.candidate_model(name, shape).SerializeToString())
        peaks[name] = measure(path, feed, tmp_path / f"{name}.npz").peak_bytes
    with np.load(tmp_path / f"{OURS}.npz") as ours, np.load(tmp_path / "unfused graph.npz") as unfused:
        np.testing.assert_allclose(ours["output"], unfused["output"], rtol=0, atol=1e-5)
    assert peaks[OURS] < peaks["unfused graph"] / 10, peaks
