"""The HTML report: what it says, that it needs nothing else, and how it behaves in a real browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from html import unescape
from pathlib import Path
from typing import Any

import onnx
import pytest
from blocks import Block, model_of
from onnx import TensorProto, helper

import ortflash
from ortflash import api
from ortflash.html_report import render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
PHONE_WIDTH = 360

_PROBE = """
<iframe id="frame" width="{width}" height="640" srcdoc="{page}"></iframe>
<pre id="result"></pre>
<script>
document.getElementById("frame").onload = () => {{
  const page = document.getElementById("frame").contentDocument, root = page.documentElement;
  const reachable = [...page.querySelectorAll("a, summary")].filter(element => {{
    element.focus(); return page.activeElement === element;
  }});
  const closed = [...page.querySelectorAll("details:not([open])")];
  closed.forEach(element => element.querySelector("summary").click());
  const text = [...page.querySelectorAll("p, dd, summary")].map(e => parseFloat(getComputedStyle(e).fontSize));
  document.getElementById("result").textContent = JSON.stringify({{
    overflow: root.scrollWidth - root.clientWidth,
    reachable: reachable.length,
    all: page.querySelectorAll("a, summary").length,
    opened: closed.filter(element => element.open).length,
    closed: closed.length,
    smallest: Math.min(...text),
    drawn: [...page.querySelectorAll("svg")].filter(e => e.getBoundingClientRect().height > 40).length,
  }});
}};
</script>
"""


def page_of(model: onnx.ModelProto, **options: Any) -> str:
    drawings = api.draw(model)
    return render(ortflash.rewrite(model, **options).report, drawings)


@pytest.fixture(scope="module")
def page() -> str:
    """Two sites that fuse and one that doesn't."""
    model = model_of(Block("a_", bias=True, mask=True), Block("b_", softcap=3.0), Block("c_"))
    model.graph.output.append(helper.make_tensor_value_info("c_weights", TensorProto.FLOAT, ["b", "h", "s", "t"]))
    return page_of(model)


def test_it_says_what_was_found_and_done(page: str) -> None:
    text = unescape(re.sub(r"<[^>]+>", " ", page))
    for words in ("2 of 3 attention sites", "a_weights_node", "softcap 3", "refused", "Error against float64", "c_"):
        assert words in text
    assert page.count("<svg") == 4  # before and after, of the two that fuse
    assert page.count(">FlashAttention<") == 2
    assert page.count(">Softmax<") == 2


def test_it_loads_nothing(page: str) -> None:
    assert not re.search(r"<script|<link|src=|url\(|@import|https?:", page)


def test_names_cannot_break_out() -> None:
    evil = "<script>alert('1')</script>"
    model = model_of(Block(evil))
    page = page_of(model, verify=False)
    assert "<script" not in page
    assert "&lt;script&gt;" in page


def test_a_model_without_attention() -> None:
    model = model_of(Block())
    del model.graph.node[3:]
    model.graph.output[0].name = "scores"
    assert "contains no attention" in page_of(model)


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium on this machine (apt-get install chromium)")
def test_on_a_phone_with_a_keyboard(page: str, tmp_path: Path) -> None:
    """In Chromium at the width of a phone: nothing overflows, all can be focused and opened, graphs are drawn."""
    probe = tmp_path / "probe.html"
    escaped = page.replace("&", "&amp;").replace('"', "&quot;")
    probe.write_text(_PROBE.format(width=PHONE_WIDTH, page=escaped), encoding="utf-8")
    done = subprocess.run(
        [
            str(CHROMIUM),
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={tmp_path / 'profile'}",
            "--virtual-time-budget=5000",
            "--dump-dom",
            probe.as_uri(),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    found = re.search(r'<pre id="result">(.*?)</pre>', done.stdout)
    assert found, done.stdout[-500:]
    result = json.loads(unescape(found[1]))
    assert result["overflow"] <= 0
    assert result["reachable"] == result["all"] == 4
    assert result["opened"] == result["closed"] == 1
    assert result["smallest"] >= 14
    assert result["drawn"] == 4
