"""At least one instance of every operation of the table, with small random inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from split_run import Case, run

from hocket.graph.types import Argument, Dtype, Operation, Ref


@dataclass(eq=False)
class Tensor:
    """An input: its shape and how to fill it. The same object twice is the same value twice."""

    shape: tuple[int, ...]
    fill: Callable[[tuple[int, ...], torch.Generator], torch.Tensor]


def f(*shape: int) -> Tensor:
    """Random numbers around 0."""
    return Tensor(shape, lambda s, g: torch.randn(s, dtype=torch.float64, generator=g))


def pos(*shape: int) -> Tensor:
    """Random numbers between 0.2 and 1.2."""
    return Tensor(shape, lambda s, g: torch.rand(s, dtype=torch.float64, generator=g) + 0.2)


def unit(*shape: int) -> Tensor:
    """Random numbers between 0.05 and 0.95."""
    return Tensor(shape, lambda s, g: torch.rand(s, dtype=torch.float64, generator=g) * 0.9 + 0.05)


def i(*shape: int, below: int = 6, start: int = 0) -> Tensor:
    """Random integers."""
    return Tensor(shape, lambda s, g: torch.randint(start, below, s, generator=g))


def distinct(*shape: int) -> Tensor:
    """Numbers that all differ, so that sorting has one answer."""
    return Tensor(
        shape, lambda s, g: torch.randperm(max(1, torch.Size(s).numel()), generator=g).double().reshape(s)
    )


def rows(*shape: int, below: int, dim: int) -> Tensor:
    """Integers that all differ along a dim."""

    def fill(s: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
        wide = [n if d != dim else below for d, n in enumerate(s)]
        return torch.rand(wide, generator=g).argsort(dim).narrow(dim, 0, s[dim]).contiguous()

    return Tensor(shape, fill)


def b(*shape: int) -> Tensor:
    """Random truth values."""
    return Tensor(shape, lambda s, g: torch.rand(s, generator=g) < 0.5)


def single(*shape: int) -> Tensor:
    """Random numbers around 0, in single precision for operations that have no double."""
    return Tensor(shape, lambda s, g: torch.randn(s, generator=g))


def ends(groups: int, last: int) -> Tensor:
    """Ascending ends of groups of rows, some of them empty; the last group ends at `last`."""

    def fill(s: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
        cuts = torch.randint(0, last + 1, s, generator=g).sort().values
        cuts[-1] = last
        return cuts.to(torch.int32)

    return Tensor((groups,), fill)


def mask(*shape: int) -> Tensor:
    """Attention masks: 0 or minus infinity, the first key always visible."""

    def fill(s: tuple[int, ...], g: torch.Generator) -> torch.Tensor:
        hidden = torch.rand(s, generator=g) < 0.3
        hidden[..., 0] = False
        return torch.zeros(s, dtype=torch.float64).masked_fill(hidden, float("-inf"))

    return Tensor(shape, fill)


def build(op: str, *args: object, outputs: int = 0, **kwargs: object) -> Case:
    """A case of an operation, its tensors filled from a seed that its text determines."""
    generator = torch.Generator().manual_seed(sum(map(ord, op)) + len(args))
    values: dict[str, torch.Tensor] = {}
    names: dict[int, str] = {}

    def convert(argument: object) -> Argument:
        if isinstance(argument, Tensor):
            if id(argument) not in names:
                names[id(argument)] = f"x{len(names)}"
                values[names[id(argument)]] = argument.fill(argument.shape, generator)
            return Ref(names[id(argument)])
        if isinstance(argument, tuple | list):
            return tuple(convert(a) for a in argument)
        return argument  # type: ignore[return-value]

    full = op if op.startswith("hocket.") else f"aten.{op}"
    full = full if full.count(".") > 1 else f"{full}.default"
    converted = tuple(convert(a) for a in args)
    keywords = tuple((k, convert(a)) for k, a in kwargs.items())
    probe = Operation(full, converted, keywords, ("out",))
    count = len(run(probe, values))
    return Case(Operation(full, converted, keywords, tuple(f"out{n}" for n in range(count))), values)


def cases() -> Iterator[Case]:
    for group in (products, elementwise, linear, shapes, creation, reductions, by_rows, norms, attention, spatial,
                  indexing):  # fmt: skip
        yield from group()


def products() -> Iterator[Case]:
    yield build("mm", f(4, 6), f(6, 8))
    yield build("mm", i(4, 6, start=-3), i(6, 8, start=-3))
    yield build("mm", f(4, 1), f(1, 8))
    for bias in (f(8), f(4, 8), f(1, 8), f(4, 1), f(1)):
        yield build("addmm", bias, f(4, 6), f(6, 8))
    yield build("addmm", f(8), f(4, 6), f(6, 8), beta=0.5, alpha=2.0)
    yield build("bmm", f(4, 6, 8), f(4, 8, 2))
    for bias in (f(4, 6, 2), f(1, 6, 2), f(6, 2), f(2)):
        yield build("baddbmm", bias, f(4, 6, 8), f(4, 8, 2), beta=0.5)
    yield build("mv", f(4, 6), f(6))
    yield build("dot", f(8), f(8))
    yield build("vdot", f(8), f(8))
    same = f(6, 6)
    yield build("mm", same, same)
    yield build("_grouped_mm", single(8, 4), single(4, 4, 8), ends(4, 8))
    yield build("_grouped_mm", single(4, 8), single(8, 12), ends(4, 8))
    yield build("_grouped_mm", f(8, 4), f(4, 4, 6), ends(4, 8))
    yield build("_grouped_mm", f(4, 8), f(8, 6), ends(4, 8))


UNARY = (
    "abs sign exp exp2 expm1 sin cos tan tanh sigmoid erf erfc atan sinh cosh square floor ceil round trunc frac sgn"
    " relu relu6 gelu silu elu selu celu softplus mish hardtanh hardswish hardsigmoid leaky_relu"
    " isnan isinf signbit asinh"
)


def elementwise() -> Iterator[Case]:
    for op in UNARY.replace(" asinh", "").split():
        yield build(op, f(4, 6))
    for op in ["log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"]:
        yield build(op, pos(4, 6))
    for op in ("asin", "acos"):
        yield build(op, unit(4, 6))
    for op in [
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "atan2",
        "hypot",
        "floor_divide",
        "max.other",
        "min.other",
    ]:
        yield build(op, f(4, 6), f(6))
    yield build("xlogy.Tensor", f(4, 6), pos(6))
    yield build("gelu", f(2, 4, 6), approximate="tanh")
    yield build("pow.Tensor_Scalar", f(4, 6), 3.0)
    yield build("pow.Tensor_Tensor", pos(4, 6), f(4, 1))
    yield build("pow.Scalar", 2.0, f(4, 6))
    yield build("fmod.Tensor", f(4, 6), pos(6))
    yield build("remainder.Tensor", f(4, 6), pos(6))
    yield build("clamp", f(4, 6), -0.5, 0.5)
    yield build("clamp.Tensor", f(4, 6), f(6))
    yield build("clamp_min", f(4, 6), 0.1)
    yield build("clamp_max", f(4, 6), 0.1)
    yield build("div.Tensor_mode", f(4, 6), pos(6), rounding_mode="floor")
    yield build("div.Scalar_mode", f(4, 6), 0.3, rounding_mode="trunc")
    yield build("log_sigmoid_forward", f(4, 6))
    yield build("log_sigmoid_backward", f(4, 6), f(4, 6), f(4, 6))
    for op in ["eq", "ne", "lt", "le", "gt", "ge"]:
        yield build(f"{op}.Tensor", i(4, 6), i(4, 1))
        yield build(f"{op}.Scalar", i(4, 6), 3)
    for op in ["logical_and", "logical_or", "logical_xor"]:
        yield build(op, b(4, 6), b(6))
    yield build("logical_not", b(4, 6))
    yield build("bitwise_not", b(4, 6))
    for op in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
        yield build(f"{op}.Tensor", b(4, 6), b(1, 6))
        yield build(f"{op}.Tensor", i(4, 6), i(6))
    for op in ["bitwise_left_shift", "bitwise_right_shift"]:
        yield build(f"{op}.Tensor", i(4, 6), i(4, 6, below=3))
    yield build("native_dropout", f(4, 6), 0.0, True)
    yield build("bernoulli.p", f(4, 6), 1.0)
    yield build("_prelu_kernel", f(4, 6), f(1, 6))
    yield build("threshold", f(4, 6), 0.1, 0.2)
    yield build("nan_to_num", f(4, 6), 0.5)
    yield build("lerp.Tensor", f(4, 6), f(4, 6), unit(4, 6))
    yield build("lerp.Scalar", f(4, 6), f(4, 6), 0.3)


def linear() -> Iterator[Case]:
    for op in ("add.Tensor", "sub.Tensor", "mul.Tensor", "div.Tensor"):
        yield build(op, f(4, 6), pos(4, 6))
        yield build(op, f(4, 6), pos(6))
        yield build(op, f(4, 1), pos(2, 1, 6))
        yield build(op, f(4, 6), pos())
        yield build(op, f(4, 6), 2.0)
        yield build(op, i(4, 6, start=-4), i(4, 6, start=1))
        same = pos(4, 6)
        yield build(op, same, same)
    yield build("add.Tensor", f(4, 6), 0)
    yield build("add.Tensor", f(4, 6), f(4, 6), alpha=3)
    yield build("add.Tensor", b(4, 6), b(4, 6))
    yield build("mul.Tensor", f(4, 6), b(4, 6))
    yield build("mul.Tensor", i(4, 6), f(4, 6))
    yield build("add.Scalar", f(4, 6), 2.0)
    yield build("sub.Scalar", f(4, 6), 2.0)
    yield build("mul.Scalar", f(4, 6), 2.0)
    yield build("div.Scalar", f(4, 6), 2.0)
    yield build("rsub.Tensor", f(4, 6), f(4, 6))
    yield build("rsub.Scalar", f(4, 6), 2.0)
    yield build("true_divide.Tensor", f(4, 6), pos(6))
    yield build("neg", f(4, 6))
    yield build("positive", f(4, 6))
    yield build("where.self", b(4, 6), f(4, 6), f(4, 6))
    yield build("where.self", b(4, 1), f(), f(6))
    yield build("where.ScalarOther", b(4, 6), f(4, 6), 0.0)
    yield build("where.ScalarOther", b(4, 6), f(4, 6), 1.0)
    yield build("masked_fill.Scalar", f(4, 6), b(6), 0.0)
    yield build("masked_fill.Scalar", f(4, 6), b(6), -3.0)
    yield build("masked_fill.Tensor", f(4, 6), b(4, 6), f())
    yield build("addcmul", f(4, 6), f(4, 6), f(6), value=0.5)
    yield build("addcdiv", f(4, 6), f(4, 6), pos(6))
    yield build("_to_copy", f(4, 6), dtype=Dtype("float32"))
    yield build("_to_copy", i(4, 6), dtype=Dtype("float64"))
    yield build("_to_copy", f(4, 6), dtype=Dtype("int64"))
    yield build("_to_copy", b(4, 6), dtype=Dtype("float64"))
    yield build("tanh_backward", f(4, 6), unit(4, 6))
    yield build("sigmoid_backward", f(4, 6), unit(4, 6))
    yield build("threshold_backward", f(4, 6), f(4, 6), 0)
    yield build("gelu_backward", f(4, 6), f(4, 6), approximate="tanh")
    yield build("silu_backward", f(4, 6), f(4, 6))
    yield build("elu_backward", f(4, 6), 1.0, 1.0, 1.0, False, f(4, 6))
    yield build("hardtanh_backward", f(4, 6), f(4, 6), -1.0, 1.0)
    yield build("hardswish_backward", f(4, 6), f(4, 6))
    yield build("hardsigmoid_backward", f(4, 6), f(4, 6))
    yield build("leaky_relu_backward", f(4, 6), f(4, 6), 0.1, False)
    yield build("softplus_backward", f(4, 6), f(4, 6), 1.0, 20.0)
    yield build("mish_backward", f(4, 6), f(4, 6))
    yield build("native_dropout_backward", f(4, 6), b(4, 6), 2.0)


VIEWS = (
    ((4, 6), (24,)), ((24,), (4, 6)), ((4, 6, 8), (24, 8)), ((4, 6, 8), (4, 48)), ((4, 48), (4, 6, 8)),
    ((6, 4), (4, 6)), ((4, 1, 6), (4, 6)), ((4, 6), (1, 4, 1, 6)), ((4, 6), (2, 2, 3, 2)), ((2, 2, 6), (4, 3, 2)),
    ((1,), ()), ((), (1, 1)), ((1, 8), (8, 1)), ((2, 12), (8, 3)),
)  # fmt: skip


def shapes() -> Iterator[Case]:
    for before, after in VIEWS:
        yield build("view", f(*before), after)
    yield build("permute", f(2, 4, 6), (2, 0, 1))
    yield build("permute", f(4, 6), (1, 0))
    yield build("expand", f(1, 6), (4, 6))
    yield build("expand", f(6), (2, 4, 6))
    yield build("expand", f(), (4, 6))
    yield build("slice.Tensor", f(4, 8), 1, 2, 6, 1)
    yield build("slice.Tensor", f(4, 8), 1, 0, 4, 1)
    yield build("slice.Tensor", f(4, 8), 1, 0, 8, 2)
    yield build("slice.Tensor", f(4, 8), 0, 0, 4, 1)
    yield build("slice_backward", f(4, 4), (4, 8), 1, 2, 6, 1)
    yield build("select_backward", f(4, 6), (4, 2, 6), 1, 1)
    yield build("slice_scatter", f(4, 8), f(4, 4), 1, 2, 6, 1)
    yield build("split_with_sizes", f(4, 8), (4, 4), 1)
    yield build("split_with_sizes", f(4, 16), (8, 4, 4), 1)
    yield build("split_with_sizes", f(8, 6), (5, 3), 0)
    yield build("split_with_sizes", f(8, 6), (8,), 0)
    yield build("cat", (f(4, 4), f(4, 4)), 1)
    yield build("cat", (f(4, 8), f(4, 4), f(4, 4)), 1)
    yield build("cat", (f(3, 4), f(5, 4)), 0)
    same = f(4, 4)
    yield build("cat", (same, same), 0)
    yield build("cat", (f(4, 4),), 0)
    yield build("constant_pad_nd", f(2, 4, 6), (1, 2, 0, 0), 0.0)
    yield build("constant_pad_nd", f(2, 4, 6), (0, 0, 1, -1), 1.5)
    yield build("repeat", f(4, 6), (2, 1, 1))
    yield build("repeat", f(4, 1), (2, 3))
    yield build("flip", f(4, 6), (0,))
    yield build("roll", f(4, 6), (1,), (1,))
    yield build("roll", f(4, 6), (1,))
    yield build("tril", f(2, 4, 4))
    yield build("triu", f(2, 4, 6), 1)


def creation() -> Iterator[Case]:
    yield build("full", (4, 6), 3.5, dtype=Dtype("float64"))
    yield build("full", (), 3.5, dtype=Dtype("float64"))
    yield build("zeros", (4, 6), dtype=Dtype("float64"))
    yield build("ones", (4, 6), dtype=Dtype("int64"))
    yield build("arange.start_step", 2, 14, 2, dtype=Dtype("int64"))
    yield build("hocket.constant.default", (1.0, 2.0, 3.0, 4.0), (2, 2), dtype=Dtype("float64"))


def reductions() -> Iterator[Case]:
    for dims, keep in (((1,), False), ((1,), True), ((0, 2), False), ((0, 1, 2), False), ((0, 1, 2), True)):
        yield build("sum.dim_IntList", f(2, 4, 6), dims, keep)
        yield build("amax", f(2, 4, 6), dims, keep)
        yield build("amin", f(2, 4, 6), dims, keep)
        yield build("logsumexp", f(2, 4, 6), dims, keep)
        yield build("any.dims", b(2, 4, 6), dims, keep)
        yield build("all.dims", b(2, 4, 6), dims, keep)
        yield build("linalg_vector_norm", f(2, 4, 6), 2, dims, keep)
        yield build("var.correction", f(2, 4, 6), dims, correction=1, keepdim=keep)
        yield build("std.correction", f(2, 4, 6), dims, correction=1, keepdim=keep)
    yield build("sum.dim_IntList", b(4, 6), (1,), False)
    yield build("sum.dim_IntList", i(4, 6), (0,), False, dtype=Dtype("float64"))
    yield build("sum.dim_IntList", f(), (), False)
    for op in ("any.dim", "all.dim"):
        yield build(op, b(4, 6), 1)
        yield build(op, b(4, 6), 0, True)
    for op in ("argmax", "argmin", "prod.dim_int", "max.dim", "min.dim", "median.dim"):
        yield build(op, distinct(4, 6), 1)
        yield build(op, distinct(4, 6), 0, True)
    yield build("argmax", distinct(4, 6))
    yield build("mode", distinct(4, 6), 1)
    yield build("kthvalue", distinct(4, 6), 2, 1)
    for op in ("any", "all"):
        yield build(op, b(4, 6))
    for op in ("max", "min", "sum", "mean", "prod"):
        yield build(op, f(4, 6))
    yield build("nonzero", b(4, 6))


def by_rows() -> Iterator[Case]:
    for dim in (1, 2):
        yield build("_softmax", f(2, 4, 6), dim, False)
        yield build("_log_softmax", f(2, 4, 6), dim, False)
        yield build("_softmax_backward_data", f(2, 4, 6), unit(2, 4, 6), dim, Dtype("float64"))
        yield build("_log_softmax_backward_data", f(2, 4, 6), f(2, 4, 6), dim, Dtype("float64"))
    yield build("_safe_softmax", f(4, 6), 1)
    yield build("histc", f(6), 4, 0, 3)
    yield build("_softmax", mask(4, 8), 0, False)
    for op in ("cumsum", "cumprod", "logcumsumexp"):
        yield build(op, f(4, 6), 1)
    yield build("cumsum", b(4, 6), 0)
    yield build("topk", distinct(4, 6), 2, 1, True, True)
    yield build("topk", distinct(4, 6), 2, 0)
    yield build("sort", distinct(4, 6), 1)
    yield build("sort.stable", distinct(4, 6), stable=True, dim=0)
    yield build("argsort", distinct(4, 6), 1)
    yield build("argsort.stable", distinct(4, 6), stable=True)


def norms() -> Iterator[Case]:
    yield build("native_layer_norm", f(2, 4, 6), (6,), f(6), f(6), 1e-5)
    yield build("native_layer_norm", f(2, 4, 6), (4, 6), f(4, 6), None, 1e-5)
    yield build("native_layer_norm", f(6), (6,), None, None, 1e-5)
    grad = f(2, 4, 6), f(2, 4, 6), (6,), f(2, 4, 1), pos(2, 4, 1)
    yield build("native_layer_norm_backward", *grad, f(6), f(6), (True, True, True))
    yield build("native_layer_norm_backward", *grad, f(6), None, (True, True, False))
    yield build("_fused_rms_norm", f(2, 4, 6), (6,), f(6), 1e-5)
    yield build("native_group_norm", f(4, 8, 3), f(8), f(8), 4, 8, 3, 4, 1e-5)
    yield build("native_group_norm", f(4, 8, 2, 2), None, None, 4, 8, 4, 2, 1e-5)
    yield build("native_group_norm_backward", f(4, 8, 3), f(4, 8, 3), f(4, 4), pos(4, 4), f(8), 4, 8, 3, 4,
                (True, True, True))  # fmt: skip


def attention() -> Iterator[Case]:
    for hidden in (None, mask(2, 4, 6, 6), mask(2, 1, 6, 6), mask(1, 1, 6, 6), mask(6, 6), mask(2, 1, 1, 6)):
        for causal in (False, True):
            if hidden is not None and causal:
                continue
            q, k, v = f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8)
            yield build("hocket.attention.default", q, k, v, hidden, causal, 0.3)
            yield build("hocket.attention_backward.default", f(2, 4, 6, 8), q, k, v, f(2, 4, 6, 8), pos(2, 4, 6),
                        hidden, causal, 0.3)  # fmt: skip
    yield build("hocket.attention.default", f(2, 4, 4, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), None, False, None)
    yield build("hocket.attention.default", f(2, 4, 4, 8), f(2, 4, 6, 8), f(2, 4, 6, 2), None, False, None)
    yield build("hocket.attention.default", f(2, 4, 6, 8), f(2, 4, 6, 8), f(2, 4, 6, 8), b(1, 1, 6, 6), False, None)


def spatial() -> Iterator[Case]:
    flat = (1, 1), (1, 1), (1, 1), False, (0, 0)
    yield build("convolution", f(2, 4, 5, 5), f(6, 4, 3, 3), f(6), *flat, 1)
    yield build("convolution", f(2, 4, 5, 5), f(6, 4, 3, 3), None, (2, 2), (0, 0), (1, 1), False, (0, 0), 1)
    yield build("convolution", f(2, 4, 5, 5), f(8, 2, 3, 3), f(8), *flat, 2)
    yield build("convolution", f(2, 4, 8), f(6, 4, 3), f(6), (1,), (0,), (1,), False, (0,), 1)
    yield build("convolution", f(2, 4, 5, 5), f(4, 6, 3, 3), f(6), (1, 1), (1, 1), (1, 1), True, (0, 0), 1)
    back = f(2, 6, 5, 5), f(2, 4, 5, 5), f(6, 4, 3, 3)
    yield build("convolution_backward", *back, None, *flat, 1, (True, True, False))
    yield build("convolution_backward", *back, (6,), *flat, 1, (True, True, True))
    yield build("convolution_backward", *back, None, *flat, 1, (False, True, False))
    yield build(
        "convolution_backward",
        f(2, 8, 5, 5),
        f(2, 4, 5, 5),
        f(8, 2, 3, 3),
        (8,),
        *flat,
        2,
        (True, True, True),
    )
    pool = (3, 3), (2, 2), (1, 1), (1, 1), False
    yield build("max_pool2d_with_indices", f(2, 4, 6, 6), *pool)
    yield build("max_pool2d_with_indices_backward", f(2, 4, 3, 3), f(2, 4, 6, 6), *pool, i(2, 4, 3, 3, below=36))
    yield build("avg_pool2d", f(2, 4, 6, 6), (2, 2), (2, 2))
    yield build("avg_pool2d_backward", f(2, 4, 3, 3), f(2, 4, 6, 6), (2, 2), (2, 2), (0, 0), False, True, None)
    yield build("_adaptive_avg_pool2d", f(2, 4, 6, 6), (2, 3))
    yield build("_adaptive_avg_pool2d_backward", f(2, 4, 2, 3), f(2, 4, 6, 6))
    yield build("upsample_nearest2d", f(2, 4, 3, 3), (6, 6))
    yield build("upsample_bilinear2d", f(2, 4, 3, 3), (6, 6), False)


def indexing() -> Iterator[Case]:
    yield build("embedding", f(8, 6), i(2, 4, below=8))
    yield build("embedding", f(8, 6), i(below=8))
    for padding in (-1, 3):
        yield build("embedding_dense_backward", f(2, 4, 6), i(2, 4, below=8), 8, padding, False)
    yield build("embedding_dense_backward", f(2, 4, 6), i(2, 4, below=8), 8, -1, True)
    yield build("gather", f(4, 8), 1, i(4, 2, below=8))
    yield build("gather", f(4, 8), 1, i(2, 4, below=8))
    yield build("gather", f(8, 6), 0, i(4, 6, below=8))
    yield build("gather", i(4, 8), 1, i(4, 1, below=8))
    yield build("scatter.src", f(4, 8), 1, rows(4, 2, below=8, dim=1), f(4, 2))
    yield build("scatter.src", f(8, 4), 0, rows(2, 2, below=8, dim=0), f(2, 2))
    yield build("scatter.value", f(4, 8), 1, i(4, 2, below=8), 0.0)
    yield build("scatter.value", f(4, 8), 1, i(4, 2, below=8), 2.5)
    yield build("scatter.value", i(4, 8), 1, i(4, 2, below=8), 1)
    yield build("scatter_add", f(4, 8), 1, i(4, 6, below=8), f(4, 6))
    yield build("scatter_add", f(8, 4), 0, i(6, 2, below=8), f(6, 2))
    yield build("index.Tensor", f(8, 4, 6), (i(2, 4, below=8),))
    yield build("index.Tensor", f(4, 8, 6), (None, i(4, below=8)))
    yield build("index.Tensor", f(4, 8, 6), (None, i(4, start=-8, below=8)))
    yield build("index.Tensor", f(4, 8), (i(4, 1, 1, 1, below=4), i(1, 1, 6, 1, below=8)))
    yield build("index.Tensor", f(4, 2, 8), (i(6, below=4), None, i(6, below=8)))
    yield build("index.Tensor", f(4, 8, 6), (None, i(4, 1, below=8), i(2, below=6)))
    yield build("index.Tensor", f(4, 8), (b(4),))
    yield build("_unsafe_index.Tensor", f(8, 4), (i(6, below=8),))
    yield build("index_put", f(8, 4), (i(6, below=8),), f(6, 4), True)
    yield build("index_put", f(8, 4), (i(6, below=8),), f(4), True)
    yield build("index_put", f(8, 4), (i(6, below=8),), f(6, 1), True)
    yield build("index_put", f(2, 8, 4), (None, i(6, below=8)), f(2, 6, 4), True)
    yield build("index_put", f(4, 2, 8), (i(6, below=4), None, i(6, below=8)), f(6, 2), True)
    yield build("index_put", f(4, 2, 8), (i(6, 2, below=4), None, i(2, below=8)), f(6, 2, 2), True)
    yield build("index_put", f(8, 4), (rows(6, below=8, dim=0),), f(6, 4), False)
    yield build("_unsafe_index_put", f(8, 4), (i(6, below=8),), f(6, 4), True)
    yield build("index_select", f(8, 4), 0, i(6, below=8))
    yield build("index_select", f(4, 8), 1, i(6, below=8))
