"""AMD's code object manager (comgr) as a second reader of code objects.

Its metadata for each code object of a bundle is compared with the index, as `aotbundle verify` does with the runtime's
own reader.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aot_bundle.verification import label, variant_faults
from aot_emulator.isa.archs import Arch, Generation
from aot_emulator.isa.decoding import decode
from aot_runtime.bundle.codeobject import CodeObject, read_loaded_image
from aot_runtime.bundle.files import source_of
from aot_runtime.bundle.kernel_metadata import KernelArg, KernelMetadata
from aot_runtime.bundle.reading import read_index

READING = Path(__file__).with_name("comgr_reading.py")
UNDECODED = frozenset({"v_cvt_f16_f32", "v_mov_b16"})
"""Instructions of gfx1151 and gfx12 that LLVM 21 does not always disassemble: it knows high halves of registers as
operands on gfx11.0 alone. tinygrad's tables, which are made of AMD's own, have them."""


@dataclass(frozen=True)
class Verdict:
    """The findings of comgr in a bundle.

    Attributes:
        faults: differences from the index, and what comgr refuses.
        instructions, unused: how many it disassembled; how many of them once an unused source had the number 0.
    """

    version: str
    code_objects: int
    instructions: int
    unused: int
    faults: tuple[str, ...]


def judge(bundle: Path, python: Sequence[str]) -> Verdict:
    """Have comgr read a bundle's code objects. python: a command that runs Python where it finds libamd_comgr.so.3.

    Raises `subprocess.CalledProcessError` where that program fails.
    """
    source = source_of(bundle)
    index = read_index(source)
    files = {str(bundle / blob.file): key for key, blob in index.blobs.items()}
    output = subprocess.run([*python, str(READING)], input="\n".join(files), capture_output=True, text=True, check=True)
    head, *found = map(json.loads, output.stdout.splitlines())
    faults: list[str] = []
    for said in found:
        users = [variant for variant in index.variants if variant.code == files[said["file"]]]
        name = Path(said["file"]).name
        faults += (f"{name}: {fault}" for fault in _faults(said, index.target.arch))
        if "error" not in said:
            code = CodeObject(index.target.arch, "hsaco", tuple(map(_kernel_of, _with_code(said))))
            faults += (
                f"{name}: {label(variant)}: {fault}" for variant in users for fault in variant_faults(variant, code)
            )
    faults += (f"{Path(file).name}: no answer" for file in files.keys() - {said["file"] for said in found})
    functions = [function for said in found for function in said.get("functions", {}).values()]
    instructions, unused = (sum(function[name] for function in functions) for name in ("instructions", "unused"))
    return Verdict(head["version"], len(found), instructions, unused, tuple(faults))


def _faults(said: Mapping[str, Any], arch: str) -> Iterator[str]:
    """Yield what comgr refuses of a code object, or takes for another architecture's code."""
    if "error" in said:
        yield said["error"]
        return
    if said["isa"] != f"amdgcn-amd-amdhsa--{arch}":
        yield f"comgr takes it for {said['isa']}"
    for name, function in said["functions"].items():
        if function["unused"] and arch.startswith("gfx9"):
            yield f"{name}: {function['unused']} instructions name a source that they do not have"
        for mnemonic in _mnemonics(said["file"], name, function["refused"], arch):
            if mnemonic not in UNDECODED:
                yield f"{name}: comgr does not disassemble {mnemonic}"


def _mnemonics(file: str, function: str, places: Sequence[int], arch: str) -> set[str]:
    """Return the names of the instructions at places of a function, as the emulator's decoder has them."""
    if not places:
        return set()
    image = read_loaded_image(Path(file).read_bytes())
    address, size = image.symbols[function]
    segment = next(part for part in image.segments if part.address <= address < part.address + len(part.data))
    generation: Generation = "cdna3" if arch.startswith("gfx9") else "rdna4" if arch.startswith("gfx12") else "rdna3"
    code = decode(segment.data[address - segment.address :][:size], Arch(arch, generation))
    return {code[place].mnemonic if place in code else f"what is at {place:#x}" for place in places}


def _with_code(said: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], int]]:
    """Return (metadata, bytes of code) of each kernel."""
    for kernel in said["kernels"]:
        yield kernel, said["functions"].get(kernel[".name"], {"bytes": 0})["bytes"]


def _kernel_of(described: tuple[Mapping[str, Any], int]) -> KernelMetadata:
    """Return a kernel's metadata from comgr in the form of the runtime's reader. comgr gives numbers as text."""
    kernel, code_bytes = described

    def number(name: str) -> int:
        return int(kernel.get(name, 0))

    kinds = {"global_buffer": "pointer", "by_value": "value"}
    return KernelMetadata(
        symbol=kernel[".symbol"].removesuffix(".kd"),
        args=tuple(
            KernelArg(int(arg[".offset"]), int(arg[".size"]), kinds.get(arg[".value_kind"], arg[".value_kind"]))
            for arg in kernel.get(".args", [])
        ),
        kernarg_bytes=number(".kernarg_segment_size"),
        max_workgroup_size=number(".max_flat_workgroup_size"),
        warp_size=number(".wavefront_size"),
        vgprs=number(".vgpr_count"),
        agprs=number(".agpr_count"),
        sgprs=number(".sgpr_count"),
        allocated_vgprs=0,  # which is in the descriptor alone
        vgpr_spills=number(".vgpr_spill_count"),
        sgpr_spills=number(".sgpr_spill_count"),
        scratch_bytes=number(".private_segment_fixed_size"),
        static_lds_bytes=number(".group_segment_fixed_size"),
        code_bytes=code_bytes,
    )
