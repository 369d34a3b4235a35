"""Nodes that carry out the plans of :mod:`.rearrange`: Reshape, Transpose and Expand with shapes that may be symbolic.

A target size that isn't known until run time is copied from the input (0 in a Reshape), left to Reshape (-1, once), or
read off the shape of a tensor of the graph that has it as an axis.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from .names import Names
from .normal_form import Dim, Prelude, TensorRef
from .rearrange import Axes, Move, from_pattern, plan

_FIRST_OPSET_WITH_ALLOWZERO = 14


class UnknownSizeError(Exception):
    """A size is needed at run time and no tensor of the graph has it as an axis."""


class Builder:
    """Collects new nodes and constants under names of one prefix."""

    def __init__(self, names: Names, prefix: str, sizes: Mapping[str, Dim], opset: int) -> None:
        self.nodes: list[NodeProto] = []
        self.initializers: list[TensorProto] = []
        self.opset = opset
        self.aliases: dict[str, str] = {}
        """Placeholder -> the name that stands for it."""
        self._names = names
        self._prefix = prefix
        self._sizes = sizes
        self._providers: dict[str, tuple[str, int, int]] = {}
        self._read: dict[str, str] = {}
        self._constants: dict[bytes, str] = {}

    def provide(self, tensor: TensorRef, axes: str) -> None:
        """Let sizes be read off ``tensor`` from now on."""
        for index, axis in enumerate(from_pattern(axes)):
            unknown = [letter for letter in axis if not isinstance(self._sizes.get(letter), int)]
            if len(unknown) == 1:
                rest = 1
                for letter in axis:
                    size = self._sizes.get(letter)
                    rest *= size if isinstance(size, int) else 1
                known = self._providers.get(unknown[0])
                if known is None or known[2] > rest:
                    self._providers[unknown[0]] = (tensor.name, index, rest)

    def add(self, op: str, inputs: Sequence[str], role: str, output: str = "", **attributes: Any) -> str:
        """One more node; returns the name of its output."""
        result = output or self._names.fresh(f"{self._prefix}_{role}")
        name = self._names.fresh(f"{self._prefix}_{role}_node")
        self.nodes.append(helper.make_node(op, self.named(inputs), [result], name=name, **attributes))
        return result

    def named(self, tensors: Sequence[str]) -> list[str]:
        """Placeholders replaced by the names that stand for them."""
        return [self.aliases.get(tensor, tensor) for tensor in tensors]

    def prelude(self, step: Prelude) -> None:
        """A node that a fused node did inside. Its placeholders get names."""
        if step.op == "Constant":
            self.aliases[step.outputs[0]] = self.constant(np.asarray(step.constant), "constant")
            return
        outputs = []
        for output in step.outputs:
            if output.startswith("@"):
                self.aliases[output] = self._names.fresh(f"{self._prefix}_{output.rpartition('/')[2]}")
            outputs.append(self.aliases.get(output, output))
        name = self._names.fresh(f"{self._prefix}_{step.op.lower()}_node")
        self.nodes.append(
            helper.make_node(
                step.op, self.named(step.inputs), outputs, name=name, domain=step.domain, **step.attributes
            )
        )

    def beside(self, sizes: Mapping[str, Dim]) -> Builder:
        """A builder of its own under the same names."""
        return Builder(self._names, self._prefix, sizes, self.opset)

    def sizes_of(self, axes: Axes, output: str) -> str:
        """A 1-D int64 tensor ``output`` with the size of each axis."""
        parts = []
        for axis in axes:
            known = self._product(axis)
            parts.append(self._size(axis) if known is None else self.constant(np.array([known], np.int64), "size"))
        return self.add("Concat", parts, "sizes", output, axis=0)

    def fresh_name(self, role: str) -> str:
        """A new name for something that isn't made here."""
        return self._names.fresh(f"{self._prefix}_{role}")

    def constant(self, values: np.ndarray, role: str) -> str:
        """A new initializer, shared where the same values were asked for before."""
        key = values.tobytes() + str((values.dtype, values.shape)).encode()
        if key not in self._constants:
            name = self._names.fresh(f"{self._prefix}_{role}")
            self.initializers.append(numpy_helper.from_array(values, name))
            self._constants[key] = name
        return self._constants[key]

    def number(self, value: float, elem_type: int, role: str) -> str:
        """A scalar of an ONNX type (bfloat16 included)."""
        key = f"{value!r}:{elem_type}".encode()
        if key not in self._constants:
            name = self._names.fresh(f"{self._prefix}_{role}")
            self.initializers.append(helper.make_tensor(name, elem_type, [], [value]))
            self._constants[key] = name
        return self._constants[key]

    def rearranged(self, tensor: str, source: Axes, target: Axes, role: str) -> str:
        """``tensor`` brought from one arrangement into another."""
        moves = plan(source, target)
        if moves is None:
            raise UnknownSizeError(role)
        return self.moves(tensor, source, moves, role)

    def moves(self, tensor: str, source: Axes, moves: Sequence[Move], role: str, last: str = "") -> str:
        """The nodes of a plan. ``last`` names the final output where that is given."""
        current, axes = tensor, source
        for index, move in enumerate(moves):
            output = last if index == len(moves) - 1 else ""
            if move.kind == "transpose":
                current = self.add("Transpose", [current], f"{role}_transposed", output, perm=list(move.perm))
            elif move.kind == "reshape":
                current = self._reshaped(current, axes, move.axes, role, output)
            else:
                shape = self._expand_target(axes, move.axes, role)
                current = self.add("Expand", [current, shape], f"{role}_expanded", output)
            axes = move.axes
        return current

    def _reshaped(self, tensor: str, source: Axes, target: Axes, role: str, output: str) -> str:
        """The nodes of one reshape, such that sizes may be 0 wherever that can be had.

        A Reshape reads 0 as "as before" unless ``allowzero`` is set, and -1 only where no other size is 0.
        """
        dims: list[int | None] = [self._product(axis) for axis in target]
        for index, dim in enumerate(dims):
            if dim is None and index < len(source) and source[index] == target[index]:
                dims[index] = 0
        open_axes = [index for index, dim in enumerate(dims) if dim is None]
        single = tuple(axis for axis in source if axis)
        attributes = {}
        if open_axes and single == tuple(axis for axis in target if axis):  # axes of size 1 come and go
            if source != single:
                tensor = self._ones("Squeeze", tensor, source, role, output if target == single else "")
            return tensor if target == single else self._ones("Unsqueeze", tensor, target, role, output)
        if len(open_axes) > 1 and self.opset >= _FIRST_OPSET_WITH_ALLOWZERO and self._are_read(target):
            dims = [self._product(axis) for axis in target]
            attributes["allowzero"] = 1
        elif open_axes:
            # Leave to Reshape the size that is hardest to come by.
            dims[max(open_axes, key=lambda index: len(target[index]))] = -1
        shape = self._shape([(target[index], dim) for index, dim in enumerate(dims)], role)
        return self.add("Reshape", [tensor, shape], f"{role}_reshaped", output, **attributes)

    def _are_read(self, axes: Axes) -> bool:
        """Whether each size is known or stands in some tensor's shape."""
        letters = [str(letter) for axis in axes for letter in axis]
        return all(isinstance(self._sizes.get(letter), int) or letter in self._providers for letter in letters)

    def _ones(self, op: str, tensor: str, axes: Axes, role: str, output: str) -> str:
        places = self.constant(np.array([index for index, axis in enumerate(axes) if not axis], np.int64), "axes")
        return self.add(op, [tensor, places], f"{role}_{op.lower()}d", output)

    def _expand_target(self, source: Axes, target: Axes, role: str) -> str:
        """1 where the axis is there already."""
        return self._shape(
            [(axis, 1 if source[index] == axis else self._product(axis)) for index, axis in enumerate(target)], role
        )

    def _shape(self, dims: Sequence[tuple[tuple[object, ...], int | None]], role: str) -> str:
        if all(dim is not None for _, dim in dims):
            return self.constant(np.array([dim for _, dim in dims], dtype=np.int64), f"{role}_shape")
        parts = []
        for axis, dim in dims:
            if dim is not None:
                parts.append(self.constant(np.array([dim], dtype=np.int64), "size"))
            else:
                parts.append(self._size(axis))
        return self.add("Concat", parts, f"{role}_shape", axis=0)

    def _size(self, axis: tuple[object, ...]) -> str:
        """A one-element int64 tensor with the product of the sizes of the letters of ``axis``."""
        known = 1
        result = ""
        for letter in axis:
            size = self._sizes.get(str(letter))
            if isinstance(size, int):
                known *= size
                continue
            name = self._letter(str(letter))
            result = self.add("Mul", [result, name], "size") if result else name
        if known != 1 or not result:
            constant = self.constant(np.array([known], dtype=np.int64), "size")
            result = self.add("Mul", [result, constant], "size") if result else constant
        return result

    def _letter(self, letter: str) -> str:
        if letter in self._read:
            return self._read[letter]
        if letter not in self._providers:
            raise UnknownSizeError(letter)
        tensor, axis, rest = self._providers[letter]
        shape = self._read.get(f"shape of {tensor}") or self.add("Shape", [tensor], "dims")
        self._read[f"shape of {tensor}"] = shape
        index = self.constant(np.array([axis], dtype=np.int64), "axis")
        size = self.add("Gather", [shape, index], f"size_{letter}", axis=0)
        if rest != 1:
            size = self.add("Div", [size, self.constant(np.array([rest], dtype=np.int64), "size")], f"size_{letter}")
        self._read[letter] = size
        return size

    def _product(self, axis: Sequence[object]) -> int | None:
        total = 1
        for letter in axis:
            size = self._sizes.get(str(letter))
            if not isinstance(size, int):
                return None
            total *= size
        return total
