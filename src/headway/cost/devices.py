"""Catalogue of devices: peak rates of dense products by number type, memory, what joins them, what an hour costs.

Prices are assumptions for comparing layouts, not offers. User files add devices (`device_of`).
"""

from collections.abc import Mapping
from typing import Annotated, Final

import msgspec

from headway.core.errors import ConfigError
from headway.cost.lookup import entry_named, entry_of

Positive = Annotated[float, msgspec.Meta(gt=0)]

BYTES_OF: Final[Mapping[str, float]] = {
    "float32": 4.0,
    "bfloat16": 2.0,
    "float16": 2.0,
    "fp8": 1.0,
    "int8": 1.0,
    "int4": 0.5 + 2.5 / 128,  # a 16-bit scale and a 4-bit zero per 128 numbers (AWQ, GPTQ)
    "mxfp4": 0.5 + 1 / 32,  # an 8-bit scale per 32 numbers (OCP microscaling)
    "nvfp4": 0.5 + 1 / 16,  # an 8-bit scale per 16 numbers
}

_PRODUCTS: Final[Mapping[str, tuple[str, ...]]] = {  # what to multiply in: the first that a device has
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "float32"),
    "float16": ("float16", "bfloat16", "float32"),
    "fp8": ("fp8", "bfloat16", "float32"),
    "int8": ("int8", "bfloat16", "float32"),
    "int4": ("bfloat16", "float32"),  # unpacked
    "mxfp4": ("fp4", "bfloat16", "float32"),
    "nvfp4": ("fp4", "bfloat16", "float32"),
}


class Device(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accelerator (or the CPU). `flops` are dense, without sparsity, with accumulation in 32 bits."""

    name: str
    flops: dict[str, Positive]  # peak FLOP/s by number type
    bytes_per_s: Positive  # of the memory
    memory_bytes: Positive  # what the driver reports
    link: str  # between the devices of a host
    network: str = "ib-ndr"  # between hosts
    devices_per_host: Annotated[int, msgspec.Meta(ge=1)] = 8
    price_per_hour: Annotated[float, msgspec.Meta(ge=0)] = 0.0  # USD, assumed
    source: str
    date: str

    def product_type(self, dtype: str) -> str:
        """The type that products of such weights run in: narrower weights are unpacked. Raises ConfigError."""
        for product in _PRODUCTS[check_dtype(dtype)]:
            if product in self.flops:
                return product
        raise ConfigError(
            f"device {self.name} multiplies {', '.join(self.flops)}, none of which serves dtype {dtype!r};"
            f" add one of {', '.join(_PRODUCTS[dtype])} to its flops"
        )

    def flops_of(self, dtype: str) -> float:
        """Peak FLOP/s for weights of this type. Raises ConfigError."""
        return self.flops[self.product_type(dtype)]


def check_dtype(dtype: str) -> str:
    """Return the number type if its size is known. Raises ConfigError."""
    if dtype not in BYTES_OF:
        raise ConfigError(f"dtype {dtype!r} is unknown; known are {', '.join(BYTES_OF)}")
    return dtype


def device_of(mapping: Mapping[str, object]) -> Device:
    """Read a device of a user file. Raises ConfigError."""
    device = entry_of("device", mapping, Device)
    unknown = [name for name in device.flops if name not in _FLOP_TYPES]
    if unknown or not device.flops:
        raise ConfigError(
            f"device {device.name!r}: flops names {', '.join(unknown) or 'nothing'}; known are {', '.join(_FLOP_TYPES)}"
        )
    return device


def find_device(name: str, extra: Mapping[str, Device] | None = None) -> Device:
    """Return a device by name; `extra` are those of a user file. Raises ConfigError."""
    return entry_named("device", name, DEVICES, extra or {})


_FLOP_TYPES: Final = ("float32", "bfloat16", "float16", "fp8", "int8", "fp4")
_MIB: Final = float(1 << 20)


def _tensor(
    bf16: float, *, fp8: float = 0.0, int8: float = 0.0, fp4: float = 0.0, fp32: float = 0.0
) -> dict[str, float]:
    """Peaks in TFLOP/s; zero: the device has no such product."""
    table = {"float32": fp32, "bfloat16": bf16, "float16": bf16, "fp8": fp8, "int8": int8, "fp4": fp4}
    return {name: peak * 1e12 for name, peak in table.items() if peak}


_CATALOGUE: Final = (
    Device(
        name="H100-SXM",
        flops=_tensor(989, fp8=1979, int8=1979, fp32=67),
        bytes_per_s=3.35e12,
        memory_bytes=81_559 * _MIB,
        link="nvlink4",
        price_per_hour=2.5,
        source="NVIDIA H100 data sheet, dense; memory: nvidia-smi; price: what seed 003's table of devices implies",
        date="2023-03",
    ),
    Device(
        name="H100-PCIe",
        flops=_tensor(756, fp8=1513, int8=1513, fp32=51),
        bytes_per_s=2.0e12,
        memory_bytes=81_559 * _MIB,
        link="pcie5",
        network="eth-100",
        price_per_hour=2.0,
        source="NVIDIA H100 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2023-03",
    ),
    Device(
        name="H200",
        flops=_tensor(989, fp8=1979, int8=1979, fp32=67),
        bytes_per_s=4.8e12,
        memory_bytes=143_771 * _MIB,
        link="nvlink4",
        price_per_hour=3.2,
        source="NVIDIA H200 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2023-11",
    ),
    Device(
        name="B200",
        flops=_tensor(2250, fp8=4500, int8=4500, fp4=9000, fp32=80),
        bytes_per_s=8.0e12,
        memory_bytes=183_359 * _MIB,
        link="nvlink5",
        price_per_hour=5.0,
        source="NVIDIA HGX B200 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2024-11",
    ),
    Device(
        name="B300",
        flops=_tensor(2250, fp8=4500, fp4=13500, fp32=76),
        bytes_per_s=8.0e12,
        memory_bytes=275_040 * _MIB,
        link="nvlink5",
        price_per_hour=6.0,
        source="NVIDIA HGX B300 data sheet, dense; memory: 288 GB less what the driver keeps, assumed; price assumed",
        date="2025-08",
    ),
    Device(
        name="GB200",
        flops=_tensor(2500, fp8=5000, int8=5000, fp4=10000, fp32=80),
        bytes_per_s=8.0e12,
        memory_bytes=189_471 * _MIB,
        link="nvlink5-72",
        devices_per_host=72,
        price_per_hour=5.5,
        source="NVIDIA GB200 NVL72 data sheet, dense, per device; memory: nvidia-smi; price assumed",
        date="2024-11",
    ),
    Device(
        name="A100-80G",
        flops=_tensor(312, int8=624, fp32=19.5),
        bytes_per_s=2.039e12,
        memory_bytes=81_920 * _MIB,
        link="nvlink3",
        network="ib-hdr",
        price_per_hour=1.5,
        source="NVIDIA A100 data sheet (SXM), dense; memory: nvidia-smi; price assumed",
        date="2020-11",
    ),
    Device(
        name="A100-40G",
        flops=_tensor(312, int8=624, fp32=19.5),
        bytes_per_s=1.555e12,
        memory_bytes=40_960 * _MIB,
        link="nvlink3",
        network="ib-hdr",
        price_per_hour=1.2,
        source="NVIDIA A100 data sheet (SXM), dense; memory: nvidia-smi; price assumed",
        date="2020-05",
    ),
    Device(
        name="A10",
        flops=_tensor(125, int8=250, fp32=31.2),
        bytes_per_s=600e9,
        memory_bytes=23_028 * _MIB,
        link="pcie4",
        network="eth-25",
        devices_per_host=4,
        price_per_hour=0.6,
        source="NVIDIA A10 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2021-04",
    ),
    Device(
        name="L20",
        flops=_tensor(119.5, fp8=239, int8=239, fp32=59.8),
        bytes_per_s=864e9,
        memory_bytes=46_068 * _MIB,
        link="pcie4",
        network="eth-100",
        price_per_hour=0.6,
        source="NVIDIA L20 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2023-11",
    ),
    Device(
        name="L40S",
        flops=_tensor(362, fp8=733, int8=733, fp32=91.6),
        bytes_per_s=864e9,
        memory_bytes=46_068 * _MIB,
        link="pcie4",
        network="eth-100",
        price_per_hour=0.9,
        source="NVIDIA L40S data sheet, dense; memory: nvidia-smi; price assumed",
        date="2023-08",
    ),
    Device(
        name="L4",
        flops=_tensor(121, fp8=242, int8=242, fp32=30.3),
        bytes_per_s=300e9,
        memory_bytes=23_034 * _MIB,
        link="pcie4",
        network="eth-25",
        price_per_hour=0.4,
        source="NVIDIA L4 data sheet, dense; memory: nvidia-smi; price assumed",
        date="2023-03",
    ),
    Device(
        name="RTX-4090",
        flops=_tensor(165.2, fp8=330.3, int8=660.6, fp32=82.6),
        bytes_per_s=1.008e12,
        memory_bytes=24_564 * _MIB,
        link="pcie4",
        network="eth-25",
        price_per_hour=0.4,
        source="NVIDIA Ada architecture paper, dense with 32-bit accumulation; memory: nvidia-smi; price assumed",
        date="2022-10",
    ),
    Device(
        name="RTX-PRO-6000",
        flops=_tensor(503.8, fp8=1007.6, int8=1007.6, fp4=2015.2, fp32=126),
        bytes_per_s=1.792e12,
        memory_bytes=97_887 * _MIB,
        link="pcie5",
        network="eth-100",
        price_per_hour=1.2,
        source="NVIDIA RTX PRO 6000 Blackwell data sheet, half of its sparse peaks; memory: nvidia-smi; price assumed",
        date="2025-03",
    ),
    Device(
        name="MI300X",
        flops=_tensor(1307.4, fp8=2614.9, int8=2614.9, fp32=163.4),
        bytes_per_s=5.3e12,
        memory_bytes=196_592 * _MIB,
        link="xgmi-mi300",
        price_per_hour=2.2,
        source="AMD MI300X data sheet, dense; memory: rocm-smi; price assumed",
        date="2023-12",
    ),
    Device(
        name="cpu-2core",
        flops={"float32": 9.6e10},
        bytes_per_s=1.2e10,
        memory_bytes=8e9,
        link="host-memory",
        network="eth-10",
        devices_per_host=1,
        price_per_hour=0.08,
        source="two threads of an AVX2 core at 3 GHz, 32 FLOP a cycle; memory and price assumed; calibrate before use",
        date="2026-11",
    ),
)

DEVICES: Final[Mapping[str, Device]] = {device.name: device for device in _CATALOGUE}
