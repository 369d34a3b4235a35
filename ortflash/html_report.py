"""The report as one self-contained HTML file: no script, no font, nothing to load; for phones and keyboards too."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

from .drawing import Drawing, SiteDrawing
from .graph_tools.report import ModelReport, SiteReport, reason_text, sizes_text, total

_BOX_HEIGHT, _GAP_X, _GAP_Y, _MARGIN = 26, 14, 22, 8
_CHARACTER = 7.6
"""Width of one character of a label."""

_STYLE = """
:root { color-scheme: light dark; --line: #8a8f98; --muted: #565c67; --ink: #16181d; --page: #fff; --soft: #f1f3f6;
  --good: #0b6b3a; --warn: #8a4b00; --bad: #a01420; --accent: #0b57d0; }
@media (prefers-color-scheme: dark) { :root { --line: #767c87; --muted: #a9afba; --ink: #e8eaee; --page: #14161a;
  --soft: #22262d; --good: #6fd3a0; --warn: #f0b35f; --bad: #ff8d8d; --accent: #8ab4ff; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 1rem; max-width: 64rem; font: 1rem/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; }
a { color: var(--accent); }
:focus-visible { outline: 3px solid var(--accent); outline-offset: 2px; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; margin: .5rem 0; }
dt { color: var(--muted); } dd { margin: 0; }
details { border: 1px solid var(--line); border-radius: .5rem; margin: .6rem 0; background: var(--soft); }
summary { padding: .6rem .8rem; cursor: pointer; min-height: 2.75rem; }
details > div { padding: 0 .8rem .8rem; }
.decision { font-weight: 600; } .fused, .fusable { color: var(--good); } .refused, .skipped { color: var(--warn); }
.rolled { color: var(--bad); }
.graphs { display: flex; flex-wrap: wrap; gap: 1rem; }
figure { margin: 0; flex: 1 1 16rem; min-width: 0; }
svg { display: block; max-width: 100%; height: auto; background: var(--page); border-radius: .4rem; }
svg text { font: 12px ui-monospace, monospace; fill: var(--ink); text-anchor: middle; }
svg rect { fill: var(--soft); stroke: var(--line); } svg .input rect, svg .output rect { fill: none; }
svg .fused rect { stroke: var(--good); stroke-width: 2; } svg path { fill: none; stroke: var(--line); }
.skip { position: absolute; left: -99rem; } .skip:focus { position: static; }
"""


def render(report: ModelReport, drawings: Mapping[tuple[str, str], SiteDrawing]) -> str:
    """The whole page. ``drawings`` has a site's graphs by its own graph and name; other sites are in words."""
    sites = "\n".join(
        _site(index, site, drawings.get((site.graph, site.name))) for index, site in enumerate(report.sites)
    )
    notes = "".join(f"<li>{escape(note)}</li>" for note in report.notes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Attention in {escape(report.model)}</title>
<style>{_STYLE}</style>
</head>
<body>
<a class="skip" href="#sites">Skip to the sites</a>
<header>
<h1>Attention in {escape(report.model)}</h1>
<p>{escape(report.summary)}</p>
{_facts(_summary_facts(report))}
{f"<h2>Notes</h2><ul>{notes}</ul>" if notes else ""}
</header>
<main id="sites">
<h2>Sites</h2>
{sites or "<p>None.</p>"}
</main>
</body>
</html>
"""


def _summary_facts(report: ModelReport) -> dict[str, str]:
    fused = [site for site in report.sites if site.decision in ("fused", "fusable")]
    flops, scores = total([s.flops for s in fused]), total([s.scores_bytes for s in fused])
    errors = [site.error for site in report.sites if site.error is not None]
    return {
        "Opset": str(report.opset),
        "Target": {"ort": "ortflash::FlashAttention", "onnx": "the standard Attention"}[report.target],
        "Operations": str(flops or ""),
        "Scores never stored": f"{scores} bytes" if scores else "",
        "Largest error": f"{max(errors):.1e}" if errors else "",
    }


def _site(index: int, site: SiteReport, drawing: SiteDrawing | None) -> str:
    style = site.decision.split()[0]
    error = ""
    if site.error is not None:
        error = f"{site.error:.1e}" + (f" ({site.bound:.1e} is allowed)" if site.bound is not None else "")
    facts = {
        "Why": reason_text(site),
        "Rule": site.rule,
        "In": site.graph,
        "Type": site.dtype,
        "Sizes": sizes_text(site.sizes),
        "Found": ", ".join(site.features),
        "Operations": str(site.flops or ""),
        "Scores never stored": f"{site.scores_bytes} bytes" if site.scores_bytes else "",
        "Error against float64": error,
    }
    graphs = ""
    if drawing is not None:
        graphs = (
            '<div class="graphs">'
            f"{_figure(f'Before: {len(drawing.before.nodes)} boxes', drawing.before)}"
            f"{_figure('After', drawing.after)}</div>"
        )
    is_open = " open" if index == 0 or site.decision in ("refused", "rolled back") else ""
    return (
        f'<details id="site-{index}"{is_open}><summary>{escape(site.name)}: '
        f'<span class="decision {style}">{escape(site.decision)}</span></summary>\n'
        f"<div>{_facts(facts)}{graphs}</div></details>"
    )


def _facts(facts: Mapping[str, str]) -> str:
    rows = "".join(f"<dt>{escape(key)}</dt><dd>{escape(value)}</dd>" for key, value in facts.items() if value)
    return f"<dl>{rows}</dl>" if rows else ""


def _figure(caption: str, drawing: Drawing) -> str:
    words = " to ".join(drawing.nodes[row[0]].label for row in drawing.layers)
    return f"<figure><figcaption>{escape(caption)}</figcaption>{_svg(drawing, words)}</figure>"


def _svg(drawing: Drawing, words: str) -> str:
    """Layers from top to bottom, each centred; an arrow from the bottom of a box to the top of the next."""
    widths = [max(34.0, _CHARACTER * len(node.label) + 14) for node in drawing.nodes]
    rows = drawing.layers
    row_widths = [sum(widths[i] for i in row) + _GAP_X * (len(row) - 1) for row in rows]
    width = max(row_widths) + 2 * _MARGIN
    height = len(rows) * (_BOX_HEIGHT + _GAP_Y) - _GAP_Y + 2 * _MARGIN
    left: dict[int, float] = {}
    top: dict[int, float] = {}
    for number, row in enumerate(rows):
        x = (width - row_widths[number]) / 2
        for index in row:
            left[index], top[index] = x, _MARGIN + number * (_BOX_HEIGHT + _GAP_Y)
            x += widths[index] + _GAP_X
    paths = []
    for source, target in drawing.edges:
        x1, y1 = left[source] + widths[source] / 2, top[source] + _BOX_HEIGHT
        x2, y2 = left[target] + widths[target] / 2, top[target]
        middle = (y1 + y2) / 2
        paths.append(f'<path d="M{x1:.0f} {y1:.0f}C{x1:.0f} {middle:.0f} {x2:.0f} {middle:.0f} {x2:.0f} {y2:.0f}"/>')
    boxes = [
        f'<g class="{node.kind}"><title>{escape(node.name)}</title>'
        f'<rect x="{left[i]:.0f}" y="{top[i]:.0f}" width="{widths[i]:.0f}" height="{_BOX_HEIGHT}" rx="5"/>'
        f'<text x="{left[i] + widths[i] / 2:.0f}" y="{top[i] + 17:.0f}">{escape(node.label)}</text></g>'
        for i, node in enumerate(drawing.nodes)
    ]
    return (
        f'<svg viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" role="img" aria-label="{escape(words)}">'
        f"{''.join(paths)}{''.join(boxes)}</svg>"
    )
