"""Which sites a rewrite shall fuse: chosen by patterns, kept in a file that a person can read and edit."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from .errors import GraphToolsError
from .normal_form import Site


@dataclass(frozen=True)
class Choice:
    """Whether to fuse one site, and why not where it stays."""

    site: str
    fuse: bool
    reason: str = ""


@dataclass(frozen=True)
class Plan:
    """A choice for every site that can be fused."""

    choices: tuple[Choice, ...]

    def choice(self, site: str) -> Choice:
        """The choice for a site; a site that the plan doesn't name is left alone."""
        return next((c for c in self.choices if c.site == site), Choice(site, False, "the plan doesn't name it"))

    def check_names(self, sites: Sequence[Site]) -> None:
        """GraphToolsError where the plan names a site that isn't among ``sites``."""
        names = [site.name for site in sites]
        for choice in self.choices:
            if choice.site not in names:
                raise GraphToolsError(
                    f"The plan names the site {choice.site!r}; the model has {', '.join(names) or 'none'}."
                )

    def to_json(self) -> str:
        """The plan as a file: one line a site, ``"fuse"`` to be edited."""
        lines = [json.dumps({"site": c.site, "fuse": c.fuse, "reason": c.reason}) for c in self.choices]
        return '{"sites": [\n  ' + ",\n  ".join(lines) + "\n]}\n"

    @staticmethod
    def from_json(text: str) -> Plan:
        """Reads :meth:`to_json` back; GraphToolsError where it isn't a plan."""
        try:
            plan = json.loads(text)
            if not isinstance(plan, dict):
                raise ValueError("it isn't an object with a list of sites")
            entries: Any = plan["sites"]
            return Plan(tuple(_read_choice(entry) for entry in entries))
        except (ValueError, KeyError, TypeError) as error:
            raise GraphToolsError(
                f"The plan can't be read ({error}); write one with: ortflash inspect --plan."
            ) from None


def make_plan(
    sites: Sequence[Site], *, only: Sequence[str] = (), skip: Sequence[str] = (), min_length: int = 0
) -> Plan:
    """Choose among the sites that can be fused.

    ``only`` and ``skip`` are patterns with ``*`` and ``?``; each must fit a site. ``min_length`` leaves sites alone
    whose key length is known and shorter; sites of unknown length are fused.
    """
    names = [site.name for site in sites]
    for pattern in (*only, *skip):
        if not any(_fits(name, (pattern,)) for name in names):
            raise GraphToolsError(f"No site is called {pattern!r}; the model has {', '.join(names) or 'none'}.")
    choices = []
    for site in sites:
        if site.form is None:
            continue
        length = site_sizes(site)["T"]
        reason = ""
        if only and not _fits(site.name, only):
            reason = "--only leaves it out"
        elif _fits(site.name, skip):
            reason = "--skip names it"
        elif isinstance(length, int) and length < min_length:
            reason = f"its key length {length} is below --min-length {min_length}"
        choices.append(Choice(site.name, not reason, reason))
    return Plan(tuple(choices))


def site_sizes(site: Site) -> dict[str, int | str]:
    """Sizes of a fusable site by the schema's letters B, N, M, S, T, D, E.

    A symbolic dimension gives its name, an unknown one the letter; several axes of the model in one give a product,
    such as ``4*windows``.
    """
    form = site.form
    if form is None:
        raise ValueError(f"site {site.name!r} has no form")
    sizes: dict[str, int | str] = {}
    for letter in "BNMSTDE":
        dims = [form.sizes.get(word) for word in form.op_axes.get(letter, letter).split()]
        number = 1
        symbols = []
        for dim in dims:
            if isinstance(dim, int):
                number *= dim
            else:
                symbols.append(letter if dim is None else dim)
        sizes[letter] = "*".join([*([str(number)] if number != 1 else []), *symbols]) if symbols else number
    return sizes


def _fits(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _read_choice(entry: Mapping[str, Any]) -> Choice:
    if not isinstance(entry["site"], str) or not isinstance(entry["fuse"], bool):
        raise ValueError(f"site and fuse of {entry!r} are not a name and true or false")
    return Choice(entry["site"], entry["fuse"], str(entry.get("reason", "")))
