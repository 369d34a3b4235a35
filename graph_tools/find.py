"""Every attention site of a model: where it is, what it computes, or why it stays as it is."""

from __future__ import annotations

from pathlib import Path

import onnx

from .anchors import Anchor, anchors
from .assemble import assemble
from .edits import SiteEdit
from .graph_view import GraphView, Scope
from .lower import lower
from .names import Names
from .normal_form import Refusal, Site
from .peel import match
from .rules_fused import fused_anchors, is_fused, match_fused
from .shape_infer import infer

OWN_FUNCTION = "function ortflash::"
"""The fused op's own body is an attention too, and stays one."""


class Analysis:
    """Every attention site of a model, found once."""

    def __init__(self, model: onnx.ModelProto, *, model_dir: Path | None = None, training: bool = False) -> None:
        """``model`` is never changed. External data is read from ``model_dir``, and only for small constants.

        With ``training`` a live Dropout of probabilities becomes the op's ``dropout_p``.

        Raises :class:`~.errors.InvalidModelError` where the model isn't a graph at all.
        """
        self._view = GraphView(model, model_dir)
        infer(self._view)
        self._names = Names(self._view.names)
        self._scopes: dict[int, Scope] = {}
        sites = []
        for scope in self._view.scopes():
            if scope.path.startswith(OWN_FUNCTION):
                continue
            for anchor in (*anchors(scope), *fused_anchors(scope)):
                site = _site(anchor, training)
                self._scopes[id(site)] = scope
                sites.append(site)
        self.sites: tuple[Site, ...] = tuple(sites)

    def edit(self, site: Site) -> SiteEdit | Refusal:
        """What has to change in the graph to fuse ``site``; new names are unique in the model and across edits."""
        if site.form is None:
            return site.refusal or Refusal("form", site.name, "the site has no form")
        return lower(site, site.form, self._names, self._scopes[id(site)].opset)


def _site(anchor: Anchor, training: bool) -> Site:
    try:
        found = match_fused(anchor) if is_fused(anchor.node) else match(anchor, training=training)
        form = found if isinstance(found, Refusal) else assemble(found)
    except (IndexError, KeyError, TypeError, ValueError) as error:  # inputs or attributes that ONNX doesn't allow
        reason = f"the graph round this node isn't valid ONNX ({type(error).__name__}: {error})"
        form = Refusal("malformed", anchor.node.label, reason, "check the model with onnx.checker")
    return Site(
        name=anchor.name,
        graph=anchor.scope.path,
        anchor=anchor.probabilities,
        form=None if isinstance(form, Refusal) else form,
        refusal=form if isinstance(form, Refusal) else None,
    )
