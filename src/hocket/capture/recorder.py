"""Records every ATen call of a running step: forward as the model makes it, backward as autograd does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from hocket.capture.aliases import Aliases
from hocket.capture.canonical import Call, record
from hocket.capture.decompositions import DECOMPOSITIONS
from hocket.capture.tape import Tape
from hocket.errors import CaptureError
from hocket.graph.types import Argument, Dtype, Ref, TensorType

# Constants up to this many elements are kept as real values, so that a model may look at them.
REAL_ELEMENTS = 1 << 20
# Tensors of values that the model holds outside its parameters and buffers, written into the graph.
CONSTANT_ELEMENTS = 1 << 16


def type_of(tensor: torch.Tensor) -> TensorType:
    """Shape and element type of a tensor."""
    return TensorType(tuple(tensor.shape), dtype_name(tensor.dtype))


def dtype_name(dtype: torch.dtype) -> str:
    """`float32` of `torch.float32`."""
    return str(dtype).removeprefix("torch.")


@dataclass(frozen=True, slots=True)
class Schema:
    """What the recorder needs of an operation's schema.

    `reads` says that the result's shape, or a Python number, depends on values of tensors.
    """

    name: str
    positional: tuple[str, ...]
    keyword: tuple[str, ...]
    defaults: dict[str, Any]
    composite: bool
    random: bool
    view: bool
    reads: bool
    written: tuple[str, ...]


@cache
def schema_of(func: Any) -> Schema:
    """The schema of an ATen overload."""
    arguments = func._schema.arguments
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    # Some operations have both; the kernel is what eager PyTorch runs.
    composite = has_kernel(func.name(), "CompositeImplicitAutograd") and not has_kernel(func.name(), "CPU")
    return Schema(
        str(func),
        tuple(a.name for a in arguments if not a.kwarg_only),
        tuple(a.name for a in arguments if a.kwarg_only),
        {a.name: _plain(a.default_value) for a in arguments if a.has_default_value()},
        composite,
        torch.Tag.nondeterministic_seeded in func.tags,
        any(r.alias_info is not None for r in func._schema.returns),
        torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags,
        tuple(a.name for a in arguments if a.alias_info is not None and a.alias_info.is_write),
    )


def _plain(value: Any) -> Any:
    return tuple(_plain(v) for v in value) if isinstance(value, (list, tuple)) else value


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Tensors inside nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        yield from tensors_in(tuple(value.values()))


class Recorder(TorchDispatchMode):
    """Runs every operation on fake tensors and writes it on a tape.

    What depends on constants alone runs for real, so a model may branch on it as it does without capture.
    `random` collects operations that draw random numbers; `modules` says which module runs now.
    """

    def __init__(self, fake: FakeTensorMode) -> None:
        super().__init__()
        self.fake = fake
        self.tape = Tape()
        self.aliases = Aliases(self.tape)
        self.random: set[str] = set()
        self.module = ""
        self.in_backward = False
        self._module_of: dict[int, str] = {}
        self._tainted: set[int] = set()

    def enter(self, tensor: torch.Tensor) -> str:
        """Makes `tensor` an input of the step and returns its value."""
        name = self.tape.name(type_of(tensor))
        self.aliases.hold(tensor, name)
        return name

    def value(self, tensor: torch.Tensor) -> str:
        """The current value of a tensor; an unknown real tensor becomes a constant of the graph."""
        if not self.aliases.known(tensor):
            self.aliases.hold(tensor, self._constant(tensor))
        return self.aliases.value(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs and records one operation."""
        kwargs = kwargs or {}
        if func.namespace == "prim":
            return args[0].fake_device if func is torch.ops.prim.device.default else func(*args, **kwargs)
        schema = schema_of(func)
        self._mark_module()
        decomposition = DECOMPOSITIONS.get(func)
        if decomposition is not None:
            with self:
                return decomposition(*args, **kwargs)
        if schema.composite:
            with self:
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        if schema.written:
            return self._write(func, schema, args, kwargs)
        out = self._run(func, schema, args, kwargs)
        self._record(schema, args, kwargs, out)
        return out

    def _mark_module(self) -> None:
        """Sets the tape's module: the running one, or in the backward the one whose forward it undoes."""
        if not self.in_backward:
            self.tape.module = self.module
            # An operation's autograd node is numbered just before the operation arrives here; what comes
            # before the next node (without gradient) finds the number taken.
            self._module_of.setdefault(torch._C._autograd._get_sequence_nr() - 1, self.module)
            return
        node = torch._C._current_autograd_node()
        self.tape.module = self._module_of.get(node._sequence_nr(), "") if node is not None else ""

    def _is_fake(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor's values are unknown: it is fake, or something fake was written into it."""
        return isinstance(tensor, FakeTensor) or tensor.untyped_storage()._cdata in self._tainted

    def _run(self, func: Any, schema: Schema, args: Any, kwargs: Any) -> Any:
        """The operation's result: real when it is a small constant, fake otherwise."""
        inputs = list(tensors_in((args, kwargs)))
        if schema.random:
            self._draw(schema.name)
        unknown = any(self._is_fake(t) for t in inputs)
        fake = any(isinstance(t, FakeTensor) for t in inputs)
        if schema.random or fake or (unknown and schema.reads):
            with self.fake:
                return FAKES.get(func, func)(*args, **kwargs)
        if not schema.view:
            with self.fake:
                out = _trial(func, args, kwargs)
            if out is not None and sum(t.numel() for t in tensors_in(out)) > REAL_ELEMENTS:
                return out
        out = func(*args, **kwargs)
        if unknown:
            self._tainted.update(t.untyped_storage()._cdata for t in tensors_in(out))
        return out

    def _draw(self, op: str) -> None:
        """Notes an operation that draws random numbers; the backward could not draw the same again."""
        if self.in_backward:
            raise CaptureError(
                f"module {self.tape.module}" if self.tape.module else "backward pass",
                "the backward pass must not draw random numbers",
                op,
                "set dropout to 0 inside torch.utils.checkpoint, or leave recomputation to the plan",
            )
        self.random.add(op)

    def _record(self, schema: Schema, args: Any, kwargs: Any, out: Any) -> None:
        outputs = list(out) if isinstance(out, (list, tuple)) else [out]
        if not any(isinstance(t, torch.Tensor) for t in outputs):
            return
        emitted_before = len(self.tape.operations)
        given = dict(schema.defaults)
        given.update(zip(schema.positional, args, strict=False))
        given.update(kwargs)
        converted = {name: self._argument(schema.name, value) for name, value in given.items()}
        call = Call(
            schema.name,
            converted,
            schema.positional,
            schema.keyword,
            schema.defaults,
            tuple(type_of(t) if isinstance(t, torch.Tensor) else TensorType((0,), "float32") for t in outputs),
        )
        names = record(self.tape, call)
        source = args[0] if args and isinstance(args[0], torch.Tensor) else None
        for tensor, name in zip(outputs, names, strict=True):
            if isinstance(tensor, torch.Tensor) and not self.aliases.known(tensor):
                self.aliases.hold(tensor, name, source, emitted_before)

    def _argument(self, op: str, value: Any) -> Argument:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, torch.Tensor):
            return Ref(self.value(value))
        if isinstance(value, (list, tuple)):
            return tuple(self._argument(op, item) for item in value)
        if isinstance(value, torch.dtype):
            return Dtype(dtype_name(value))
        if isinstance(value, (torch.device, torch.layout, torch.memory_format, torch.Generator)):
            return None
        raise CaptureError(op, "arguments must be tensors, numbers, strings or element types", repr(value))

    def _constant(self, tensor: torch.Tensor) -> str:
        type_ = type_of(tensor)
        if isinstance(tensor, FakeTensor) or tensor.is_meta or type_.elements > CONSTANT_ELEMENTS:
            raise CaptureError(
                self.module or "model",
                f"a tensor outside parameters and buffers must hold at most {CONSTANT_ELEMENTS} real values",
                f"{type_} on {tensor.device}",
                "register it as a buffer, or pass it as part of the batch",
            )
        with torch._C._DisableTorchDispatch():
            values = tuple(tensor.detach().cpu().flatten().tolist())
        return self.tape.emit(
            "hocket.constant.default", (values, type_.shape), [type_], {"dtype": Dtype(type_.dtype)}
        )[0]

    def _write(self, func: Any, schema: Schema, args: Any, kwargs: Any) -> Any:
        """An operation that writes in place, as one that makes a new value."""
        target = args[0] if args else None
        kind, overload = schema.name.split(".")[1:]
        if not isinstance(target, torch.Tensor) or schema.written != ("self",) or not kind.endswith("_"):
            raise CaptureError(
                self.module or "model",
                "operations may write in place only into their first argument",
                schema.name,
                "use the form that returns a new tensor",
            )
        self.value(target)
        with self:
            new = _functional(kind, overload, target, args, kwargs)
            if new.shape != target.shape:
                new = torch.ops.aten.expand.default(new, list(target.shape))
            if new.dtype != target.dtype:
                new = torch.ops.aten._to_copy.default(new, dtype=target.dtype)
        self.aliases.write(target, self.value(new))
        if not self._is_fake(target):
            if self._is_fake(new):
                self._tainted.add(target.untyped_storage()._cdata)
            else:
                torch.ops.aten.copy_.default(target, new)
        return target


def _grouped_mm(
    first: torch.Tensor,
    second: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """The output of a grouped matrix product; PyTorch's own fake form refuses types its kernels take."""
    rows, columns = first.shape[-2], second.shape[-1]
    if first.dim() == 2 and second.dim() == 2 and offs is not None:
        return first.new_empty((offs.shape[0], rows, columns), dtype=out_dtype)
    if first.dim() == 2 or second.dim() == 2:
        return first.new_empty((rows, columns), dtype=out_dtype)
    return first.new_empty((first.shape[0], rows, columns), dtype=out_dtype)


FAKES: dict[Any, Any] = {torch.ops.aten._grouped_mm.default: _grouped_mm}


def _trial(func: Any, args: Any, kwargs: Any) -> Any:
    """The operation on fake copies of real constants, to learn its size; None when its size needs values."""
    try:
        return func(*args, **kwargs)
    except RuntimeError:
        return None


def _functional(kind: str, overload: str, target: torch.Tensor, args: Any, kwargs: Any) -> torch.Tensor:
    """The new value that an operation writes into `target`."""
    aten = torch.ops.aten
    if kind == "copy_":
        return args[1]
    if kind == "zero_":
        return aten.full.default(list(target.shape), 0, dtype=target.dtype)
    if kind == "fill_" and overload == "Scalar":
        return aten.full.default(list(target.shape), args[1], dtype=target.dtype)
    if kind == "fill_":
        return args[1]
    if kind == "bernoulli_" and overload == "float":
        return aten.bernoulli.p(target, args[1] if len(args) > 1 else kwargs.get("p", 0.5))
    packet = getattr(aten, kind[:-1], None)
    functional = getattr(packet, overload, None) if packet is not None else None
    if functional is None:
        raise CaptureError(
            f"aten.{kind}.{overload}", "writing in place needs a form that makes a new tensor", "none",
            "avoid this operation",
        )  # fmt: skip
    return functional(*args, **kwargs)
