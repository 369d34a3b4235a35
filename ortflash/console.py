"""What the command line prints: tables for people, made from the API's results."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from .graph_tools.report import ModelReport, reason_text, sizes_text, total

if TYPE_CHECKING:
    from .api import RewriteResult
    from .demo import DemoResult
    from .doctor import Diagnosis
    from .verify import Verification

_STYLES = {
    "fused": "green",
    "fusable": "green",
    "refused": "yellow",
    "skipped": "dim",
    "rolled back": "red",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
}
_WIDTH_OF_FILES = 160


def print_report(report: ModelReport) -> None:
    """Summary, one line a site, what it all saves, and why sites stay as they are."""
    console = _console()
    console.print(Text(report.summary))
    if not report.sites:
        return
    table = Table(box=None, pad_edge=False)
    for title in ("site", "type", "sizes", "found", "decision"):
        table.add_column(title, overflow="fold")
    table.add_column("operations", justify="right")
    table.add_column("bytes of scores", justify="right")
    errors = any(site.error is not None for site in report.sites)
    if errors:
        table.add_column("error", justify="right")
    for site in report.sites:
        table.add_row(
            Text(site.name),
            site.dtype,
            Text(sizes_text(site.sizes)),
            Text(", ".join(site.features)),
            Text(site.decision, style=_STYLES[site.decision]),
            Text(str(site.flops or "")),
            Text(str(site.scores_bytes or "")),
            *(["" if site.error is None else f"{site.error:.1e}"] if errors else []),
        )
    console.print(table)
    _print_savings(console, report)
    for site in report.sites:
        if site.reason:
            console.print(Text(f"{site.name} ({site.decision}): {reason_text(site)}", style=_STYLES[site.decision]))
    for note in report.notes:
        console.print(Text(note))


def print_rewrite(result: RewriteResult, *, dry_run: bool) -> None:
    """The report, whether it was verified, and where the model is."""
    console = _console()
    print_report(result.report)
    if result.verification is not None:
        print_outputs(result.verification)
    if result.output is not None:
        unchanged = "" if result.fused else ", unchanged"
        console.print(Text(f"Written: {result.output}{unchanged}"))
    elif dry_run:
        console.print("Nothing was written (--dry-run).")
    elif result.fused:
        console.print("Nothing was written, because the whole model differs.")


def print_verification(result: Verification) -> None:
    """One line a site, then the outputs."""
    console = _console()
    table = Table(box=None, pad_edge=False)
    for title in ("site", "result", "largest error", "allowed"):
        table.add_column(title, overflow="fold")
    for check in result.sites:
        worst = check.worst
        table.add_row(
            Text(check.site),
            Text("ok" if check.passed else "differs", style="green" if check.passed else "red"),
            f"{check.error:.1e}",
            f"{worst.bound:.1e}" if worst else "",
        )
    if result.sites:
        console.print(table)
    else:
        console.print("The rewritten model has no site that is fused in it and not in the original.")
    for check in result.sites:
        if check.sentence:
            console.print(Text(check.sentence, style="red"))
    for note in result.notes:
        console.print(Text(note))
    print_outputs(result)


def print_outputs(result: Verification) -> None:
    """One line an output of the whole model."""
    console = _console()
    for output in result.outputs:
        comparison = output.comparison
        if comparison.passed:
            text = f"Output {output.output!r}: largest error {comparison.error:.1e}, {comparison.bound:.1e} is allowed."
            console.print(Text(text))
        else:
            console.print(Text(f"Output {output.output!r} {comparison.problem}.", style="red"))


def print_diagnosis(diagnosis: Diagnosis) -> None:
    """One line a finding."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column()
    table.add_column()
    table.add_column(overflow="fold")
    for finding in diagnosis.findings:
        table.add_row(finding.subject, Text(finding.status, style=_STYLES[finding.status]), Text(finding.detail))
    _console().print(table)


def print_demo(result: DemoResult) -> None:
    """The table of ``make demo``."""
    console = _console()
    report = result.rewrite.report
    error = result.rewrite.verification.largest_error if result.rewrite.verification else 0.0
    console.print(
        Text(
            f"{report.model}: {len(report.sites)} attention sites found, {report.count('fused')} fused; "
            f"largest error of an output {error:.1e}; the op that ran is {result.runs_on}."
        )
    )
    table = Table(box=None, pad_edge=False)
    for title in ("batch x length", "largest error", "time before", "after", "ratio", "peak memory before", "after"):
        table.add_column(title, justify="right")
    for row in result.rows:
        table.add_row(
            f"{row.batch} x {row.length}",
            f"{row.error:.1e}",
            f"{row.before.time_ms:.1f} ms",
            f"{row.after.time_ms:.1f} ms",
            f"{row.before.time_ms / row.after.time_ms:.2f}x",
            f"{row.before.peak_bytes / 2**20:.0f} MiB",
            f"{row.after.peak_bytes / 2**20:.0f} MiB",
        )
    console.print(table)


def _print_savings(console: Console, report: ModelReport) -> None:
    sites = [site for site in report.sites if site.decision in ("fused", "fusable")]
    flops, scores = total([s.flops for s in sites]), total([s.scores_bytes for s in sites])
    if len(sites) > 1 and flops is not None and scores is not None:
        console.print(Text(f"In all {len(sites)}: {flops} operations, {scores} bytes of scores that are never stored."))


def _console() -> Console:
    """Standard output; wide where it is a file or a pipe, so that lines stay lines."""
    console = Console(highlight=False, emoji=False, markup=False)
    return (
        console if console.is_terminal else Console(highlight=False, emoji=False, markup=False, width=_WIDTH_OF_FILES)
    )
