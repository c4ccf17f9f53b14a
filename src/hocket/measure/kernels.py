"""The operations that a probe measures on one device: matrix products, memory traffic, kinds, fixed costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from hocket.cost.compute import ATTENTION_BACKWARD_FLOPS, ATTENTION_FLOPS

aten = torch.ops.aten

Call = Callable[[], object]

PRODUCT_SHAPES = (
    (16, 16, 16), (64, 32, 32), (32, 64, 128), (128, 64, 64), (128, 64, 192), (256, 64, 256), (128, 256, 64),
    (64, 128, 512), (256, 128, 384), (256, 128, 512), (512, 256, 256), (64, 512, 1024), (256, 256, 1024),
    (512, 256, 1024), (128, 1024, 1024), (512, 512, 1024), (1024, 256, 2048), (1024, 1024, 1024),
)  # fmt: skip
"""(m, k, n): square ones, and the skinny ones of small transformers."""

LARGE_SHAPES = (
    (2048, 2048, 2048),
    (2048, 2048, 8192),
    (4096, 4096, 4096),
    (8192, 2048, 8192),
    (8192, 8192, 8192),
)
"""Further ones for accelerators."""

SLOW_FLOPS = 1e7
"""Products of other dtypes than float32 are measured up to so many flops on CPUs without units for them."""

TRAFFIC_ELEMENTS = (2**10, 2**12, 2**14, 2**16, 2**17, 2**18, 2**20, 2**22)
"""Elements of an addition, in cache and out of it."""

LARGE_TRAFFIC = (2**24, 2**26)


@dataclass(frozen=True, slots=True)
class Sample:
    """One thing to measure: its topic (as `product`, `traffic`, `kind`), its kind or dtype, and its work.

    `flops` and `bytes` are those of `cost.compute.work`; `elements` likewise.
    """

    topic: str
    name: str
    calls: tuple[Call, ...]
    flops: float = 0.0
    bytes: float = 0.0
    elements: float = 0.0


def _random(*shape: int, device: str, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, device=device).to(dtype)


TINY = 48
"""Tiny operations in a mixed run."""

MIXED_PRODUCTS = 8
"""Products among them: transformers have about six small operations and views per product."""


def launch_samples(device: str) -> Iterator[Sample]:
    """A bare tiny call; and tiny operations and views as a program runs them, among products.

    In a step a tiny operation finds its code and data evicted by the ones between, which costs more than the
    same call repeated. So three runs are measured, products alone (`mixed`), with TINY operations in between
    (`launch`) and with TINY views (`view`); the differences are theirs.
    """
    x, y = _random(4, 8, device=device), _random(4, 8, device=device)
    yield Sample("call", "add", (partial(aten.add.Tensor, x, y),))
    tiny: list[Call] = [
        partial(aten.add.Tensor, x, y), partial(aten.mul.Tensor, x, y), partial(aten.sub.Tensor, x, y),
        partial(aten.sum.dim_IntList, x, [0], False), partial(aten.mul.Tensor, x, 0.5),
        partial(aten.tanh.default, x), partial(aten.cat.default, [x, y], 0), partial(aten.rsqrt.default, x),
    ]  # fmt: skip
    views: list[Call] = [
        partial(torch.reshape, x, [8, 4]), partial(aten.permute.default, x, [1, 0]),
        partial(aten.expand.default, x, [3, 4, 8]), partial(aten.slice.Tensor, x, 1, 0, 4, 1),
    ]  # fmt: skip
    products = [
        partial(aten.mm.default, _random(64, 128, device=device), _random(128, 384, device=device))
        for _ in range(MIXED_PRODUCTS)
    ]
    yield Sample("mixed", "products", (partial(_interleave, products, ()),))
    yield Sample("launch", "tiny", (partial(_interleave, products, [tiny[i % len(tiny)] for i in range(TINY)]),))
    yield Sample("view", "views", (partial(_interleave, products, [views[i % len(views)] for i in range(TINY)]),))


def _interleave(products: Sequence[Call], between: Sequence[Call]) -> None:
    """A program's loop in small: every result is stored under a name, and dropped by the next of its name."""
    values: dict[str, object] = {}
    each = len(between) // len(products)
    for index, product in enumerate(products):
        values["product"] = product()
        for number, call in enumerate(between[index * each : (index + 1) * each]):
            result = call()
            values[f"v{number}"] = result


def product_samples(device: str, dtypes: tuple[torch.dtype, ...], quick: bool) -> Iterator[Sample]:
    """Matrix products of several shapes, plain and with either operand transposed."""
    shapes = PRODUCT_SHAPES[::3] if quick else PRODUCT_SHAPES
    if device == "cuda":
        shapes = (*shapes, *LARGE_SHAPES)
    for dtype in dtypes:
        for m, k, n in shapes:
            if device == "cpu" and dtype != torch.float32 and (2 * m * k * n > SLOW_FLOPS):
                continue
            operands = [
                (_random(m, k, device=device, dtype=dtype), _random(k, n, device=device, dtype=dtype)),
                (_random(m, k, device=device, dtype=dtype), _random(n, k, device=device, dtype=dtype).t()),
                (_random(k, m, device=device, dtype=dtype).t(), _random(k, n, device=device, dtype=dtype)),
            ]
            calls = tuple(partial(aten.mm.default, a, b) for a, b in operands)
            size = operands[0][0].element_size() * (m * k + k * n + m * n)
            yield Sample("product", str(dtype).removeprefix("torch."), calls, 2.0 * m * k * n, size)


def traffic_samples(device: str, quick: bool) -> Iterator[Sample]:
    """Additions into fresh memory."""
    sizes = TRAFFIC_ELEMENTS[::2] if quick else TRAFFIC_ELEMENTS
    if device == "cuda":
        sizes = (*sizes, *LARGE_TRAFFIC)
    for n in sizes:
        pairs = [(_random(n, device=device), _random(n, device=device)) for _ in range(2)]
        calls = tuple(partial(aten.add.Tensor, a, b) for a, b in pairs)
        yield Sample("traffic", "add", calls, bytes=12.0 * n, elements=n)
    n = 2**18 if device == "cpu" else 2**26
    x, y = _random(n, device=device), _random(n, device=device)
    yield Sample("copy", "add", (partial(aten.add.Tensor, x, y),), bytes=12.0 * n)
    fill = partial(aten.full.default, [n], 0.5, dtype=torch.float32, device=device)
    yield Sample("fill", "full", (fill,), bytes=4.0 * n)


def kind_samples(device: str, quick: bool) -> Iterator[Sample]:
    """Operations whose arithmetic shows beside their memory traffic, and products of another rate."""
    yield from _attention_samples(device)
    rows, width = (512, 256) if device == "cpu" else (8192, 4096)
    n = float(rows * width)
    for name, call, _ in _row_calls(device, 2, 16, quick):
        yield Sample("kind_call", name, (call,))
    for name, call, moved in _row_calls(device, rows, width, quick):
        yield Sample("kind", name, (call,), bytes=4.0 * moved * n, elements=n)
    a, b = _random(16, 64, 32, device=device), _random(16, 32, 64, device=device)
    yield Sample("kind", "bmm", (partial(aten.bmm.default, a, b),), 2.0 * 16 * 64 * 32 * 64, 4.0 * 16 * 8192)


def _row_calls(device: str, rows: int, width: int, quick: bool) -> list[tuple[str, Call, int]]:
    """Kinds on a [rows, width] tensor, with the number of tensors of that size they read and write."""
    x, g = _random(rows, width, device=device), _random(rows, width, device=device)
    weight, bias = _random(width, device=device), _random(width, device=device)
    _, mean, rstd = aten.native_layer_norm.default(x, [width], weight, bias, 1e-5)
    calls: list[tuple[str, Call, int]] = [
        ("gelu", partial(aten.gelu.default, x), 2),
        ("gelu_backward", partial(aten.gelu_backward.default, g, x), 3),
        ("tanh", partial(aten.tanh.default, x), 2),
        ("pow", partial(aten.pow.Tensor_Scalar, x, 3.0), 2),
        ("native_layer_norm", partial(aten.native_layer_norm.default, x, [width], weight, bias, 1e-5), 2),
        (
            "native_layer_norm_backward",
            partial(aten.native_layer_norm_backward.default, g, x, [width], mean, rstd, weight, bias, [True] * 3),
            3,
        ),
        ("_softmax", partial(aten._softmax.default, x, -1, False), 2),
        ("_log_softmax", partial(aten._log_softmax.default, x, -1, False), 2),
        ("sum", partial(aten.sum.dim_IntList, x, [0], False), 1),
    ]
    return calls if quick else calls + _more_row_calls(device, x, g)


def _more_row_calls(device: str, x: torch.Tensor, g: torch.Tensor) -> list[tuple[str, Call, int]]:
    """The kinds that a quick measurement leaves out."""
    rows, width = x.shape
    soft = torch.softmax(x, -1)
    positive = x.abs() + 1.0
    rowwise = torch.randint(0, width, (rows, 1), device=device)
    table = min(1024, 2 * rows)
    spots = torch.randint(0, table, (rows,), device=device)
    return [
        (
            "_softmax_backward_data",
            partial(aten._softmax_backward_data.default, g, soft, -1, torch.float32),
            3,
        ),
        (
            "_log_softmax_backward_data",
            partial(aten._log_softmax_backward_data.default, g, soft, -1, torch.float32),
            3,
        ),
        ("tanh_backward", partial(aten.tanh_backward.default, g, soft), 3),
        ("exp", partial(aten.exp.default, x), 2),
        ("log", partial(aten.log.default, positive), 2),
        ("erf", partial(aten.erf.default, x), 2),
        ("sqrt", partial(aten.sqrt.default, positive), 2),
        ("rsqrt", partial(aten.rsqrt.default, positive), 2),
        ("sigmoid", partial(aten.sigmoid.default, x), 2),
        ("silu", partial(aten.silu.default, x), 2),
        ("cos", partial(aten.cos.default, x), 2),
        ("sin", partial(aten.sin.default, x), 2),
        ("where", partial(aten.where.self, positive > 1.5, x, g), 4),
        ("amax", partial(aten.amax.default, x, [-1], False), 1),
        ("scatter", partial(aten.scatter.value, x, 1, rowwise, 1.0), 2),
        ("bernoulli", partial(aten.bernoulli.p, x, 0.9), 2),
        ("embedding", partial(aten.embedding.default, _random(table, width, device=device), spots), 2),
        (
            "embedding_dense_backward",
            partial(aten.embedding_dense_backward.default, g, spots, table, -1, False),
            3,
        ),
    ]


def _attention_samples(device: str) -> Iterator[Sample]:
    """Causal attention as the runtime calls it, forward and backward."""
    shape = (4, 4, 64, 32) if device == "cpu" else (8, 16, 1024, 64)
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    q, k, v, g = (_random(*shape, device=device, dtype=dtype) for _ in range(4))
    batch, heads, rows, width = shape
    scores = 0.5 * batch * heads * rows * rows
    size = float(q.nbytes)
    if device == "cpu":
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
        out, logsumexp = forward(q, k, v, 0.0, True)
        calls: tuple[Call, Call] = (
            partial(forward, q, k, v, 0.0, True),
            partial(backward, g, q, k, v, out, logsumexp, 0.0, True),
        )
    else:
        flash = aten._scaled_dot_product_flash_attention.default
        made = flash(q, k, v, 0.0, True)
        rest = (made[0], made[1], made[2], made[3], made[4], made[5], 0.0, True, made[6], made[7])
        calls = (
            partial(flash, q, k, v, 0.0, True),
            partial(aten._scaled_dot_product_flash_attention_backward.default, g, q, k, v, *rest),
        )
    yield Sample("kind", "attention", (calls[0],), ATTENTION_FLOPS * scores * width, 4 * size, scores)
    flops = ATTENTION_BACKWARD_FLOPS * scores * width
    yield Sample("kind", "attention_backward", (calls[1],), flops, 8 * size, scores)
