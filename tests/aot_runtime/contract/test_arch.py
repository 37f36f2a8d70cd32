"""The table of architectures: its rows are consistent, and differences between architectures are nowhere else."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from aot_emulator import ARCHS
from aot_runtime.bundle.elf_header import read_arch
from aot_runtime.contract.arch import ARCHITECTURES, EXPRESSION_NAMES, Architecture
from aot_runtime.contract.gpu_names import GPU_NAMES, arch_of
from aot_runtime.contract.peaks import PEAKS
from aot_runtime.device.drivers import driver_for_arch
from tests.support.session_builds import ROOT
from tests.support.sources import PACKAGES, sources

NAME = re.compile(r"(gfx\d|sm_\d)[\w\\]*")
"""An architecture's name, or the beginning of several."""
IN_CODE = {
    "runtime/aot_runtime/contract/arch.py": "the table",
    "runtime/aot_runtime/contract/peaks.py": "the table of peak rates",
    "runtime/aot_emulator/isa/archs.py": "the table of the emulator",
    "runtime/aot_emulator/kfd/models.py": "which GPUs are emulated below AMD's runtime",
    "runtime/aot_emulator/timing/": "what instructions and memory of each cost: the table of the model of time",
    "aot/command/check.py": "the default of --arch",
    "aot/source/kernel_source.py": "the target that files see which are run to be looked at, for no build",
    "aot/draft/texts.py": "the same, of a manifest that is drafted",
    "aot/draft/validation.py": "the same: drafts are planned for it",
    "benchmarks/rocm/": "the architectures that AMD's own libraries have kernels for",
    "benchmarks/timing/traces.py": "the one whose published times are compared",
    "benchmarks/measured_products.py": "the one whose published times are compared",
    "benchmarks/peers/building.py": "the architecture whose peers these are",
}
"""Files and folders whose code names architectures, and why."""


def test_rows_agree_with_themselves():
    machines = [row.elf_machine for row in ARCHITECTURES.values() if row.elf_machine is not None]
    assert len(set(machines)) == len(machines) == sum(name.startswith("gfx") for name in ARCHITECTURES)
    for name, row in ARCHITECTURES.items():
        assert name == row.name and NAME.fullmatch(name)
        unit = row.unit
        assert row.lds_bytes + unit.lds_reserved <= unit.lds and unit.lds % unit.lds_granule == 0, "a workgroup fits"
        assert unit.vgprs % unit.vgpr_granule == 0
        assert driver_for_arch(name) == row.backend
        assert [*row.constants] == [*EXPRESSION_NAMES] and row.constants["arch"] == name
        assert all(type(row.constants[constant]) is kind for constant, kind in EXPRESSION_NAMES.items())
        if row.elf_machine is not None:
            header = bytearray(64)
            header[:6], header[18:20] = b"\x7fELF\x02\x01", (224).to_bytes(2, "little")
            header[48] = row.elf_machine
            assert read_arch(bytes(header)) == name


@pytest.mark.parametrize("row", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_features_follow_the_generation(row: Architecture):
    """Features go by number as in the vendors' documents, so that a new row is held to the rules of its generation."""
    kind, number = re.fullmatch(r"(gfx|sm_)(\w+)", row.name).groups()
    if kind == "sm_":
        capability = int(number)
        assert row.has_bf16_cvt == row.has_tf32 == (capability >= 80) and row.has_wgmma == (capability == 90)
        assert (row.fp8, row.warp_size, row.num_xcds) == ("ocp" if capability >= 89 else "", 32, 1)
        return
    version = int(number, 16)
    is_cdna, is_cdna3 = version < 0x1000, 0x940 <= version < 0x950
    assert (row.warp_size == 64) == is_cdna and (row.num_xcds > 1) == (0x940 <= version < 0x1000)
    assert row.has_tf32 == is_cdna3 and row.has_bf16_cvt == (version == 0x950 or version >= 0x1250)
    has_ocp = 0x950 <= version < 0x1000 or version >= 0x1200
    assert row.fp8 == ("fnuz" if is_cdna3 else "ocp" if has_ocp else "") and not row.has_wgmma


def test_a_gpu_has_one_architecture():
    gpus = [gpu for row in ARCHITECTURES.values() for gpu in row.gpus.split()]
    assert len(gpus) == len(set(gpus) - ARCHITECTURES.keys())
    assert all(re.fullmatch(r"[a-z0-9]+", gpu) and arch_of(gpu.upper()) == GPU_NAMES[gpu] for gpu in gpus)
    assert not [row.name for row in ARCHITECTURES.values() if row.product and row.num_cus]


def test_emulated_architectures_are_the_rows_that_have_a_product():
    assert ARCHS.keys() == PEAKS.keys() == {name for name, row in ARCHITECTURES.items() if row.product}
    for name, arch in ARCHS.items():
        row = ARCHITECTURES[name]
        assert (arch.lanes, arch.lds_bytes, arch.ocp_fp8) == (row.warp_size, row.lds_bytes, row.fp8 == "ocp")


def named_in_code(path: Path) -> set[str]:
    """Return texts in a file's code that are an architecture's name, docstrings and messages aside."""
    source = path.read_text(encoding="utf-8")
    if not NAME.search(source):
        return set()
    tree = ast.parse(source)
    texts = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return {text for text in texts if NAME.fullmatch(text)}


def test_code_names_no_architecture_but_in_the_table():
    files = sorted(sources(ROOT, (*PACKAGES, "examples", "benchmarks")))
    found = [path.relative_to(ROOT).as_posix() for path in files if named_in_code(path)]
    assert [name for name in found if not name.startswith((*IN_CODE,))] == []
    assert all(any(name.startswith(place) for name in found) for place in IN_CODE)


def test_manifests_ask_for_what_the_hardware_has():
    """And they compare no architecture's name."""
    for path in sorted((ROOT / "manifests").glob("*.yaml")):
        lines = [line.partition("#")[0] for line in path.read_text(encoding="utf-8").splitlines()]
        assert not [line for line in lines if re.search(r"\barch\s*[!=]=", line)], path.name
