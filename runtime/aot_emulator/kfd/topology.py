"""Folder that describes the emulated machine: the GPU topology of sysfs, and the device list for the library.

Names and meanings follow Linux's drivers/gpu/drm/amd/amdkfd/kfd_topology.c, and the bits of `capability`
include/uapi/linux/kfd_sysfs.h.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .models import Model
from .protocol import packed_device

_FIRST_GPU_ID = 0xA001
_DOORBELLS_OF_64_BITS, _TRAP_DEBUG, _SRAM_ECC, _DEBUG_FIRMWARE = 2 << 12, 1 << 15, 1 << 26, 1 << 29
_FIRST_SIMD = 0x80001000
_PCIE, _XGMI = 2, 11
_GPU_CACHE = 9  # HSA_CACHE_TYPE_DATA | HSA_CACHE_TYPE_HSACU


def gpu_id(index: int) -> int:
    """Return the driver's id of a device."""
    return _FIRST_GPU_ID + index


def write_machine(folder: Path, models: Sequence[Model]) -> None:
    """Write the description of a machine with these GPUs to a folder."""
    root = folder / "sys" / "kfd" / "kfd" / "topology"
    _write(folder / "sys" / "amdgpu" / "initstate", "live")
    _write(root / "generation_id", "1")
    _write_properties(root / "system_properties", {"platform_oem": 0, "platform_id": 0, "platform_rev": 0})
    _write_cpu(root / "nodes" / "0", len(models))
    for index in range(len(models)):
        _write_gpu(root / "nodes" / str(index + 1), index, models)
    (folder / "devices").write_bytes(b"".join(_listed(index, model) for index, model in enumerate(models)))


def _listed(index: int, model: Model) -> bytes:
    clock, title = round(model.arch.peaks.clock / 1e3), f"{model.title} (emulated)"
    memory_khz = model.memory_mhz * 1000
    return packed_device(gpu_id(index), model.pci_id, model.family, model.memory_bytes, clock, memory_khz, title)


def _write_cpu(node: Path, gpus: int) -> None:
    _write(node / "gpu_id", "0")
    _write(node / "name", "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    _write_properties(
        node / "properties",
        {"cpu_cores_count": os.cpu_count() or 1, "simd_count": 0, "mem_banks_count": 1, "caches_count": 0,
         "io_links_count": gpus, "p2p_links_count": 0, "max_engine_clk_ccompute": 3000},
    )  # fmt: skip
    _write_bank(node, 0, memory, 64, 3200)
    for index in range(gpus):
        _write_link(node / "io_links" / str(index), _PCIE, 0, index + 1)


def _write_gpu(node: Path, index: int, models: Sequence[Model]) -> None:
    model = models[index]
    arch, clock = model.arch, round(model.arch.peaks.clock / 1e6)
    arrays = model.shader_arrays * model.num_xcds
    caches = [(level, kib) for level, kib in ((1, 32), (2, model.l2_kib), (3, model.l3_kib)) if kib]
    peers = [other for other in range(len(models)) if other != index]
    near = [other for other in peers if model.is_cdna and models[other].arch == arch]
    far = [other for other in peers if other not in near]
    capability = _DOORBELLS_OF_64_BITS | _TRAP_DEBUG | _DEBUG_FIRMWARE | (_SRAM_ECC if model.is_cdna else 0)
    _write(node / "gpu_id", str(gpu_id(index)))
    _write(node / "name", arch.name)
    _write_properties(
        node / "properties",
        {"cpu_cores_count": 0, "simd_count": model.num_cus * arch.peaks.simds, "mem_banks_count": 1,
         "caches_count": len(caches), "io_links_count": 1 + len(near), "p2p_links_count": len(far),
         "cpu_core_id_base": 0, "simd_id_base": _FIRST_SIMD + 0x1000 * index,
         "max_waves_per_simd": arch.row.unit.waves, "lds_size_in_kb": arch.lds_bytes >> 10, "gds_size_in_kb": 0,
         "num_gws": 64, "wave_front_size": arch.lanes, "array_count": arrays, "simd_arrays_per_engine": 1,
         "cu_per_simd_array": -(-model.num_cus // arrays), "simd_per_cu": arch.peaks.simds,
         "max_slots_scratch_cu": 32, "gfx_target_version": _target_version(arch.name), "vendor_id": 0x1002,
         "device_id": model.pci_id, "location_id": (index + 1) << 8, "domain": 0, "drm_render_minor": 128 + index,
         "hive_id": 1 if near else 0, "num_sdma_engines": 2, "num_sdma_xgmi_engines": 0,
         "num_sdma_queues_per_engine": 8, "num_cp_queues": 24, "max_engine_clk_fcompute": clock,
         "local_mem_size": model.memory_bytes, "fw_version": 177, "capability": capability, "debug_prop": 0,
         "sdma_fw_version": 24, "unique_id": 0xA07B0000 + index, "num_xcc": model.num_xcds,
         "max_engine_clk_ccompute": 3000},
    )  # fmt: skip
    _write_bank(node, 1, model.memory_bytes, model.memory_bits, model.memory_mhz)
    for number, (level, kib) in enumerate(caches):
        _write_properties(
            node / "caches" / str(number) / "properties",
            {"processor_id_low": _FIRST_SIMD + 0x1000 * index, "level": level, "size": kib,
             "cache_line_size": arch.peaks.line_bytes, "cache_lines_per_tag": 1, "association": 16, "latency": 0,
             "type": _GPU_CACHE},
        )  # fmt: skip
    _write_link(node / "io_links" / "0", _PCIE, index + 1, 0)
    for number, other in enumerate(near, 1):
        _write_link(node / "io_links" / str(number), _XGMI, index + 1, other + 1)
    for number, other in enumerate(far):
        _write_link(node / "p2p_links" / str(number), _PCIE, index + 1, other + 1)


def _target_version(arch: str) -> int:
    """Return gfx_target_version, e.g. 90402 for gfx942. The last two characters of the name are hex digits."""
    digits = arch.removeprefix("gfx")
    return int(digits[:-2]) * 10000 + int(digits[-2]) * 100 + int(digits[-1], 16)


def _write_bank(node: Path, heap: int, nbytes: int, width: int, mhz: int) -> None:
    _write_properties(
        node / "mem_banks" / "0" / "properties",
        {"heap_type": heap, "size_in_bytes": nbytes, "flags": 0, "width": width, "mem_clk_max": mhz},
    )


def _write_link(link: Path, kind: int, start: int, end: int) -> None:
    weight = {_PCIE: 20, _XGMI: 15}[kind]
    _write_properties(
        link / "properties",
        {"type": kind, "version_major": 0, "version_minor": 0, "node_from": start, "node_to": end, "weight": weight,
         "min_latency": 0, "max_latency": 0, "min_bandwidth": 312, "max_bandwidth": 64000,
         "recommended_transfer_size": 0, "recommended_sdma_engine_id_mask": 0, "flags": 1},
    )  # fmt: skip


def _write_properties(path: Path, properties: Mapping[str, int]) -> None:
    _write(path, "\n".join(f"{name} {value}" for name, value in properties.items()))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
