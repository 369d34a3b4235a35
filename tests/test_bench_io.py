"""`ortflash bench io` and `bench density`, as far as they go without a GPU: the masks, ncu's output, the picture."""

from __future__ import annotations

from pathlib import Path

import pytest

from ortflash.bench import density, io
from ortflash.bench.plot import plot_densities
from ortflash.bench.results import OURS, Benchmark, Figure, Row
from ortflash.errors import OrtflashError

HEADER = ",".join(f'"{name}"' for name in ("ID", "Process ID", "Kernel Name", "Grid Size", *io.METRICS))
UNITS = '"","","","","byte","byte","ns"'
SPIN = '"0","7","at::cuda::(anonymous namespace)::spin_kernel(long)","(1, 1, 1)","512","0","900"'


def kernel(name: str, read: str, written: str, time: str) -> str:
    return f'"1","7","{name}","(64, 1, 1)","{read}","{written}","{time}"'


LOG = [
    "==PROF== Connected to process 7",
    HEADER,
    UNITS,
    kernel("before anything", "1", "1", "1"),
    SPIN,
    kernel("forward<half, 64>", "1,500,000,000", "250,000,000", "660000"),
    SPIN,
    kernel("delta", "100", "20", "5"),
    kernel("backward", "1000", "200", "50"),
]


def test_ncu_s_kernels_are_added_up_between_the_separators() -> None:
    forward, backward = io.steps_of(LOG)
    assert forward == io.Traffic(1_500_000_000, 250_000_000, 660_000, 1)
    assert backward == io.Traffic(1100, 220, 55, 2)
    rows = io.rows_of([forward, backward], [OURS], "a call")
    assert [row.case for row in rows] == ["forward, a call", "backward, a call", "both, a call"]
    both = rows[2].figures[OURS]
    assert both.moved_bytes == 1_750_001_320
    assert both.time_ms == pytest.approx(0.660055)
    assert "3 kernels" in both.note


def test_a_candidate_that_ran_nothing_has_no_figure() -> None:
    rows = io.rows_of([io.Traffic(), io.Traffic(1, 1, 1, 1)], ["cuDNN"], "a call")
    assert not rows[0].figures["cuDNN"].ran


def test_output_that_is_not_ncu_s_is_refused() -> None:
    with pytest.raises(OrtflashError, match=r"no column 'dram__bytes_read\.sum'"):
        list(io.steps_of(['"ID","Kernel Name"']))
    with pytest.raises(OrtflashError, match="ncu saw 1 steps instead of 2"):
        io.rows_of([io.Traffic()], [OURS], "a call")


def test_without_ncu_a_sentence_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    with pytest.raises(OrtflashError, match="ncu was not found: install NVIDIA Nsight Compute"):
        io.measure(1, 1, 128, 64, [OURS])


@pytest.mark.parametrize("one_in", density.DENSITIES)
def test_every_row_has_the_same_share_of_blocks(one_in: int) -> None:
    mask = density.random_blocks(16384, one_in)
    assert mask.shape == (128, 128)
    assert set(mask.sum(1)) == {128 // one_in}


def test_the_sweep_ends_with_bigbird_at_a_sixteenth() -> None:
    *sweep, last = density.problems(16384, 64)
    assert [problem.density for problem in sweep] == [1 / one_in for one_in in density.DENSITIES]
    assert last.length == 65536
    assert last.density == pytest.approx(1 / 16, rel=0.1)


def test_densities_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = tuple(
        Row(
            f"1/{one_in}, {what}",
            {OURS: Figure(8.0 / one_in), **dict.fromkeys(density.PEERS, Figure(6.0))},
            {"length": 16384, "head_size": 64, "density": 1 / one_in, "pass": what},
        )
        for what in ("forward", "backward")
        for one_in in (1, 4, 16)
    )
    benchmark = Benchmark("density", "ortflash bench density", {"GPU": "a GPU"}, "", rows)
    plot_densities(benchmark, tmp_path / "density.svg")
    drawn = (tmp_path / "density.svg").read_text(encoding="utf-8")
    assert "proportional" in drawn
    with pytest.raises(OrtflashError, match="no calls of several densities"):
        plot_densities(Benchmark("other", "", {}, "", ()), tmp_path / "other.svg")
