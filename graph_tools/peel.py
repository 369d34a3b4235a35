"""The engine: from a softmax outwards to the two products, peeling what stands between.

The rules live in :mod:`.rules_scores` (back to the product of query and key), :mod:`.rules_weights` (forward to the
product with the values) and :mod:`.rules_operands` (from the products to the tensors that the fused op reads). The
engine keeps what holds for all of them: every step moves towards the graph's inputs or outputs, so a walk ends; a
value that would vanish but that somebody else reads refuses the site.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnx import TensorProto

from . import contraction, rules_operands, rules_scores, rules_weights, symbolic
from .absorbing import absorbs
from .anchors import Anchor
from .contraction import Product
from .graph_view import NodeView, Scope
from .indicators import may_mask
from .layout import Atom, Axis, Layout, finest, from_shape, regroup, size_of
from .normal_form import Peel, Prelude, Refusal
from .rules_scores import RawFactor, RawSink, RawTerm, ScoreState, refuse
from .rules_weights import Guard, LiveDropout, WeightState
from .structure import Lengths, Window
from .symbolic import Value

MAX_STEPS = 400
"""Steps of one walk. A walk always ends; this bounds the trying of both operands of many Adds."""

MAX_OPERAND_STEPS = 32

LOWEST_FP16 = -65500.0
"""At or below this a fill is the lowest number of fp16, or -65500 as some models have it."""


@dataclass(frozen=True)
class Point:
    """A place where an operand may be cut off from the graph: everything towards the product goes."""

    tensor: str
    layout: Layout
    factor: Value
    """Product of the scales between this tensor and the product."""
    kept: float
    """Cost of the nodes before it that stay."""
    peels: tuple[Peel, ...]


@dataclass(frozen=True)
class OutPoint:
    """A tensor after the second product that the fused op can produce; all nodes up to it go."""

    tensor: str
    layout: Layout
    kept: float
    """Cost of the nodes behind it that stay."""
    peels: tuple[Peel, ...]
    nodes: tuple[NodeView, ...]
    shapes: tuple[tuple[NodeView, Layout], ...] = ()
    """Shape nodes that read a value on the way, with that value's layout."""


@dataclass(frozen=True)
class Match:
    """A site taken apart, before it is decided which axes are batch, heads and rows of the fused op."""

    anchor: Anchor
    keys: tuple[Atom, ...]
    order: tuple[Atom, ...]
    """The atoms of the scores but the keys, outermost first."""
    rows: tuple[Atom, ...]
    """Those of them that only the query has by the shape of the first product."""
    head: Axis
    """What the first product sums over."""
    value_head: Axis
    query: tuple[Point, ...]
    key: tuple[Point, ...]
    value: tuple[Point, ...]
    output: tuple[OutPoint, ...]
    coeff: Value
    """Scales on the scores."""
    cap: Value | None
    terms: tuple[RawTerm, ...]
    """In the order in which the model applies them."""
    factors: tuple[RawFactor, ...]
    sinks: RawSink | None
    output_factor: Value
    guard: Guard
    score_type: int
    output_type: int
    peels: tuple[Peel, ...]
    nodes: tuple[NodeView, ...]
    """The nodes from the first product to the second."""
    shapes: tuple[tuple[NodeView, Layout], ...] = ()
    """Shape nodes that read a value on the way, with that value's layout."""
    window: Window | None = None
    """Structure that a fused node states."""
    lengths: Lengths | None = None
    prelude: tuple[Prelude, ...] = ()
    dropout: LiveDropout | None = None


@dataclass
class _Walk:
    """Bookkeeping of one site: the refusal of the walk that came furthest."""

    best: Refusal | None = None
    depth: int = -1
    steps: int = 0

    def refused(self, refusal: Refusal, depth: int) -> None:
        if depth > self.depth:
            self.best, self.depth = refusal, depth


def match(anchor: Anchor, *, training: bool = False) -> Match | Refusal:
    """Take one site apart; with ``training`` a live Dropout of the probabilities is one of its parts."""
    scope, node = anchor.scope, anchor.node
    shape = scope.shape(anchor.scores)
    if shape is None or not anchor.axes:
        return refuse(
            node,
            "softmax",
            "the shape of the softmax's input isn't known",
            "run onnx.shape_inference on the model, or give the inputs shapes at export",
        )
    layout = from_shape(shape, keep=anchor.axes)
    keys = tuple(atom for axis in anchor.axes for atom in layout[axis])
    sink = None if anchor.sink is None else RawSink("", (), anchor.sink)
    state = ScoreState(scope, anchor.scores, layout, keys, sinks=sink)
    found = _walk_scores(state, anchor)
    if isinstance(found, Refusal):
        return found
    scores, first = found
    weights = _walk_weights(scores, layout, keys, anchor, training)
    if isinstance(weights, Refusal):
        return weights
    return _taken_apart(anchor, scores, first, *weights)


# ------------------------------------------------------------------------------------------------- first product


@dataclass(frozen=True)
class _FirstProduct:
    product: Product
    query: str
    query_layout: Layout
    key: str
    key_layout: Layout
    order: tuple[Atom, ...]
    rows: tuple[Atom, ...]
    head: Axis


def _walk_scores(start: ScoreState, anchor: Anchor) -> tuple[ScoreState, _FirstProduct] | Refusal:
    scope = start.scope
    walk = _Walk()
    pending = [start]
    while pending and walk.steps < MAX_STEPS:
        state = pending.pop()
        walk.steps += 1
        depth = len(state.nodes)
        producer = scope.producer(state.tensor)
        if producer is None or producer.scope is not scope:
            reason = "the scores come straight from an input or a constant: there is no product of query and key"
            walk.refused(refuse(anchor.node, "scores", reason), depth)
            continue
        product = contraction.as_product(scope, producer)
        if product is not None:
            first = _first_product(state, product)
            if not isinstance(first, Refusal):
                return state, first
            walk.refused(first, depth)
            continue
        result = rules_scores.step(state, producer)
        if isinstance(result, Refusal):
            walk.refused(result, depth)
        else:
            pending.extend(reversed(result))
    return walk.best or refuse(anchor.node, "scores", "too many ways to read the scores as a sum")


def _first_product(state: ScoreState, product: Product) -> _FirstProduct | Refusal:
    scope, node = state.scope, product.node
    layouts = contraction.operand_layouts(scope, product, state.layout)
    if layouts is None:
        return refuse(node, "product", "the shapes of a product's operands aren't known")
    a_layout, b_layout, axes = layouts
    keys = [id(atom) for atom in finest(state.keys)]
    labels = [label for label in product.out_labels if [id(atom) for atom in finest(axes[label])] == keys]
    if len(labels) != 1:
        return refuse(node, "product", "the softmax doesn't run over one whole axis of this product")
    sides = [labels[0] in product.a_labels, labels[0] in product.b_labels]
    if sides[0] == sides[1]:
        return refuse(node, "product", "the softmax runs over a batch axis of this product")
    query_side = 1 if sides[0] else 0
    names, layouts_ = (product.a, product.b), (a_layout, b_layout)
    side_labels = (product.a_labels, product.b_labels)
    rows = [label for label in product.out_labels if label not in side_labels[1 - query_side]]
    order = [atom for label in product.out_labels if label != labels[0] for atom in finest(axes[label])]
    head = [atom for label in sorted(product.summed) for atom in finest(axes[label])]
    for side in (0, 1):
        if scope.constant(names[side]) is not None or names[side] in _weights(scope):
            rank = scope.rank(names[side])
            if rank is not None and rank <= 2:
                return refuse(
                    node,
                    "product",
                    f"the softmax follows a product with a constant matrix '{names[side]}': a projection, no attention",
                )
    return _FirstProduct(
        product,
        names[query_side],
        layouts_[query_side],
        names[1 - query_side],
        layouts_[1 - query_side],
        tuple(order),
        tuple(atom for label in rows for atom in finest(axes[label])),
        tuple(head),
    )


def _weights(scope: Scope) -> dict[str, object]:
    home: Scope | None = scope
    found: dict[str, object] = {}
    while home is not None:
        found.update(home.constants)
        home = home.parent
    return found


# ------------------------------------------------------------------------------------------------ second product


@dataclass(frozen=True)
class _SecondProduct:
    product: Product
    value: str
    value_layout: Layout
    out_layout: Layout
    value_head: Axis


def _walk_weights(
    scores: ScoreState, layout: Layout, keys: tuple[Atom, ...], anchor: Anchor, training: bool
) -> tuple[WeightState, _SecondProduct] | Refusal:
    scope = anchor.scope
    state = WeightState(
        scope,
        anchor.probabilities,
        layout,
        keys,
        scores.terms,
        sink_keys=scores.keys if scores.sinks is not None and scores.sinks.tensor else None,
        sink_first=scores.sinks is not None and scores.sinks.first,
        training=training,
    )
    for _ in range(MAX_STEPS):
        if scope.is_output(state.tensor):
            return refuse(
                anchor.node,
                "probabilities",
                f"the probabilities '{state.tensor}' are an output of the graph, so they have to exist",
                "export without output_attentions or need_weights",
            )
        readers = [reader for reader in scope.consumers(state.tensor) if not reader.is_op("Shape")]
        if anchor.late_sum and state.tensor == anchor.probabilities:
            readers = [reader for reader in readers if reader not in anchor.nodes]
        if not readers:
            return refuse(anchor.node, "probabilities", "nothing reads the probabilities")
        if len(readers) == 1 and readers[0].scope is scope:
            product = contraction.as_product(scope, readers[0])
            if product is not None:
                second = _second_product(state, product)
                return second if isinstance(second, Refusal) else (state, second)
        if any(reader.scope is not scope for reader in readers):
            return refuse(anchor.node, "probabilities", "the probabilities are read inside the body of another node")
        result = rules_weights.step(state, readers)
        if isinstance(result, Refusal):
            return result
        state = result
    return refuse(anchor.node, "probabilities", "no product with the values follows")


def _second_product(state: WeightState, product: Product) -> _SecondProduct | Refusal:
    scope, node = state.scope, product.node
    if product.a == product.b:
        return refuse(node, "product", "the probabilities are multiplied by themselves")
    on_left = product.a == state.tensor
    p_labels, v_labels = (product.a_labels, product.b_labels) if on_left else (product.b_labels, product.a_labels)
    value = product.b if on_left else product.a
    shape = scope.shape(value)
    if shape is None:
        return refuse(node, "product", f"the shape of '{value}' isn't known")
    if state.sink_keys is not None:
        return refuse(node, "sinks", "the sink column takes part in the product with the values")
    axes: dict[str, Axis] = dict(zip(p_labels, state.layout, strict=False))
    keys = [id(atom) for atom in finest(state.keys)]
    if len(product.summed) != 1:
        return refuse(node, "product", "the second product sums over more than the keys")
    [summed] = product.summed
    if [id(atom) for atom in finest(axes.get(summed, ()))] != keys:
        return refuse(node, "product", "the product after the softmax doesn't sum over the keys: this isn't attention")
    layout: list[Axis] = []
    for label, dim in zip(v_labels, shape, strict=False):
        if dim == 1 and size_of(axes.get(label, ())) == 1:
            layout.append(axes.setdefault(label, ()))
        elif dim == 1:
            if label == summed:
                return refuse(node, "product", "the values have one row for all keys")
            layout.append(())
        elif label not in axes and label.isdigit():
            return refuse(node, "product", "the values have more batch axes than the probabilities")
        elif label not in axes:
            axes[label] = (Atom(dim),)
            layout.append(axes[label])
        elif label != summed and isinstance(dim, int) != isinstance(scope.view.resolve(size_of(axes[label])), int):
            return refuse(node, "product", f"'{value}' isn't provably of the batch that the probabilities have")
        elif axes[label] == ():
            return refuse(node, "product", "the same probabilities are used with several batches of values")
        else:
            layout.append(axes[label])
    head = [atom for label in v_labels if label not in p_labels for atom in finest(axes[label])]
    out = tuple(axes[label] for label in product.out_labels)
    return _SecondProduct(product, value, tuple(layout), out, tuple(head))


# ---------------------------------------------------------------------------------------------------- operands


def operand_points(scope: Scope, tensor: str, layout: Layout) -> tuple[Point, ...]:
    """Every place where the chain behind an operand may be cut, the product's own input first."""
    chain: list[tuple[str, Layout, Value, tuple[Peel, ...]]] = [(tensor, layout, 1, ())]
    costs: list[float] = []
    factor: Value = 1
    peels: tuple[Peel, ...] = ()
    for _ in range(MAX_OPERAND_STEPS):
        producer = scope.producer(tensor)
        if producer is None:
            break
        found = rules_operands.step(scope, producer, layout, tensor)
        if found is None:
            break
        tensor, layout = found.tensor, found.layout
        factor = symbolic.mul(factor, found.factor)
        peels = (*peels, Peel(producer.op.lower(), producer.label, found.fact))
        costs.append(found.cost)
        chain.append((tensor, layout, factor, peels))
    points = []
    for index, (name, axes, scale, passed) in enumerate(chain):
        points.append(Point(name, axes, scale, sum(costs[index:]), passed))
    return tuple(points)


def output_points(anchor: Anchor, tensor: str, layout: Layout) -> tuple[OutPoint, ...] | Refusal:
    """Every tensor behind the second product that may be the fused op's to make, the product's own output first."""
    scope = anchor.scope
    found: list[OutPoint] = []
    shapes: tuple[tuple[NodeView, Layout], ...] = ()
    costs: list[float] = []
    nodes: tuple[NodeView, ...] = ()
    peels: tuple[Peel, ...] = ()
    waiting = bool(anchor.late_sum)
    for _ in range(MAX_OPERAND_STEPS):
        if not waiting:
            found.append(OutPoint(tensor, layout, len(costs), peels, nodes, shapes))
        every = scope.consumers(tensor)
        readers = [reader for reader in every if not reader.is_op("Shape")]
        if len(readers) != 1 or scope.is_output(tensor) or any(reader.scope is not scope for reader in every):
            break
        shapes = (*shapes, *((reader, layout) for reader in every if reader is not readers[0]))
        node = readers[0]
        if waiting and node.is_op("Div") and node.input(0) == tensor and _is_late_sum(scope, node.input(1), anchor):
            waiting = False
            nodes = (*nodes, node, *_path(scope, node.input(1), anchor.late_sum))
            peels = (*peels, Peel("late sum", node.label, "divided by the sum after the product"))
            tensor = node.output
            costs.append(0)
            continue
        if node.domain or node.input(0) != tensor:
            break
        shape = scope.shape(node.output)
        if node.op == "Transpose":
            perm = node.ints_attribute("perm")
            if perm is None:
                break
            layout, price = tuple(layout[axis] for axis in perm), 10.0
        elif node.op in ("Reshape", "Squeeze", "Unsqueeze", "Flatten") and shape is not None:
            after = regroup(layout, shape, scope.view.resolve)
            if after is None:
                break
            layout, price = after, 1.0
        elif node.op == "Identity":
            price = 0.0
        else:
            break
        tensor, nodes = node.output, (*nodes, node)
        peels = (*peels, Peel(node.op.lower(), node.label, "the op's own layout"))
        costs.append(price)
    if waiting:
        return refuse(anchor.node, "late sum", "the sum of the exponentials doesn't divide the product with the values")
    return tuple(replace(point, kept=sum(costs[int(point.kept) :])) for point in found)


def _is_late_sum(scope: Scope, name: str, anchor: Anchor) -> bool:
    return name == anchor.late_sum or bool(_path(scope, name, anchor.late_sum))


def _path(scope: Scope, name: str, source: str) -> tuple[NodeView, ...]:
    """The casts between ``source`` and ``name``, or ``()``."""
    nodes: list[NodeView] = []
    while name != source:
        producer = scope.producer(name)
        if producer is None or not producer.is_op("Cast", "Identity") or len(nodes) > 3:
            return ()
        nodes.append(producer)
        name = producer.input(0)
    return tuple(nodes)


# ----------------------------------------------------------------------------------------------------- the match


def _taken_apart(
    anchor: Anchor, scores: ScoreState, first: _FirstProduct, weights: WeightState, second: _SecondProduct
) -> Match | Refusal:
    scope = anchor.scope
    outputs = output_points(anchor, second.product.node.output, second.out_layout)
    if isinstance(outputs, Refusal):
        return outputs
    nodes = (
        first.product.node,
        *reversed(scores.nodes),
        *anchor.nodes,
        *weights.nodes,
        second.product.node,
    )
    layouts = {**dict(scores.passed), scores.tensor: scores.layout, **dict(weights.passed)}
    layouts[weights.tensor] = weights.layout
    shapes = _shared(scope, nodes, outputs, layouts)
    if isinstance(shapes, Refusal):
        return shapes
    terms = list(scores.terms)
    for index, term in enumerate(terms):
        if term.multiplied and index + 1 < len(terms):
            reason = "the scores are multiplied by a mask after something was added to them: 0 times -inf is NaN"
            return refuse(term.node, "multiplied mask", reason)
    if scores.shifted is not None:
        outside, node = scores.shifted
        if outside and any(term.kind == "mask" or may_mask(scope, term.tensor) for term in terms[outside:]):
            reason = "the scores are masked, shifted by their maximum, then added to: a masked row counts as 0 there"
            return refuse(node, "shift", reason)
    if weights.guard == "masked_row_to_zero":
        # The guard makes a row 0 that is masked throughout, and so does the op for a fill of -inf. Any other row gives
        # a masked key the weight 0 in both, if the fill swallows scores.
        guarded = terms[weights.guard_term]
        if guarded.fill is None or (not absorbs(guarded.fill, TensorProto.FLOAT) and guarded.fill > LOWEST_FP16):
            return refuse(guarded.node, "mask guard", f"a fill of {guarded.fill} doesn't keep masked keys at weight 0")
        terms[weights.guard_term] = replace(guarded, fill=-math.inf)
    peels = (*scores.peels, *weights.peels)
    return Match(
        anchor=anchor,
        keys=tuple(finest(weights.keys)),
        order=tuple(finest(first.order)),
        rows=tuple(finest(first.rows)),
        head=first.head,
        value_head=second.value_head,
        query=operand_points(scope, first.query, first.query_layout),
        key=operand_points(scope, first.key, first.key_layout),
        value=operand_points(scope, second.value, second.value_layout),
        output=outputs,
        coeff=symbolic.mul(scores.coeff, first.product.alpha),
        cap=scores.cap,
        terms=tuple(reversed(terms)),
        factors=scores.factors,
        sinks=scores.sinks,
        output_factor=symbolic.mul(weights.factor, second.product.alpha),
        guard=weights.guard,
        score_type=scope.elem_type(first.product.node.output),
        output_type=scope.elem_type(second.product.node.output),
        peels=peels,
        nodes=nodes,
        shapes=shapes,
        dropout=weights.dropout,
    )


def _shape_reads(scope: Scope, reader: NodeView, layout: Layout) -> list[tuple[NodeView, Layout]] | None:
    """The Shape nodes behind ``reader``, a Shape itself or a Slice of which only the shape is read."""
    if reader.scope is not scope:
        return None
    if reader.is_op("Shape"):
        return [(reader, layout)]
    shape, readers = scope.shape(reader.output), scope.consumers(reader.output)
    if not reader.is_op("Slice") or shape is None or scope.is_output(reader.output):
        return None
    if any(not inner.is_op("Shape") or inner.scope is not scope for inner in readers):
        return None
    axes: list[Axis] = []
    for axis, dim in zip(layout, shape, strict=False):
        if dim != 1 and not scope.view.same(dim, size_of(axis)):
            return None
        axes.append(() if dim == 1 else axis)
    return [(inner, tuple(axes)) for inner in readers]


def _shared(
    scope: Scope, nodes: Sequence[NodeView], outputs: Sequence[OutPoint], layouts: Mapping[str, Layout]
) -> tuple[tuple[NodeView, Layout], ...] | Refusal:
    """Refuses where somebody outside reads a value inside the site, so that it would have to be computed all the same.

    A Shape of such a value is no obstacle: its sizes are those of query and key. Those nodes are returned.
    """
    inside = {id(node) for node in nodes}
    inside.update(id(node) for point in outputs for node in point.nodes)
    last = nodes[-1].output
    hint = "export without the attention scores or probabilities as an output"
    shapes = []
    for node in nodes:
        for name in node.outputs:
            if not name or name == last:
                continue
            what = f"'{name}', which the fused op would not compute,"
            if scope.is_output(name):
                return refuse(node, "shared", f"{what} is an output of the graph", hint)
            for reader in scope.consumers(name):
                if id(reader) in inside:
                    continue
                read = _shape_reads(scope, reader, layouts[name]) if name in layouts else None
                if read is not None:
                    shapes.extend(read)
                    continue
                return refuse(reader, "shared", f"{what} is also read by {reader.kind} '{reader.label}'", hint)
    return tuple(shapes)
