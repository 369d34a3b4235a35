"""The tool as Python functions: inspect, rewrite, restore and verify a model.

The command line does nothing that isn't here.
"""

from __future__ import annotations

import itertools
import os
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt
from onnx import ModelProto, NodeProto

from .drawing import SiteDrawing, draw_site
from .engine.ort_provider import move_to_provider_domain, moved_home
from .errors import InvalidModelError, OrtflashError
from .extract import Cutter
from .graph_tools import external_data, standard_attention
from .graph_tools.edits import SiteEdit
from .graph_tools.function_body import MIN_OPSET
from .graph_tools.normal_form import Refusal
from .graph_tools.overflow import repair_masks
from .graph_tools.plan import Choice, Plan, make_plan
from .graph_tools.report import Decision, ModelReport, SiteReport, describe_site
from .graph_tools.restore import restore_calls
from .graph_tools.rewrite import apply_edits, flash_calls
from .graph_tools.scopes import default_opset
from .graph_tools.validate import check_model
from .inputs import ATTEMPTS, LONG_BATCH, LONGEST, Feed, generate_feeds, load_feed, longer_feeds
from .verify import LARGEST_SCORES, Verification, Verifier, fused_edits, notes_of, widest_window

PathLike = str | os.PathLike[str]
Target = Literal["ort", "ort-trt", "onnx"]
Arrays = Mapping[str, npt.NDArray[Any]]
Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many steps are done, and how many there are."""


@dataclass(frozen=True)
class RewriteResult:
    """What a rewrite did."""

    model: ModelProto
    """The rewritten model; the original where nothing was fused."""
    report: ModelReport
    verification: Verification | None
    """None where it wasn't asked for, or nothing was fused."""
    output: Path | None
    """Where the model was written; None where it wasn't."""

    @property
    def fused(self) -> int:
        """How many sites are one fused node now."""
        return self.report.count("fused")

    @property
    def exit_code(self) -> int:
        """0 done; 1 nothing to fuse; 3 a site was rolled back, or the whole model differs."""
        differs = self.verification is not None and not self.verification.model_passed
        if differs or self.report.count("rolled back"):
            return 3
        return 0 if self.fused else 1

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return self.report.to_dict() | {
            "output": str(self.output) if self.output else None,
            "verification": self.verification.to_dict() if self.verification else None,
        }


def inspect(model: PathLike | ModelProto, *, target: Target = "ort", training: bool = False) -> ModelReport:
    """What attention a model has, and what of it would be fused; ``training`` as in :func:`rewrite`.

    Raises:
        InvalidModelError: the file is missing or broken.
    """
    return _Work(model, target, training).report()


def draw(model: PathLike | ModelProto, *, target: Target = "ort") -> dict[tuple[str, str], SiteDrawing]:
    """Each site that can be fused as a graph, before and after, by the graph that it lies in and its name.

    Raises:
        InvalidModelError: the file is missing or broken.
    """
    work = _Work(model, target)
    cutter = Cutter(work.model)
    edits = [edit for edit in work.edits.values() if isinstance(edit, SiteEdit)]
    return {(edit.site.graph, edit.site.name): draw_site(edit, cutter) for edit in edits}


def rewrite(
    model: PathLike | ModelProto,
    output: PathLike | None = None,
    *,
    target: Target = "ort",
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    min_length: int = 0,
    training: bool = False,
    plan: Plan | None = None,
    verify: bool = True,
    inputs: PathLike | Arrays | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    copy_data: bool = False,
    copy_unchanged: bool = True,
    progress: Progress | None = None,
) -> RewriteResult:
    """Fuse a model's attention, prove it, and write the result.

    Args:
        model: a file, or a model in memory, which is left as it is.
        output: where to write; nothing is written without it. External data stays where it lies.
        target: ``"ort"`` for ``ortflash::FlashAttention``, ``"ort-trt"`` for the same in the domain of ONNX Runtime's
            TensorRT provider, ``"onnx"`` for the standard ``Attention`` (opset 23 and up).
        only: patterns of site names; other sites stay.
        skip: patterns of the names of sites that stay.
        min_length: sites whose key length is known to be shorter stay.
        training: fuse sites with a Dropout in training mode, too: it becomes ``dropout_p``, drawn by another generator
            than ONNX's. Such sites, and a model that has one, aren't verified: their numbers are random.
        plan: a choice for each site, in place of ``only``, ``skip`` and ``min_length``.
        verify: run original and rewritten, and roll back sites whose numbers differ.
        inputs: an ``.npz`` file or arrays to verify with; generated where there are none.
        shapes: sizes of inputs to generate, as ``{"input_ids": (2, 77)}``.
        copy_data: copy external data beside an output in another folder, which is refused otherwise.
        copy_unchanged: write the input to ``output`` where nothing is fused.
        progress: called as the work goes on.

    Raises:
        InvalidModelError: the file is missing or broken.
        OrtflashError: inputs that don't fit, a model that ONNX Runtime doesn't run, a pattern that names no site.
    """
    work = _Work(model, target, training)
    if work.folder is not None:
        external_data.check_data(work.model, work.folder)
    if plan is not None:
        plan.check_names(work.sites)
    chosen = work.choose(plan or make_plan(work.sites, only=only, skip=skip, min_length=min_length))
    if not chosen:
        written = work.write_unchanged(output if copy_unchanged else None, copy_data)
        return RewriteResult(work.given, work.report(), None, written)
    verification = None
    if verify:
        verifier = _verifier(work, list(chosen.values()), inputs, shapes)
        result, verification = work.apply_verified(chosen, verifier, progress)
    else:
        result = work.apply(chosen, in_place=not isinstance(model, ModelProto))
    if target == "ort-trt":
        move_to_provider_domain(result)
    written = None
    if output is not None and not work.report().count("fused"):
        written = work.write_unchanged(output if copy_unchanged else None, copy_data)
    elif output is not None and (verification is None or verification.model_passed):
        external_data.save_model(result, output, data_folder=work.folder, copy_data=copy_data)
        written = Path(output)
        work.note_links(written.parent)
    return RewriteResult(result, work.report(), verification, written)


def plan_of(report: ModelReport) -> Plan:
    """A plan that fuses what can be fused."""
    return Plan(tuple(Choice(site.name, True) for site in report.sites if site.decision == "fusable"))


def read_plan(path: PathLike) -> Plan:
    """A plan from a file; OrtflashError where there is none."""
    try:
        return Plan.from_json(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise OrtflashError(f"Can't read the plan {os.fspath(path)}: {error}.") from None


def restore(
    model: PathLike | ModelProto,
    output: PathLike | None = None,
    *,
    only: Sequence[str] = (),
    skip: Sequence[str] = (),
    copy_data: bool = False,
) -> tuple[ModelProto, int]:
    """Swap fused nodes back for the function's standard ops; the model and how many nodes it were.

    Raises:
        InvalidModelError: the file is missing or broken, or a fused node has no function in the file.
    """
    loaded, folder, _ = _load(model)
    proto = moved_home(loaded)
    is_moved = proto is not loaded
    if isinstance(model, ModelProto) and not is_moved:
        proto = _copy(model)
    count = restore_calls(proto, only=only, skip=skip)
    if is_moved:
        move_to_provider_domain(proto)
    if output is not None:
        external_data.save_model(proto, output, data_folder=folder, copy_data=copy_data)
    return proto, count


def verify(
    original: PathLike | ModelProto,
    rewritten: PathLike | ModelProto,
    *,
    inputs: PathLike | Arrays | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Hold a rewritten model against its original: each site that is fused in it, then the outputs.

    Raises:
        InvalidModelError: a file is missing or broken.
        OrtflashError: inputs that don't fit, or a model that ONNX Runtime doesn't run.
    """
    work = _Work(original, "ort")
    other, folder, _ = _load(rewritten)
    other = moved_home(other)
    _same_interface(work.model, other)
    random = [node.name for node in flash_calls(other) if _dropout_rate(node) > 0]
    if random:
        raise OrtflashError(
            f"Node {random[0]!r} draws dropout, so that two runs never agree; verify a model that was exported for "
            "inference."
        )
    edits = fused_edits([edit for edit in work.edits.values() if isinstance(edit, SiteEdit)], other)
    verifier = _verifier(work, edits, inputs, shapes, other, folder)
    sites = verifier.check_sites(edits, other, _counted(progress, "verifying", len(edits)))
    outputs = verifier.check_model(other)
    return Verification(tuple(sites), tuple(outputs), (*verifier.notes, *notes_of(sites, outputs)))


class _Work:
    """One model on its way through inspect and rewrite: its sites, what can be done with each, and what was."""

    def __init__(self, model: PathLike | ModelProto, target: Target, training: bool = False) -> None:
        if target not in ("ort", "ort-trt", "onnx"):
            raise OrtflashError(f"The target is ort, ort-trt or onnx, not {target!r}.")
        if training and target != "ort":
            raise OrtflashError(f"Training is for --target ort: {target} has no dropout.")
        self.given, self.folder, self.path = _load(model)
        self.model = moved_home(self.given)
        self._opset = default_opset(self.model.opset_import)
        self._target = target
        if target == "onnx":
            standard_attention.check_opset(self.model)
        elif self._opset < MIN_OPSET:
            name = self.path.name if self.path else "the model"
            raise InvalidModelError(
                f"The fused op's function needs opset {MIN_OPSET} and {name} imports {self._opset}: convert it with "
                f"onnx.version_converter.convert_version(model, {MIN_OPSET})."
            )
        from .graph_tools.find import Analysis  # heavy: it brings graphsurgeon

        self._fused_before = len(flash_calls(self.model))
        analysis = Analysis(self.model, model_dir=self.folder, training=training)
        self.sites = analysis.sites
        self.edits: dict[int, SiteEdit | Refusal] = {}
        for index, site in enumerate(self.sites):
            if site.form is not None:
                edit = analysis.edit(site)
                refusal = standard_attention.refusal_for(edit) if self._is_standard(edit) else None
                self.edits[index] = refusal or edit
        self._entries = [self._entry(index) for index in range(len(self.sites))]
        self._notes: list[str] = []

    def report(self) -> ModelReport:
        """What is known by now."""
        return ModelReport(
            model=self.path.name if self.path else self.model.graph.name or "the model",
            opset=self._opset,
            target=self._target,
            sites=tuple(self._entries),
            already_fused=self._fused_before,
            notes=tuple(self._notes),
        )

    def choose(self, plan: Plan) -> dict[int, SiteEdit]:
        """The edits that the plan wants, by site; other sites become "skipped"."""
        chosen = {}
        for index, edit in self.edits.items():
            choice = plan.choice(self.sites[index].name)
            if isinstance(edit, Refusal):
                continue
            if choice.fuse:
                chosen[index] = edit
            else:
                self._set(index, "skipped", reason=choice.reason)
        return chosen

    def apply(self, edits: Mapping[int, SiteEdit], *, in_place: bool = False) -> ModelProto:
        """The model with these edits; a new one, unless ``in_place`` says that this one may change."""
        model = self.model if in_place else _copy(self.model)
        build = standard_attention.build_call if self._target == "onnx" else None
        apply_edits(model, list(edits.values()), build_call=build)
        for index in edits:
            self._set(index, "fused")
        self._notes = repair_masks(model, list(edits.values()), folder=self.folder)
        return model

    def apply_verified(
        self, edits: dict[int, SiteEdit], verifier: Verifier, progress: Progress | None
    ) -> tuple[ModelProto, Verification]:
        """The model with those edits that verify, and how all of them did."""
        result = self.apply(edits)
        random = {index: edit for index, edit in edits.items() if edit.call.attributes.get("dropout_p")}
        steady = {index: edit for index, edit in edits.items() if index not in random}
        checks = verifier.check_sites(list(steady.values()), result, _counted(progress, "verifying", len(steady)))
        verified = dict(zip(steady, checks, strict=True))
        for index, check in verified.items():
            worst = check.worst
            if check.passed:
                self._set(index, "fused", error=check.error, bound=worst.bound if worst else None)
            else:
                self._set(index, "rolled back", reason=check.sentence, error=check.error)
        kept = {index: edit for index, edit in edits.items() if index in random or verified[index].passed}
        if len(kept) < len(edits):
            result = self.apply(kept)
        outputs = verifier.check_model(result) if kept and not random else []
        unverified = tuple(
            f"Site {edit.site.name!r} drops probabilities at random: neither it nor the whole model was verified."
            for edit in random.values()
        )
        notes = (*verifier.notes, *notes_of(checks, outputs), *unverified)
        verification = Verification(tuple(checks), tuple(outputs), notes)
        self._notes += notes
        return result, verification

    def note_links(self, folder: Path) -> None:
        """A note where the file that was written into ``folder`` finds its weights by a link out of it."""
        links = external_data.links_out(self.model, folder)
        if links:
            self._notes.append(
                f"The weights {links[0]!r} are a link out of {folder}, which new versions of ONNX Runtime don't follow "
                "from a file that isn't a link itself; with -o into another folder, --copy-data copies them."
            )

    def write_unchanged(self, output: PathLike | None, copy_data: bool) -> Path | None:
        """Nothing was fused: the output is the input, byte for byte."""
        if output is None:
            return None
        if self.path is None:
            external_data.save_model(self.given, output)
        else:
            external_data.copy_model(self.model, self.path, Path(output), copy_data=copy_data)
        return Path(output)

    def _is_standard(self, edit: SiteEdit | Refusal) -> TypeGuard[SiteEdit]:
        return self._target == "onnx" and isinstance(edit, SiteEdit)

    def _entry(self, index: int) -> SiteReport:
        edit = self.edits.get(index)
        return describe_site(self.sites[index], edit if isinstance(edit, Refusal) else None)

    def _set(self, index: int, decision: Decision, **changes: Any) -> None:
        self._entries[index] = replace(self._entries[index], decision=decision, **changes)


def _load(model: PathLike | ModelProto) -> tuple[ModelProto, Path | None, Path | None]:
    """The model, the folder of its external data, and its path."""
    if isinstance(model, ModelProto):
        check_model(model, model.graph.name or "The model")
        return model, None, None
    path = Path(model)
    proto = external_data.load_model(path)
    check_model(proto, path.name)
    return proto, path.parent.resolve(), path


def _copy(model: ModelProto) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    return copy


def _verifier(
    work: _Work,
    edits: Sequence[SiteEdit],
    inputs: PathLike | Arrays | None,
    shapes: Mapping[str, Sequence[int]] | None,
    rewritten: ModelProto | None = None,
    rewritten_folder: Path | None = None,
) -> Verifier:
    """A verifier whose original has run: on the given inputs, or on the first generated ones that it takes.

    Generated ones go past the windows of ``rewritten``, or of the edits without it, where that doesn't take long.
    """
    failure = ""
    if rewritten is None:
        calls: list[Mapping[str, Any]] = [edit.call.attributes for edit in edits]
    else:
        calls = [{one.name: one.i for one in call.attribute} for call in flash_calls(rewritten)]
    past = max(map(widest_window, calls), default=0)
    heads = sum(edit.site.form.query.num_heads or 1 for edit in edits if edit.site.form is not None)
    if LONG_BATCH * heads * (past + LONGEST) ** 2 > LARGEST_SCORES:
        past = 0
    for attempt in range(1 if inputs is not None else ATTEMPTS):
        if inputs is None:
            feeds = generate_feeds(work.model, shapes=shapes, attempt=attempt)
        else:
            feeds = [given_feed(work.model, inputs, shapes)]
        longer = []
        if inputs is None:
            longer = longer_feeds(work.model, shapes=shapes, attempt=attempt, past=past)
        verifier = Verifier(work.model, feeds, work.folder, rewritten_folder=rewritten_folder, longer=longer)
        try:
            verifier.observe(edits)
        except OrtflashError as error:
            failure = failure or str(error).rstrip(".")
        else:
            return verifier
    way_out = "" if inputs is not None else " name sizes with --shape, give inputs with --inputs, or"
    raise OrtflashError(f"{failure};{way_out} leave verification out with --no-verify.")


def given_feed(model: ModelProto, inputs: PathLike | Arrays, shapes: Mapping[str, Sequence[int]] | None) -> Feed:
    """Arrays, or those of an .npz file, as inputs of the model; OrtflashError where they don't fit."""
    if shapes:
        raise OrtflashError("Give inputs or shapes, not both: given inputs have their shapes.")
    if isinstance(inputs, Mapping):
        return load_feed(model, inputs)
    try:
        with zipfile.ZipFile(inputs), np.load(inputs, allow_pickle=False) as arrays:
            return load_feed(model, dict(arrays))
    except OSError as error:
        raise OrtflashError(f"Can't read inputs from {os.fspath(inputs)}: {error.strerror}.") from None
    except (ValueError, zipfile.BadZipFile):
        raise OrtflashError(
            f"Can't read inputs from {os.fspath(inputs)}: it isn't an .npz file of plain arrays; write it with "
            "numpy.savez(path, **{input name: array})."
        ) from None


def _dropout_rate(node: NodeProto) -> float:
    return next((attribute.f for attribute in node.attribute if attribute.name == "dropout_p"), 0.0)


def _same_interface(original: ModelProto, rewritten: ModelProto) -> None:
    for kind in ("input", "output"):
        names = [[value.name for value in getattr(model.graph, kind)] for model in (original, rewritten)]
        if names[0] != names[1]:
            raise InvalidModelError(f"The models don't belong together: their {kind}s are {names[0]} and {names[1]}.")


def _counted(progress: Progress | None, stage: str, total: int) -> Callable[[], None] | None:
    """Turns "one more is done" into what ``progress`` wants to know."""
    if progress is None:
        return None
    done = itertools.count(1)
    return lambda: progress(stage, next(done), total)
