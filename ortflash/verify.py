"""Prove that a rewritten model computes what the original does, site by site and as a whole.

At each site's border Q and K are drawn so that attention is peaked: a model with small random weights attends almost
uniformly, and there a wrong scale or a lost softcap doesn't show. The original nodes are evaluated in float64 and in
the model's own type, the fused ones in ONNX Runtime, and :mod:`.criterion` judges. Then whole models are compared.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
from onnx import FunctionProto, ModelProto, NodeProto, TensorProto

from .criterion import Comparison, compare
from .errors import OrtflashError
from .extract import Cutter, Piece, standalone
from .graph_tools.edits import SiteEdit
from .graph_tools.external_data import values_of
from .graph_tools.normal_form import AttentionForm, ScoreTerm
from .graph_tools.op_schema import node_attributes, schema
from .graph_tools.rearrange import from_pattern
from .graph_tools.scopes import Scope, all_scopes
from .inputs import Feed
from .runner import Values, create_session, run_model, run_session
from .widen import in_float32, in_float64

PEAKED_DEVIATION = 3.0
"""Standard deviation of the drawn scores: a row's largest weight is then usually well over a half."""

WHOLE_MODEL_FLOOR: Mapping[int, float] = {
    TensorProto.FLOAT: 2e-4,
    TensorProto.FLOAT16: 2e-2,
    TensorProto.BFLOAT16: 1e-1,
}
"""Share of an output's largest value that whole models may differ by, whatever the measured noise; by the coarsest type
that the model computes in."""

LARGEST_SCORES = 1 << 27
"""Scores of a site, in elements, up to which it is evaluated in float64; a larger one is held against its own type."""

_OPERANDS = ("query", "key", "value")

Progress = Callable[[], None]
"""Called after each site."""


@dataclass(frozen=True)
class SiteCheck:
    """What came out at one site."""

    site: str
    comparisons: tuple[Comparison, ...]
    failure: str = ""
    """Why it couldn't be compared at all; "" where it could."""
    unreached_window: int = 0
    """A window of the fused op, in keys, that no run was long enough to show; 0 where there is none."""
    rows: int = 0
    keys: int = 0
    """The most queries and keys that it was compared on, where that is known."""

    @property
    def passed(self) -> bool:
        """Whether the fused op gives the original's numbers."""
        return not self.failure and all(comparison.passed for comparison in self.comparisons)

    @property
    def worst(self) -> Comparison | None:
        """The failed comparison, or the one closest to its bound."""
        by_margin = sorted(self.comparisons, key=lambda c: c.error / c.bound if c.bound else c.error)
        failed = [comparison for comparison in self.comparisons if not comparison.passed]
        return failed[0] if failed else (by_margin[-1] if by_margin else None)

    @property
    def error(self) -> float:
        """Largest absolute error of any comparison."""
        return max((comparison.error for comparison in self.comparisons), default=0.0)

    @property
    def sentence(self) -> str:
        """What is wrong; "" where nothing is."""
        if self.failure:
            return f"Site {self.site!r} can't be compared: {self.failure}"
        worst = self.worst
        return "" if worst is None or worst.passed else f"Site {self.site!r}: the fused output {worst.problem}."


@dataclass(frozen=True)
class OutputCheck:
    """What came out at one output of the whole model."""

    output: str
    comparison: Comparison


@dataclass(frozen=True)
class Verification:
    """Everything that was compared."""

    sites: tuple[SiteCheck, ...] = ()
    outputs: tuple[OutputCheck, ...] = ()
    notes: tuple[str, ...] = ()
    """What a reader should know and isn't a failure: rows that are NaN in the original, for example."""

    @property
    def passed(self) -> bool:
        """Whether every site and every output agrees."""
        return all(site.passed for site in self.sites) and all(output.comparison.passed for output in self.outputs)

    @property
    def model_passed(self) -> bool:
        """Whether every output of the whole model agrees."""
        return all(output.comparison.passed for output in self.outputs)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""

        def entry(name: str, passed: bool, comparison: Comparison | None, problem: str) -> dict[str, Any]:
            comparable = comparison is not None and math.isfinite(comparison.error)
            numbers = {"error": comparison.error, "bound": comparison.bound} if comparison and comparable else {}
            return {"name": name, "passed": passed, **numbers, "problem": problem}

        return {
            "passed": self.passed,
            "sites": [entry(c.site, c.passed, c.worst, c.sentence) for c in self.sites],
            "outputs": [entry(o.output, o.comparison.passed, o.comparison, o.comparison.problem) for o in self.outputs],
            "notes": list(self.notes),
        }

    @property
    def largest_error(self) -> float:
        """Over the outputs of the whole model."""
        return max((output.comparison.error for output in self.outputs), default=0.0)


@dataclass
class Verifier:
    """Holds rewritten models against one original, whose runs are done once.

    ``original`` is never changed. ``folder`` is where its external data lies, ``rewritten_folder`` that of the models
    that are held against it, where that is another one. A bf16 model that ONNX Runtime has no kernels for is compared
    in fp32 instead.
    """

    original: ModelProto
    feeds: Sequence[Feed]
    folder: Path | None = None
    rewritten_folder: Path | None = None
    seed: int = 0
    longer: Sequence[tuple[int, Feed]] = ()
    """Lengths, and feeds of such sequences, to try in turn: the first that the original runs on joins ``feeds``."""
    _too_long: str = field(init=False, default="")
    _cutter: Cutter = field(init=False)
    _scopes: dict[str, Scope] = field(init=False)
    _outputs: list[str] = field(init=False)
    _observed: list[Values] = field(init=False, default_factory=list)
    _in_float32: bool = field(init=False, default=False)

    def __post_init__(self) -> None:
        self._cutter = Cutter(self.original)
        self._scopes = self._cutter.scopes
        self._outputs = [value.name for value in self.original.graph.output]

    def check_sites(
        self, edits: Sequence[SiteEdit], rewritten: ModelProto, progress: Progress | None = None
    ) -> list[SiteCheck]:
        """Hold each edit's fused piece of ``rewritten`` against the original nodes."""
        self.observe(edits)
        cutter = Cutter(self._as_run(rewritten))
        checks = []
        for edit in edits:
            try:
                checks.append(self._check_site(edit, cutter))
            except OrtflashError as error:
                checks.append(SiteCheck(edit.site.name, (), str(error)))
            if progress:
                progress()
        return checks

    def check_model(self, rewritten: ModelProto) -> list[OutputCheck]:
        """Hold every output of ``rewritten`` against the original's."""
        self.observe(())
        rewritten = self._as_run(rewritten)
        worst: dict[str, Comparison] = {}
        floor = max(WHOLE_MODEL_FLOOR[elem_type] for elem_type in float_types(self.original))
        reordered = self._run(create_session(self.original, folder=self.folder, optimise=False), self._outputs)
        ours = self._run(create_session(rewritten, folder=self.rewritten_folder or self.folder), self._outputs)
        for actual, expected, observed in zip(ours, reordered, self._observed, strict=True):
            for name in self._outputs:
                found = compare_outputs(actual[name], expected[name], observed[name], floor)
                if name not in worst or margin(found) > margin(worst[name]):
                    worst[name] = found
        return [OutputCheck(name, comparison) for name, comparison in worst.items()]

    def observe(self, edits: Iterable[SiteEdit]) -> None:
        """Run the original once a feed; keep its outputs and what stands at the borders of the main graph's sites.

        Done by itself where it is needed; raises OrtflashError where the original doesn't run on the feeds.
        """
        wanted = set(self._outputs)
        for edit in edits:
            if edit.site.graph == "":
                piece = self._cutter.cut("", edit.border.values(), [edit.replaces])
                wanted.update(piece.border, piece.extra_inputs)
        inputs = {value.name for value in self.original.graph.input}
        constants = {tensor.name for tensor in self.original.graph.initializer}
        names = sorted(wanted - inputs - constants)
        if self._observed and all(set(names) <= set(values) for values in self._observed):
            return
        try:
            with _outputs_added(self.original, names):
                session = create_session(self.original, folder=self.folder)
            observed = self._run(session, names)
            self._observed = [values | dict(feed) for values, feed in zip(observed, self.feeds, strict=True)]
            self._observe_longer(session, names)
        except OrtflashError:
            if self._in_float32 or TensorProto.BFLOAT16 not in float_types(self.original):
                raise
            self._in_float32 = True
            self.original = in_float32(self.original, self.folder)
            self.feeds = [_feed_as_float32(feed) for feed in self.feeds]
            self.longer = [(length, _feed_as_float32(feed)) for length, feed in self.longer]
            self.__post_init__()
            self.observe(edits)

    def _run(self, session: Any, names: Sequence[str]) -> list[Values]:
        return [run_session(session, feed, names) for feed in self.feeds]

    def _observe_longer(self, session: Any, names: Sequence[str]) -> None:
        longer, self.longer = self.longer, ()
        failure = ""
        for length, feed in longer:
            try:
                self._observed.append(run_session(session, feed, names) | dict(feed))
            except OrtflashError as error:
                failure = str(error)
            else:
                self.feeds = [*self.feeds, feed]
                if failure:
                    self._too_long = f"No sequences much longer than {length} were compared: {failure}"
                return
        if failure:
            self._too_long = f"Only short sequences were compared: {failure}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of how it was compared."""
        notes = []
        if self._in_float32:
            notes.append("Compared in fp32: ONNX Runtime has no bf16 kernels for this model on the CPU.")
        if self._too_long:
            notes.append(self._too_long)
        return tuple(notes)

    def _as_run(self, rewritten: ModelProto) -> ModelProto:
        return in_float32(rewritten, self.rewritten_folder or self.folder) if self._in_float32 else rewritten

    def _check_site(self, edit: SiteEdit, rewritten: Cutter) -> SiteCheck:
        """Original against fused on each feed, with terms as observed and, where they stand alone, drawn at random.

        A mask that the original joins with what it was made of (``where(cast(m), low, 1 - m)``) follows from data that
        the piece reads: a drawn one would contradict it.
        """
        original = self._cutter.cut(edit.site.graph, edit.border.values(), [edit.replaces])
        fused = rewritten.cut(edit.site.graph, edit.border.values(), [edit.replaces])
        fixed = self._contradicting(edit, original)
        comparisons = []
        rows, keys = 0, 0
        for number in range(len(self.feeds)):
            names = dict.fromkeys((*original.border, *original.extra_inputs, *fused.extra_inputs))
            values = self._values(edit, names, number)
            rows = max(rows, _length(edit, values, "query", "S"))
            keys = max(keys, _length(edit, values, "key", "T"))
            for terms in ("observed", "drawn"):
                drawn = draw(edit, values, np.random.default_rng(self.seed), terms=terms == "drawn", fixed=fixed)
                if drawn is None:
                    continue
                exact = _scores_of(edit, drawn) <= LARGEST_SCORES
                comparisons.append(self._compare_pieces(original, fused, rewritten.model, drawn, exact=exact))
        unreached = _unreached_window(fused, rows, keys)
        return SiteCheck(edit.site.name, tuple(comparisons), unreached_window=unreached, rows=rows, keys=keys)

    def _contradicting(self, edit: SiteEdit, original: Piece) -> set[str]:
        """Terms that can't be drawn: constants, whose values the edit may rest on, and those with sources in common.

        What the piece computes from a term's source beside the term itself would say something else than a drawn one.
        """
        form = edit.site.form
        terms = {term.tensor.name for term in form.terms} if form is not None else set()
        cutter, graph = self._cutter, edit.site.graph
        elsewhere = cutter.sources(graph, original.extra_inputs)
        return {
            name
            for name in terms
            if not cutter.follows_inputs(graph, name) or not elsewhere.isdisjoint(cutter.sources(graph, [name]))
        }

    def _compare_pieces(
        self, original: Piece, fused: Piece, rewritten: ModelProto, values: Mapping[str, Any], *, exact: bool
    ) -> Comparison:
        """Original against fused; not ``exact``: the truth is the original's own type, whose errors count as ours."""
        output = original.outputs[0]
        own_type = standalone(original, self.original, values, folder=self.folder)
        reordered = run_model(own_type, values)[output]
        fused_alone = standalone(fused, rewritten, values, folder=self.rewritten_folder or self.folder)
        actual = run_model(fused_alone, values)[output]
        if exact:
            return compare(actual, reordered, run_in_float64(own_type, values)[output])
        floor = max(WHOLE_MODEL_FLOOR[elem_type] for elem_type in float_types(own_type))
        return compare(actual, reordered, reordered.astype(np.float64), relative_floor=floor)

    def _values(self, edit: SiteEdit, names: Iterable[str], number: int) -> Values:
        """What the named tensors of the site's scope hold in a run of the original on feed ``number``."""
        scope = self._scopes[edit.site.graph]
        known = self._observed[number]
        if scope.parent is None and not scope.is_function:
            constants = {tensor.name: tensor for tensor in self.original.graph.initializer}
            return {name: known[name] if name in known else self._constant(constants[name]) for name in names}
        return self._values_inside(scope, list(names), number)

    def _values_inside(self, scope: Scope, names: Sequence[str], number: int) -> Values:
        """The same for a body or a function: everything that the names need is cut out and run, one pass of a loop."""
        piece = self._cutter.cut(scope.path, (), names, shapes=False)
        given: Values = {}
        for level in _levels(scope):
            formal = [name for name in level.inputs if name in piece.extra_inputs]
            if level.parent is None and not level.is_function:
                given.update({name: self.feeds[number][name] for name in formal})
            elif formal:
                given.update(self._formal_inputs(level, number))
        attributes = self._call_of(scope.root)[0].attribute if scope.root.is_function else ()
        model = standalone(piece, self.original, given, folder=self.folder)
        _bind_attributes(model, attributes)
        return run_model(model, given) | {name: given[name] for name in names if name in given}

    def _formal_inputs(self, scope: Scope, number: int) -> Values:
        """What a function's first call, a Loop's first iteration or a Scan's first step gets as inputs."""
        if scope.is_function:
            call, at = self._call_of(scope)
            values = self._values_at(at, list(call.input), number)
            return {name: values[given] for name, given in zip(scope.inputs, call.input, strict=False) if given}
        if scope.parent is None:
            raise OrtflashError(f"the inputs of {scope.path} are not known")
        owner = scope.parent.container.node[scope.owner_index]
        values = self._values_at(scope.parent, [name for name in owner.input if name], number)
        if owner.op_type == "Loop":
            first = {scope.inputs[0]: np.array(0, np.int64), scope.inputs[1]: np.array(True)}
            carried = zip(scope.inputs[2:], owner.input[2:], strict=False)
            return first | {name: values[given] for name, given in carried}
        if owner.op_type == "Scan":
            scanned = next(a.i for a in owner.attribute if a.name == "num_scan_inputs")
            states = len(owner.input) - scanned
            axes = next((list(a.ints) for a in owner.attribute if a.name == "scan_input_axes"), [0] * scanned)
            result = {name: values[owner.input[i]] for i, name in enumerate(scope.inputs[:states])}
            for axis, name, given in zip(axes, scope.inputs[states:], owner.input[states:], strict=True):
                result[name] = np.take(values[given], 0, axis=axis)
            return result
        raise OrtflashError(f"the inputs of {scope.path} are not known")

    def _values_at(self, scope: Scope, names: list[str], number: int) -> Values:
        return self._values_inside(scope, [name for name in names if name], number)

    def _call_of(self, function: Scope) -> tuple[NodeProto, Scope]:
        container = function.container
        for scope in self._scopes.values():
            for node in scope.container.node:
                if isinstance(container, FunctionProto) and (node.domain, node.op_type) == (
                    container.domain,
                    container.name,
                ):
                    return node, scope
        raise OrtflashError(f"nothing calls {function.path}")

    def _constant(self, tensor: onnx.TensorProto) -> npt.NDArray[Any]:
        return values_of(tensor, self.folder)


def fused_edits(edits: Sequence[SiteEdit], rewritten: ModelProto) -> list[SiteEdit]:
    """Those edits that were carried out in ``rewritten``: the fused node lies between border and output there."""
    cutter = Cutter(rewritten)
    found = []
    for edit in edits:
        if edit.site.graph in cutter.scopes:
            piece = cutter.cut(edit.site.graph, edit.border.values(), [edit.replaces])
            if any(schema().matches(node) or node.name == edit.call.name for node in piece.nodes):
                found.append(edit)
    return found


def draw(
    edit: SiteEdit, values: Values, rng: np.random.Generator, *, terms: bool, fixed: Collection[str] = ()
) -> Values | None:
    """``values`` with Q, K and V drawn anew, and with ``terms`` float biases and bool masks, too, but ``fixed`` ones.

    What Q, K and V are made from (``source0`` ..., where the site reads a packed tensor or a cache) is drawn like them,
    weights excepted. None where ``terms`` is asked for and the site has none that can be drawn.
    """
    form = edit.site.form
    drawn = dict(values)
    if form is not None:
        deviation = math.sqrt(_score_target(form.softcap) / _gain(form, edit, values))
        for role, name in edit.border.items():
            is_operand = role in _OPERANDS or (role.startswith("source") and values[name].ndim >= 3)
            if is_operand and _is_float(values[name]):
                size = 1.0 if role == "value" else deviation
                drawn[name] = (size * rng.standard_normal(values[name].shape)).astype(values[name].dtype)
    if not terms:
        return drawn
    changed = False
    readers = Counter(edit.border.values())
    for term in form.terms if form is not None else ():
        name = term.tensor.name
        if readers[name] != 1 or name not in values or name in fixed:
            continue  # read in two roles, it has to keep the values that make them agree
        if term.kind == "bias" and _is_float(values[name]):
            drawn[name] = rng.standard_normal(values[name].shape).astype(values[name].dtype)
            changed = True
        elif values[name].dtype == np.dtype(bool):
            drawn[name] = rng.random(values[name].shape) < 0.7
            if form is not None and (form.guard != "none" or term.fill != -math.inf):
                _mask_one_row(drawn[name], form, term)
            changed = True
    return drawn if changed else None


def _mask_one_row(mask: npt.NDArray[np.bool_], form: AttentionForm, term: ScoreTerm) -> None:
    """Let no key take part in the last row: there a fill of -inf and the lowest number differ."""
    axes, keys = from_pattern(term.axes), tuple(form.op_axes.get("T", "t").split())
    if keys in axes and len(axes) == mask.ndim > 1:
        rows = np.moveaxis(mask, axes.index(keys), -1)
        rows[(-1,) * (mask.ndim - 1)] = term.inverted


def run_in_float64(model: ModelProto, values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.float64]]:
    """Evaluate a model in float64: in ONNX Runtime, and with ONNX's own reference where that lacks a kernel.

    An op that has no float64 at all (a contrib op) is evaluated in its own type.
    """
    wide = in_float64(model)
    feed = {name: array.astype(np.float64) if _is_float(array) else array for name, array in values.items()}
    try:
        return _as_float64(run_model(wide, feed, optimise=False))
    except OrtflashError:
        try:
            from onnx.reference import ReferenceEvaluator

            evaluator = ReferenceEvaluator(wide)
            known = {name: feed[name] for name in evaluator.input_names}
            results: Any = evaluator.run(None, known)
            return _as_float64(dict(zip(evaluator.output_names, results, strict=True)))
        except Exception:  # whatever the reference lacks
            return _as_float64(run_model(model, values, optimise=False))


def notes_of(sites: Sequence[SiteCheck], outputs: Sequence[OutputCheck]) -> tuple[str, ...]:
    """Sentences about rows that are NaN in the original and 0 in ours, and windows that no run reached."""
    notes = []
    for check in sites:
        concerned = [comparison for comparison in check.comparisons if comparison.empty_rows]
        if concerned:
            rows, total = sum(c.empty_rows for c in concerned), sum(c.rows for c in concerned)
            notes.append(f"Site {check.site!r}: {rows} of {total} rows are NaN in the original and 0 in ours.")
        if check.unreached_window:
            notes.append(
                f"Site {check.site!r}: no run was long enough to show its window of {check.unreached_window} keys; the "
                f"longest had {check.rows} queries and {check.keys} keys. Give longer ones with --shape or --inputs."
            )
    for output in outputs:
        if output.comparison.empty_rows:
            rows, total = output.comparison.empty_rows, output.comparison.rows
            notes.append(f"Output {output.output!r}: {rows} of {total} rows are NaN in the original and not in ours.")
    return tuple(notes)


def _score_target(softcap: float) -> float:
    """Deviation of the scores to draw: peaked, and past a softcap's knee."""
    return max(PEAKED_DEVIATION, min(softcap, 4 * PEAKED_DEVIATION)) if softcap else PEAKED_DEVIATION


def _gain(form: AttentionForm, edit: SiteEdit, values: Values) -> float:
    """Deviation of the scores of Q and K that are drawn with deviation 1: scale * sqrt(D)."""
    head_size = _head_size(form, edit, values)
    return abs(form.scale) * math.sqrt(head_size) if form.scale else 1.0


def _scores_of(edit: SiteEdit, values: Values) -> int:
    """B*N*S*T, from the arrays themselves where the model leaves sizes open; 0 where they don't tell."""
    form = edit.site.form
    if form is None or not {"query", "key"} <= edit.border.keys():
        return 0
    head_size = _head_size(form, edit, values)
    rows = values[edit.border["query"]].size // head_size
    key_rows = values[edit.border["key"]].size // head_size
    batch_and_heads = [form.sizes.get(letter) for axis in "BM" for letter in form.op_axes.get(axis, "").split()]
    separate = math.prod(size for size in batch_and_heads if isinstance(size, int))
    return rows * max(1, key_rows // max(1, separate))


def _length(edit: SiteEdit, values: Values, role: str, axis: str) -> int:
    """S of the query or T of the key; 0 where the border doesn't tell."""
    form = edit.site.form
    if form is None or role not in edit.border:
        return 0
    letters = tuple(form.op_axes.get(axis, axis.lower()).split())
    shape: tuple[int, ...] = values[edit.border[role]].shape
    axes = from_pattern((form.query if role == "query" else form.key).axes)
    return shape[axes.index(letters)] if len(axes) == len(shape) and letters in axes else 0


def _unreached_window(piece: Piece, rows: int, keys: int) -> int:
    """A finite window of the piece's FlashAttention nodes that no row of so many feels; 0 where there is none.

    Rows count from the first key on, or with ``bottom_right`` up to the last one.
    """
    unreached = 0
    for call in (node for node in piece.nodes if schema().matches(node)):
        attributes = node_attributes(call)
        aligned = keys if attributes.get("causal_alignment") == "bottom_right" else rows
        for name, reach in (("window_left", aligned), ("window_right", keys)):
            if 0 < reach <= attributes.get(name, -1) + 1:
                unreached = max(unreached, attributes[name])
    return unreached


def widest_window(attributes: Mapping[str, Any]) -> int:
    """The wider of a FlashAttention node's finite windows, in keys; 0 where there is none."""
    return max(0, *(int(attributes.get(name, 0)) for name in ("window_left", "window_right")))


def _head_size(form: AttentionForm, edit: SiteEdit, values: Values) -> int:
    """D, or a guess from the last axis of the query where the model doesn't say."""
    sizes = [form.sizes.get(letter) for letter in form.op_axes.get("D", "d").split()]
    known = [size for size in sizes if isinstance(size, int)]
    if known and len(known) == len(sizes):
        return math.prod(known)
    query = values.get(edit.border.get("query", ""))
    return form.query.head_size or (max(1, int(query.shape[-1])) if query is not None and query.ndim else 1)


def float_types(model: ModelProto) -> set[int]:
    """Which of fp32, fp16 and bf16 a model computes in: those of its inputs, constants and casts, and fp32."""
    found: set[int] = {TensorProto.FLOAT}
    found.update(value.type.tensor_type.elem_type for value in model.graph.input)
    for scope in all_scopes(model):
        if isinstance(scope.container, onnx.GraphProto):
            found.update(tensor.data_type for tensor in scope.container.initializer)
        for node in scope.container.node:
            found.update(
                attribute.i for attribute in node.attribute if node.op_type == "Cast" and attribute.name == "to"
            )
    return found & WHOLE_MODEL_FLOOR.keys()


def compare_outputs(
    actual: npt.NDArray[Any], reordered: npt.NDArray[Any], observed: npt.NDArray[Any], floor: float
) -> Comparison:
    """One output of a whole model, held against the original's ``observed``; ``reordered`` says what rounding does."""
    if not _is_float(observed):
        same = actual.shape == observed.shape and np.array_equal(actual, observed)
        return Comparison(0.0, 0.0, (), 0, 0, "" if same else "differs from the original's")
    return compare(actual, reordered, observed.astype(np.float64), relative_floor=floor, nan_is_open=True)


def margin(comparison: Comparison) -> float:
    """Error in units of what is allowed."""
    return comparison.error / comparison.bound if comparison.bound else comparison.error


@contextmanager
def _outputs_added(model: ModelProto, names: Sequence[str]) -> Iterator[None]:
    """The model has these tensors among its outputs, for as long as the block lasts."""
    present = {value.name for value in model.graph.output}
    count = len(model.graph.output)
    try:
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in present)
        yield
    finally:
        del model.graph.output[count:]


def _bind_attributes(model: ModelProto, given: Iterable[onnx.AttributeProto]) -> None:
    """Put a call's attributes where a function's nodes refer to them."""
    values = {attribute.name: attribute for attribute in given}
    for node in model.graph.node:
        for index in reversed(range(len(node.attribute))):
            reference = node.attribute[index].ref_attr_name
            if reference:
                name = node.attribute[index].name
                del node.attribute[index]
                if reference in values:
                    node.attribute.add().CopyFrom(values[reference])
                    node.attribute[-1].name = name


def _levels(scope: Scope) -> list[Scope]:
    levels = [scope]
    while levels[-1].parent is not None:
        levels.append(levels[-1].parent)
    return levels


def as_float32(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """fp16 and bf16 widened; everything else as it is."""
    return array.astype(np.float32) if _is_float(array) and array.dtype.itemsize < 4 else array


def _feed_as_float32(feed: Feed) -> Feed:
    return {name: as_float32(array) for name, array in feed.items()}


def _is_float(array: npt.NDArray[Any]) -> bool:
    return array.dtype.kind == "f" or array.dtype.name == "bfloat16"


def _as_float64(values: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[np.float64]]:
    return {name: array.astype(np.float64) for name, array in values.items()}
