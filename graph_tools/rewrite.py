"""Carry out :class:`~.edits.SiteEdit` s on a ModelProto: add what they add, remove what nobody reads any more.

Everything that an edit doesn't touch stays as it is: initializers, metadata, doc strings, the order of nodes. What is
added beside the edits' own nodes: the model-local function, its opset import, and neutral constants, because the
FlashAttention nodes of a file all pass the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import onnx
from onnx import ModelProto, NodeProto, TensorProto

from .edits import FlashCall, SiteEdit
from .errors import GraphToolsError, InvalidModelError
from .function_body import build_function, is_possible, traits_of
from .names import Names
from .op_schema import make_node, neutral_constant, schema
from .prune import Pruner
from .scopes import Scope, all_names, all_scopes, default_opset

MIN_IR_VERSION = 8
"""The first IR version with model-local functions."""

_LAST_OPSET_WITHOUT_CAST_LIKE = 14

CallBuilder = Callable[[SiteEdit], Sequence[NodeProto]]
"""Builds the nodes that stand between ``edit.before`` and ``edit.after``; the last one writes ``edit.call.output``."""


def apply_edits(model: ModelProto, edits: Sequence[SiteEdit], *, build_call: CallBuilder | None = None) -> None:
    """Change ``model`` in place so that each edit's site is one fused node; without edits nothing changes.

    ``build_call`` makes another op than ``ortflash::FlashAttention``; the function and its import then stay out.
    """
    if not edits:
        return
    targets = list(zip(edits, _scopes_of(model, edits), strict=True))
    if build_call is None:
        writer = _FlashWriter(model, edits)
        for _, scope in targets:
            writer.import_domain(scope.root)
        _replace(targets, writer.nodes_for)
        writer.finish()
    else:
        _replace(targets, lambda edit, scope: build_call(edit))


def flash_calls(model: ModelProto) -> list[NodeProto]:
    """Every FlashAttention node of the model."""
    return [node for scope in all_scopes(model) for node in scope.container.node if schema().matches(node)]


def _replace(
    targets: Sequence[tuple[SiteEdit, Scope]], call_nodes: Callable[[SiteEdit, Scope], Sequence[NodeProto]]
) -> None:
    """Put each edit's nodes where the producer of ``replaces`` stood; drop the producer and what only it needed."""
    roots = {id(scope.root.container): scope.root for _, scope in targets}
    for key, root in roots.items():
        pruner = Pruner(root)
        for edit, scope in targets:
            if id(scope.root.container) == key:
                nodes = [*_constants(edit.initializers, scope), *edit.before, *call_nodes(edit, scope), *edit.after]
                pruner.replace(scope, edit.replaces, nodes)
                for side in edit.also:
                    if pruner.is_produced(scope, side.replaces):
                        pruner.replace(scope, side.replaces, [*_constants(side.initializers, scope), *side.nodes])
        pruner.commit()


def _constants(initializers: Sequence[TensorProto], scope: Scope) -> list[NodeProto]:
    """New initializers: added to the graph, or, in a function, which has none, as Constant nodes."""
    if not scope.root.is_function:
        scope.root.container.initializer.extend(initializers)
        return []
    return [onnx.helper.make_node("Constant", [], [t.name], name=t.name, value=t) for t in initializers]


def _scopes_of(model: ModelProto, edits: Sequence[SiteEdit]) -> list[Scope]:
    """For each edit the scope in which a node writes ``edit.replaces``."""
    wanted = {edit.replaces for edit in edits}
    writers: dict[str, list[Scope]] = {}
    for scope in all_scopes(model):
        for node in scope.container.node:
            for name in wanted.intersection(node.output):
                writers.setdefault(name, []).append(scope)
    chosen = []
    for edit in edits:
        found = writers.get(edit.replaces, [])
        if len(found) > 1:  # branches of an If may use the same names
            found = [scope for scope in found if scope.path == edit.site.graph]
        if len(found) != 1:
            raise GraphToolsError(f"Site {edit.site.name!r}: no node of the model writes {edit.replaces!r}.")
        chosen.append(found[0])
    return chosen


@dataclass
class _FlashWriter:
    """Makes a file's FlashAttention nodes agree with each other and with the one function that they call."""

    model: ModelProto
    edits: Sequence[SiteEdit]

    def __post_init__(self) -> None:
        self._opset = default_opset(self.model.opset_import)
        self._old_calls = flash_calls(self.model)
        order = [one.name for one in schema().inputs]
        counts = [1 + max(order.index(name) for name in edit.call.inputs) for edit in self.edits]
        self._input_count = max([*counts, *(len(node.input) for node in self._old_calls)])
        self._input_names = order[: self._input_count]
        self._neutral_names: dict[tuple[str, int], str] = {}
        self._elem_type = self._file_elem_type()

    def import_domain(self, root: Scope) -> None:
        """Add the operator's domain to the model's imports, and to the function's where ``root`` is one."""
        holders = [self.model.opset_import] + ([root.container.opset_import] if root.is_function else [])
        for imports in holders:
            if all(entry.domain != schema().domain for entry in imports):
                imports.add(domain=schema().domain, version=schema().version)

    def nodes_for(self, edit: SiteEdit, scope: Scope) -> list[NodeProto]:
        """The fused node, led by the neutral constants that a function needs as nodes of its own."""
        call = edit.call
        nodes: list[NodeProto] = []
        inputs = dict(call.inputs)
        for name in self._input_names:
            if name not in inputs:
                inputs[name] = self._neutral(name, scope, call.elem_type, nodes)
        if not self._needs_casts(call):
            return [*nodes, self._make(call, inputs, call.output)]
        before, inputs = self._casts_up(call, inputs)
        plain = self._names.fresh(f"{call.output}_float32")
        cast = onnx.helper.make_node("Cast", [plain], [call.output], name=f"{plain}_cast", to=call.elem_type)
        return [*nodes, *before, self._make(call, inputs, plain), cast]

    def finish(self) -> None:
        """Extend the calls that were there before, and write the function for all of them, where one is possible."""
        for scope in all_scopes(self.model):
            for node in list(scope.container.node):
                if schema().matches(node):
                    self._extend(node, scope)
        calls = flash_calls(self.model)
        if not is_possible(calls):
            for old in [
                one for one in self.model.functions if (one.domain, one.name) == (schema().domain, schema().name)
            ]:
                self.model.functions.remove(old)
            return
        function = build_function(traits_of(calls, self._opset, self._elem_type))
        for index, old in enumerate(self.model.functions):
            if (old.domain, old.name) == (function.domain, function.name):
                self.model.functions[index].CopyFrom(function)
                break
        else:
            self.model.functions.append(function)
        self.model.ir_version = max(self.model.ir_version, MIN_IR_VERSION)

    def _make(self, call: FlashCall, inputs: dict[str, str], output: str) -> NodeProto:
        return make_node(
            inputs,
            output,
            name=call.name,
            input_count=self._input_count,
            attributes=call.attributes,
            softmax_lse=self._names.fresh(f"{call.output}_lse") if self._with_lse() else "",
        )

    def _with_lse(self) -> bool:
        return any(len(node.output) == 2 for node in self._old_calls)

    def _extend(self, node: NodeProto, scope: Scope) -> None:
        """Give a call that was in the file the inputs that the new ones brought along."""
        for name in self._input_names[len(node.input) :]:
            extra: list[NodeProto] = []
            node.input.append(self._neutral(name, scope, TensorProto.FLOAT, extra))
            for constant in extra:
                scope.container.node.insert(0, constant)

    def _neutral(self, name: str, scope: Scope, elem_type: int, nodes: list[NodeProto]) -> str:
        """Name of the neutral constant for input ``name``: one initializer a file, one Constant node a function."""
        root = scope.root
        tensor = neutral_constant(name, f"flash_attention_no_{name}", elem_type)
        if root.is_function:
            tensor.name = self._names.fresh(tensor.name)
            nodes.append(onnx.helper.make_node("Constant", [], [tensor.name], name=tensor.name, value=tensor))
            return str(tensor.name)
        key = (name, tensor.data_type)
        if key not in self._neutral_names:
            present = [one.name for one in root.container.initializer if _is_neutral(one, tensor)]
            if not present:
                tensor.name = self._names.fresh(tensor.name)
                root.container.initializer.append(tensor)
            self._neutral_names[key] = present[0] if present else tensor.name
        return self._neutral_names[key]

    def _file_elem_type(self) -> int:
        """The one element type that all calls have where there is no CastLike to read it from the query."""
        types = {edit.call.elem_type for edit in self.edits}
        if self._opset <= _LAST_OPSET_WITHOUT_CAST_LIKE:
            types |= {_function_elem_type(self.model)} - {0}
        return types.pop() if len(types) == 1 else TensorProto.FLOAT

    def _needs_casts(self, call: FlashCall) -> bool:
        return self._opset <= _LAST_OPSET_WITHOUT_CAST_LIKE and call.elem_type != self._elem_type

    def _casts_up(self, call: FlashCall, inputs: dict[str, str]) -> tuple[list[NodeProto], dict[str, str]]:
        """Query, key and value as fp32: before opset 15 one function body can't serve two element types."""
        if _function_elem_type(self.model) not in (0, TensorProto.FLOAT):
            raise InvalidModelError(
                f"Site {call.name!r}: before opset 15 the FlashAttention nodes of a file must share one element type; "
                f"convert the model to opset 15 or more with onnx.version_converter."
            )
        nodes, cast = [], dict(inputs)
        for name in ("query", "key", "value"):
            cast[name] = self._names.fresh(f"{call.name}_{name}_float32")
            node = onnx.helper.make_node("Cast", [inputs[name]], [cast[name]], name=cast[name], to=TensorProto.FLOAT)
            nodes.append(node)
        return nodes, cast

    @cached_property
    def _names(self) -> Names:
        taken = all_names(self.model)
        for edit in self.edits:
            taken.update((edit.call.name, edit.call.output, edit.replaces))
            taken.update(tensor.name for tensor in edit.initializers)
            for node in (*edit.before, *edit.after):
                taken.update((node.name, *node.output))
        return Names(taken)


def _function_elem_type(model: ModelProto) -> int:
    """The type that the file's present function casts its output to; 0 where there is none or it uses CastLike."""
    for function in model.functions:
        if (function.domain, function.name) == (schema().domain, schema().name):
            for node in function.node:
                if node.op_type == "Cast" and list(node.output) == [schema().outputs[0].name]:
                    return int(next(a.i for a in node.attribute if a.name == "to"))
    return 0


def _is_neutral(present: TensorProto, neutral: TensorProto) -> bool:
    """Whether an initializer of the file is the constant that an earlier run added."""
    same_kind = present.data_type == neutral.data_type and list(present.dims) == list(neutral.dims)
    return same_kind and present.name.startswith(neutral.name) and present.raw_data == neutral.raw_data
