from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hocket.cluster.presets import PRESETS
from hocket.cluster.types import Device
from hocket.cost.compute import Work, compute_seconds, operation_seconds, work
from hocket.graph.types import Argument, Operation, Ref, TensorType

f32 = lambda *shape: TensorType(shape, "float32")  # noqa: E731


def op(name: str, *args: Argument, outputs: int = 1) -> Operation:
    return Operation(name, args, (), tuple(f"o{i}" for i in range(outputs)))


a, b, c = Ref("a"), Ref("b"), Ref("c")


def test_products() -> None:
    done = work(op("aten.mm.default", a, b), [f32(8, 16), f32(16, 4)], [f32(8, 4)])
    assert done == Work(2 * 8 * 16 * 4, 4 * (128 + 64 + 32), 0.0, "mm", 1, 128.0)
    done = work(op("aten.addmm.default", a, b, c), [f32(4), f32(8, 16), f32(16, 4)], [f32(8, 4)])
    assert done.flops == 2 * 8 * 16 * 4
    done = work(op("aten.bmm.default", a, b), [f32(3, 8, 16), f32(3, 16, 4)], [f32(3, 8, 4)])
    assert done.flops == 3 * 2 * 8 * 16 * 4


def test_views_cost_nothing() -> None:
    for kind in ("view", "permute", "expand"):
        done = work(op(f"aten.{kind}.default", a, (4, 2)), [f32(2, 4)], [f32(4, 2)])
        assert compute_seconds(done, "float32", PRESETS["H100"]) == 0
    done = work(op("aten.split_with_sizes.default", a, (1, 1), 0, outputs=2), [f32(2, 4)], [f32(1, 4)] * 2)
    assert done.launches == 0


def test_attention_counts_half_when_causal_and_more_backward() -> None:
    q, k = f32(2, 3, 8, 4), f32(2, 3, 16, 4)
    args = (a, b, c, None)
    full = work(op("hocket.attention.default", *args, False, None, outputs=2), [q, k, k], [q, f32(2, 3, 8)])
    causal = work(op("hocket.attention.default", *args, True, None, outputs=2), [q, k, k], [q, f32(2, 3, 8)])
    assert full.flops == 4 * 2 * 3 * 8 * 16 * 4
    assert causal.flops == full.flops / 2
    back = op("hocket.attention_backward.default", a, a, b, c, a, a, None, True, None, outputs=3)
    done = work(back, [q, q, k, k, q, f32(2, 3, 8)], [q, k, k])
    assert done.flops == pytest.approx(2.5 * causal.flops)


def test_convolutions() -> None:
    data, weight, out = f32(2, 6, 9, 9), f32(4, 3, 3, 3), f32(2, 4, 7, 7)
    conv = op("aten.convolution.default", a, b, None, (1, 1), (0, 0), (1, 1), False, (0, 0), 2)
    assert work(conv, [data, weight], [out]).flops == 2 * out.elements * 3 * 9
    back = op(
        "aten.convolution_backward.default",
        a, b, c, (4,), (1, 1), (0, 0), (1, 1), False, (0, 0), 2, (False, True, True), outputs=3,
    )  # fmt: skip
    assert work(back, [out, data, weight], [data, weight, f32(4)]).flops == 2 * out.elements * 3 * 9
    transposed = op("aten.convolution.default", a, b, None, (1, 1), (0, 0), (1, 1), True, (0, 0), 1)
    done = work(transposed, [out, weight], [data])
    assert done.flops == 2 * out.elements * weight.elements / 4


def test_a_lookup_reads_only_its_rows() -> None:
    rows = TensorType((5,), "int64")
    done = work(op("aten.embedding.default", a, b), [f32(50000, 8), rows], [f32(5, 8)])
    assert done.bytes == 40 + 2 * 160
    back = work(op("aten.embedding_dense_backward.default", a, b), [f32(5, 8), rows], [f32(50000, 8)])
    assert back.bytes > 50000 * 8 * 4


def test_makers_write_only() -> None:
    assert work(op("aten.full.default", (4, 4), 0.0), [], [f32(4, 4)]).bytes == 64


def test_elementwise_traffic() -> None:
    done = work(op("aten.add.Tensor", a, b), [f32(100), f32(100)], [f32(100)])
    assert done == Work(0.0, 1200.0, 100.0, "add", 1, 400.0)
    device = PRESETS["A100-40GB"]
    seconds = operation_seconds(op("aten.add.Tensor", a, b), [f32(10**7)] * 2, [f32(10**7)], device)
    assert seconds == pytest.approx(1.2e8 / 1555e9 + device.launch_seconds)


@given(st.floats(1, 1e15), st.floats(1, 1e15), st.sampled_from(sorted(PRESETS)))
def test_no_work_beats_its_roof(flops: float, moved: float, name: str) -> None:
    device = PRESETS[name]
    seconds = compute_seconds(Work(flops, moved, kind="mm"), "float16", device)
    assert seconds >= flops / device.peak("float16")
    assert seconds >= moved / device.bandwidth
    assert seconds >= device.launch_seconds


def test_large_transformer_products_reach_what_published_steps_need() -> None:
    # vTrain's A100: whole steps of GPT with hidden size 2048, microbatch 8 reach 0.61 of the peak, so its
    # largest product (8192 x 2048 x 8192) must reach at least that, and cannot be perfect
    done = work(
        op("aten.mm.default", a, b),
        [TensorType((8192, 2048), "float16"), TensorType((2048, 8192), "float16")],
        [TensorType((8192, 8192), "float16")],
    )
    share = done.flops / compute_seconds(done, "float16", PRESETS["A100-40GB"]) / 312e12
    assert 0.61 < share < 0.9


def test_kinds_have_their_own_rates() -> None:
    device = Device(
        "d",
        1,
        (("float32", 1e9),),
        1e9,
        1e-6,
        kind_rates=(("attention", 0.5),),
        element_seconds=(("gelu", 1e-8),),
        kind_launches=(("erf", 3e-6),),
        write_weight=4.0,
    )
    assert compute_seconds(Work(1e6, 0, kind="attention"), "float32", device) == pytest.approx(2e-3 + 1e-6)
    assert compute_seconds(Work(1e6, 0, kind="mm"), "float32", device) == pytest.approx(1e-3 + 1e-6)
    assert compute_seconds(Work(0, 8e3, 1e3, "gelu"), "float32", device) == pytest.approx(1e-5 + 1e-6)
    assert compute_seconds(Work(0, 8e3, 1e3, "erf"), "float32", device) == pytest.approx(8e-6 + 4e-6)
    fresh = Work(0, 8e3, 1e3, "full", written=8e3)
    assert compute_seconds(fresh, "float32", device) == pytest.approx(4 * 8e-6 + 1e-6)
    assert compute_seconds(Work(0, 8e3, 1e3, "add"), "float32", device) == pytest.approx(8e-6 + 1e-6)
