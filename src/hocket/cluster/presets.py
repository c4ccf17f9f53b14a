"""Known devices: datasheet rates (dense, no sparsity), memory bandwidth, and the link they usually have."""

from __future__ import annotations

from collections.abc import Mapping

from hocket.cluster.types import ANY_DTYPE, Curve, Device, Link

LAUNCH_SECONDS = 5e-6
"""A GPU kernel's launch when launches are queued ahead (assumption; 3 to 8 us are usually reported)."""

TENSOR_CORE_PRODUCTS: Curve = ((1e8, 0.02), (1e9, 0.12), (1e10, 0.4), (1e11, 0.68), (1e12, 0.78))
"""Share of the dense peak that a matrix product of so many flops reaches (assumption, checked on vTrain's
A100 data: whole GPT steps on one GPU reach 0.61 of the peak at hidden size 2048 and microbatch 8, whose
products are of 3e11 flops, 0.40 at microbatch 1, and 0.34 at hidden size 1024 and microbatch 8)."""

CPU_PRODUCTS: Curve = ((1e4, 0.1), (1e6, 0.5), (1e7, 0.75), (1e8, 0.85))
"""The same for one core of a CPU (assumption; `probe` measures it)."""

_T = 1e12
_G = 1e9


def _gpu(
    name: str, gigabytes: float, fp32: float, tf32: float, half: float, bandwidth: float, bf16: bool = True
) -> Device:
    """A GPU of so many GB, TFLOP/s and GB/s; one without bfloat16 units runs it at the float32 rate."""
    return Device(
        name=name,
        memory=round(gigabytes * _G),
        flops_per_second=(
            ("float32", fp32 * _T),
            ("tf32", tf32 * _T),
            ("bfloat16", (half if bf16 else fp32) * _T),
            ("float16", half * _T),
        ),
        bandwidth=bandwidth * _G,
        launch_seconds=LAUNCH_SECONDS,
        products=((ANY_DTYPE, TENSOR_CORE_PRODUCTS),),
    )


_DEVICES = (
    # NVIDIA V100 datasheet (SXM2): 15.7 TFLOPS fp32, 125 tensor, 900 GB/s; no tf32, no bf16
    _gpu("V100-16GB", 16, 15.7, 15.7, 125, 900, bf16=False),
    _gpu("V100-32GB", 32, 15.7, 15.7, 125, 900, bf16=False),
    # NVIDIA P100 datasheet (PCIe 16 GB): 9.3 TFLOPS fp32, 18.7 fp16, 732 GB/s
    _gpu("P100-16GB", 16, 9.3, 9.3, 18.7, 732, bf16=False),
    # NVIDIA A100 datasheet (SXM4): 19.5 fp32, 156 tf32, 312 bf16/fp16; 1555 GB/s at 40 GB, 2039 at 80 GB
    _gpu("A100-40GB", 40, 19.5, 156, 312, 1555),
    _gpu("A100-80GB", 80, 19.5, 156, 312, 2039),
    # NVIDIA H100 datasheet (SXM5, without sparsity): 67 fp32, 495 tf32, 989 bf16/fp16, 3.35 TB/s
    _gpu("H100", 80, 67, 495, 989, 3350),
    # NVIDIA H200 datasheet (SXM): as H100 with 141 GB and 4.8 TB/s
    _gpu("H200", 141, 67, 495, 989, 4800),
    # NVIDIA HGX B200 datasheet (per GPU, without sparsity): 75 fp32, 1125 tf32, 2250 bf16/fp16, 7.7 TB/s
    _gpu("B200", 180, 75, 1125, 2250, 7700),
    # NVIDIA A40 datasheet: 37.4 fp32, 74.8 tf32, 149.7 bf16/fp16, 696 GB/s
    _gpu("A40", 48, 37.4, 74.8, 149.7, 696),
    # NVIDIA A10 datasheet: 31.2 fp32, 62.5 tf32, 125 bf16/fp16, 600 GB/s
    _gpu("A10", 24, 31.2, 62.5, 125, 600),
    # NVIDIA L4 datasheet (halved from the sparse figures): 30.3 fp32, 60 tf32, 121 bf16/fp16, 300 GB/s
    _gpu("L4", 24, 30.3, 60, 121, 300),
    # NVIDIA GA102 whitepaper, RTX 3090: 35.6 fp32, 35.6 tf32, 71 bf16/fp16 with fp32 accumulation, 936 GB/s
    _gpu("RTX-3090", 24, 35.6, 35.6, 71, 936),
    # One x86 core with 256-bit FMA at about 3 GHz: 2 units x 8 lanes x 2 flops (assumption; see probe)
    Device(
        "CPU",
        8 * 10**9,
        (("float32", 9e10), ("float64", 4.5e10), ("bfloat16", 3e10), ("float16", 1e10)),
        1e10,
        launch_seconds=6e-6,
        view_seconds=1.5e-6,
        products=((ANY_DTYPE, CPU_PRODUCTS),),
    ),
)

PRESETS: Mapping[str, Device] = {device.name: device for device in _DEVICES}
"""Devices by name."""

NVLINK_LATENCY = 5e-6
"""Seconds per hop of a ring inside a machine (all-reduce of 1 MiB on 8 A100 takes 93 us in 14 hops)."""

PCIE_3 = Link(12e9, 10e-6, "machine")  # PCIe 3.0 x16: 15.75 GB/s raw, about 12 reached; shared (assumption)
PCIE_4 = Link(24e9, 10e-6, "machine")  # PCIe 4.0 x16: 31.5 GB/s raw, about 24 reached; shared (assumption)

LINKS: Mapping[str, Link] = {
    "V100-16GB": Link(150 * _G, NVLINK_LATENCY),  # NVLink 2: 6 links x 25 GB/s each direction
    "V100-32GB": Link(150 * _G, NVLINK_LATENCY),
    "P100-16GB": PCIE_3,
    "A100-40GB": Link(300 * _G, NVLINK_LATENCY),  # NVLink 3: 600 GB/s both directions together
    "A100-80GB": Link(300 * _G, NVLINK_LATENCY),
    "H100": Link(450 * _G, NVLINK_LATENCY),  # NVLink 4: 900 GB/s both directions together
    "H200": Link(450 * _G, NVLINK_LATENCY),
    "B200": Link(900 * _G, NVLINK_LATENCY),  # NVLink 5: 1.8 TB/s both directions together
    "A40": PCIE_4,
    "A10": PCIE_4,
    "L4": PCIE_4,
    "RTX-3090": PCIE_4,
    "CPU": Link(2e9, 50e-6),
}
"""The link inside a machine where a cluster file does not say one."""
