"""One ATen call becomes operations of the canonical vocabulary."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from hocket.capture.tape import Tape
from hocket.errors import CaptureError
from hocket.graph.types import Argument, Dtype, Ref, TensorType

DROPPED = frozenset({"device", "layout", "pin_memory", "memory_format", "non_blocking", "generator"})


@dataclass(frozen=True, slots=True)
class Call:
    """One ATen call: its full name, its arguments by schema name (defaults included), its output types.

    `positional` and `keyword` name the arguments as the schema has them; `defaults` their defaults.
    """

    op: str
    given: dict[str, Argument]
    positional: tuple[str, ...]
    keyword: tuple[str, ...]
    defaults: dict[str, Any]
    types: tuple[TensorType, ...]

    def ref(self, name: str) -> str:
        """The value given as the tensor argument `name`."""
        value = self.given[name]
        if not isinstance(value, Ref):
            raise CaptureError(self.op, f"argument {name} must be a tensor", repr(value))
        return value.name

    def number(self, name: str) -> int:
        """The integer given as `name`."""
        value = self.given[name]
        if not isinstance(value, int):
            raise CaptureError(self.op, f"argument {name} must be an integer", repr(value))
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        """The integers given as `name`; a lone integer is a tuple of one, None is empty."""
        value = self.given[name]
        if value is None:
            return ()
        items = value if isinstance(value, tuple) else (value,)
        return tuple(item for item in items if isinstance(item, int))

    def refs(self, name: str) -> tuple[str, ...]:
        """The values in the list of tensors given as `name`."""
        value = self.given[name]
        items = value if isinstance(value, tuple) else ()
        return tuple(item.name for item in items if isinstance(item, Ref))


Canonical = Callable[[Tape, Call], tuple[str, ...]]
TABLE: dict[str, Canonical] = {}


def canonical(*kinds: str) -> Callable[[Canonical], Canonical]:
    """Registers the function that records the ATen operations of these kinds (all their overloads)."""

    def register(function: Canonical) -> Canonical:
        for kind in kinds:
            TABLE[kind] = function
        return function

    return register


def record(tape: Tape, call: Call) -> tuple[str, ...]:
    """Appends `call` to the tape in canonical form and returns the names of its outputs."""
    function = TABLE.get(call.op.split(".")[1]) if call.op.startswith("aten.") else None
    return function(tape, call) if function else keep(tape, call)


def keep(tape: Tape, call: Call) -> tuple[str, ...]:
    """The call as it is, with dims made non-negative and arguments at their defaults left out.

    An argument named `dim` is always written, also at its default.
    """
    given = dict(call.given)
    source = next((given[n] for n in call.positional if isinstance(given[n], Ref)), None)
    if isinstance(source, Ref):
        rank = max(1, len(tape.types[source.name].shape))
        for name in ("dim", "dims"):
            if name in given:
                given[name] = _non_negative(given[name], rank)
    last = 0
    for index, name in enumerate(call.positional):
        if name == "dim" or name not in call.defaults or given[name] != call.defaults[name]:
            last = index + 1
    args = [given[name] for name in call.positional[:last]]
    kwargs = {
        name: given[name]
        for name in call.keyword
        if name not in DROPPED and not (name in call.defaults and given[name] == call.defaults[name])
    }
    return tape.emit(call.op, args, call.types, kwargs)


def _non_negative(value: Argument, rank: int) -> Argument:
    if isinstance(value, tuple):
        return tuple(_non_negative(item, rank) for item in value)
    return value % rank if isinstance(value, int) and not isinstance(value, bool) else value


@canonical(
    "detach",
    "alias",
    "clone",
    "lift_fresh",
    "lift_fresh_copy",
    "contiguous",
    "lift",
    "detach_copy",
    "view_as",
)
def _same(tape: Tape, call: Call) -> tuple[str, ...]:
    return (call.ref(call.positional[0]),)


@canonical(
    "view", "_unsafe_view", "reshape", "squeeze", "unsqueeze", "_reshape_alias", "_view_copy", "view_copy",
)  # fmt: skip
def _view(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    if tape.types[source].dtype != call.types[0].dtype:
        return keep(tape, call)
    return (tape.view(source, call.types[0].shape),)


@canonical("t", "transpose", "permute", "numpy_T")
def _permute(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    rank = len(tape.types[source].shape)
    order = list(range(rank))
    if "dims" in call.given:
        order = [d % rank for d in call.numbers("dims")]
    elif "dim0" in call.given and rank:
        first, second = call.number("dim0") % rank, call.number("dim1") % rank
        order[first], order[second] = order[second], order[first]
    else:
        order.reverse()
    return (tape.permute(source, tuple(order)),)


@canonical("expand")
def _expand(tape: Tape, call: Call) -> tuple[str, ...]:
    return (tape.expand(call.ref("self"), call.types[0].shape),)


@canonical("slice")
def _slice(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    shape = tape.types[source].shape
    dim = call.number("dim") % len(shape)
    start, end, step = call.given["start"], call.given["end"], call.number("step")
    bounds = slice(start if isinstance(start, int) else None, end if isinstance(end, int) else None, step).indices(
        shape[dim]
    )
    return (tape.slice(source, dim, bounds[0], max(bounds[0], bounds[1]), bounds[2]),)


@canonical("select")
def _select(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    shape = tape.types[source].shape
    dim = call.number("dim") % len(shape)
    index = call.number("index") % shape[dim]
    return (tape.view(tape.slice(source, dim, index, index + 1), call.types[0].shape),)


@canonical("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "unsafe_chunk")
def _split(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    dim = call.number("dim") % len(tape.types[source].shape)
    return tape.split(source, tuple(type_.shape[dim] for type_ in call.types), dim)


@canonical("unbind")
def _unbind(tape: Tape, call: Call) -> tuple[str, ...]:
    source = call.ref("self")
    dim = call.number("dim") % len(tape.types[source].shape)
    pieces = tape.split(source, (1,) * len(call.types), dim)
    return tuple(tape.view(piece, type_.shape) for piece, type_ in zip(pieces, call.types, strict=True))


@canonical("cat", "concat", "concatenate")
def _cat(tape: Tape, call: Call) -> tuple[str, ...]:
    sources = [tape.cast(s, call.types[0].dtype) for s in call.refs("tensors")]
    return (tape.cat(sources, call.number("dim") % max(1, len(call.types[0].shape))),)


@canonical("stack")
def _stack(tape: Tape, call: Call) -> tuple[str, ...]:
    shape = call.types[0].shape
    dim = call.number("dim") % len(shape)
    piece = (*shape[:dim], 1, *shape[dim + 1 :])
    sources = [tape.view(tape.cast(s, call.types[0].dtype), piece) for s in call.refs("tensors")]
    return (tape.cat(sources, dim),)


@canonical("slice_backward")
def _slice_backward(tape: Tape, call: Call) -> tuple[str, ...]:
    gradient, type_ = call.ref("grad_output"), call.types[0]
    dim, step = call.number("dim") % len(type_.shape), call.number("step")
    start, end, _ = slice(call.number("start"), call.number("end"), step).indices(type_.shape[dim])
    if step != 1:
        zeros = tape.full(type_, 0)
        args = (Ref(zeros), Ref(gradient), dim, start, end, step)
        return tape.emit("aten.slice_scatter.default", args, [type_])
    return (_padded(tape, gradient, dim, start, type_.shape[dim] - end, 0),)


@canonical("select_backward")
def _select_backward(tape: Tape, call: Call) -> tuple[str, ...]:
    gradient, type_ = call.ref("grad_output"), call.types[0]
    dim = call.number("dim") % len(type_.shape)
    index = call.number("index") % type_.shape[dim]
    piece = tape.view(gradient, (*type_.shape[:dim], 1, *type_.shape[dim + 1 :]))
    return (_padded(tape, piece, dim, index, type_.shape[dim] - index - 1, 0),)


@canonical("constant_pad_nd")
def _pad(tape: Tape, call: Call) -> tuple[str, ...]:
    value, pads = call.ref("self"), call.numbers("pad")
    number = call.given["value"]
    fill = number if isinstance(number, (int, float)) else 0
    rank = len(call.types[0].shape)
    if call.types[0].dtype.startswith(("int", "uint")):
        fill = int(fill)
    for index in range(len(pads) // 2):
        dim, before, after = rank - 1 - index, pads[2 * index], pads[2 * index + 1]
        size = tape.types[value].shape[dim]
        value = tape.slice(value, dim, max(0, -before), size - max(0, -after))
        value = _padded(tape, value, dim, max(0, before), max(0, after), fill)
    return (value,)


def _padded(tape: Tape, value: str, dim: int, before: int, after: int, fill: bool | int | float) -> str:
    """`value` with `before` and `after` rows of `fill` around it along `dim`."""
    type_ = tape.types[value]

    def block(rows: int) -> list[str]:
        shape = (*type_.shape[:dim], rows, *type_.shape[dim + 1 :])
        return [tape.full(TensorType(shape, type_.dtype), fill)] if rows else []

    return tape.cat([*block(before), value, *block(after)], dim)


@canonical("full", "full_like", "new_full", "scalar_tensor")
def _full(tape: Tape, call: Call) -> tuple[str, ...]:
    value = call.given.get("fill_value", call.given.get("s"))
    return (tape.full(call.types[0], value if isinstance(value, (int, float)) else 0),)


@canonical(
    "zeros", "zeros_like", "new_zeros", "empty", "empty_like", "new_empty", "empty_strided",
    "new_empty_strided", "empty_permuted", "_efficientzerotensor",
)  # fmt: skip
def _zeros(tape: Tape, call: Call) -> tuple[str, ...]:
    return (tape.full(call.types[0], 0),)


@canonical("ones", "ones_like", "new_ones")
def _ones(tape: Tape, call: Call) -> tuple[str, ...]:
    return (tape.full(call.types[0], 1),)


@canonical("arange")
def _arange(tape: Tape, call: Call) -> tuple[str, ...]:
    start, step = call.given.get("start", 0), call.given.get("step", 1)
    args = (start, call.given["end"], step)
    return tape.emit("aten.arange.start_step", args, call.types, {"dtype": Dtype(call.types[0].dtype)})


@canonical("_to_copy")
def _cast(tape: Tape, call: Call) -> tuple[str, ...]:
    return (tape.cast(call.ref("self"), call.types[0].dtype),)


def _reduced(tape: Tape, call: Call) -> tuple[int, ...]:
    """The dims a reduction runs over, explicit and non-negative."""
    rank = len(tape.types[call.ref("self")].shape)
    dims = call.numbers("dim") if "dim" in call.given else ()
    return tuple(sorted(d % rank for d in dims)) if dims and rank else tuple(range(rank))


@canonical("sum")
def _sum(tape: Tape, call: Call) -> tuple[str, ...]:
    source, type_ = call.ref("self"), call.types[0]
    kwargs: dict[str, Argument] = {}
    if tape.types[source].dtype != type_.dtype:
        kwargs["dtype"] = Dtype(type_.dtype)
    args = (Ref(source), _reduced(tape, call), bool(call.given.get("keepdim", False)))
    return tape.emit("aten.sum.dim_IntList", args, call.types, kwargs)


@canonical("mean")
def _mean(tape: Tape, call: Call) -> tuple[str, ...]:
    dims, keepdim = _reduced(tape, call), bool(call.given.get("keepdim", False))
    return (tape.mean(call.ref("self"), dims, keepdim, call.types[0]),)


@canonical("amax", "amin")
def _extreme(tape: Tape, call: Call) -> tuple[str, ...]:
    args = (Ref(call.ref("self")), _reduced(tape, call), bool(call.given.get("keepdim", False)))
    return tape.emit(call.op, args, call.types)


@canonical("max", "min")
def _maximum(tape: Tape, call: Call) -> tuple[str, ...]:
    if call.op not in ("aten.max.default", "aten.min.default"):
        return keep(tape, call)
    args = (Ref(call.ref("self")), _reduced(tape, call), False)
    return tape.emit(f"aten.a{call.op.split('.')[1]}.default", args, call.types)


@canonical("add", "sub", "mul", "div")
def _arithmetic(tape: Tape, call: Call) -> tuple[str, ...]:
    """Scalar overloads are written as the tensor overload with a number."""
    names = keep(tape, call)
    if call.op.endswith(".Scalar"):
        last = tape.operations.pop()
        tape.operations.append(
            type(last)(f"{call.op.removesuffix('Scalar')}Tensor", last.args, last.kwargs, names, last.module)
        )
    return names


@canonical("embedding")
def _embedding(tape: Tape, call: Call) -> tuple[str, ...]:
    args = (Ref(call.ref("weight")), Ref(call.ref("indices")))
    return tape.emit("aten.embedding.default", args, call.types)


@canonical("_scaled_dot_product_flash_attention_for_cpu")
def _attention(tape: Tape, call: Call) -> tuple[str, ...]:
    given = call.given
    args = (
        given["query"],
        given["key"],
        given["value"],
        given["attn_mask"],
        given["is_causal"],
        given["scale"],
    )
    return tape.emit("hocket.attention.default", args, call.types)


@canonical("_scaled_dot_product_flash_attention_for_cpu_backward")
def _attention_backward(tape: Tape, call: Call) -> tuple[str, ...]:
    names = ("grad_out", "query", "key", "value", "out", "logsumexp", "attn_mask", "is_causal", "scale")
    return tape.emit("hocket.attention_backward.default", [call.given[n] for n in names], call.types)
