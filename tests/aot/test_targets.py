import pickle
import subprocess
import sys

import pytest

from aot.targets import TARGETS, Target, parse_arch
from aot_runtime.contract.arch import ARCHITECTURES
from aot_runtime.contract.gpu_names import GPU_NAMES


@pytest.mark.parametrize(("arch", "triton_arch", "lds_kib"), [("gfx950", "gfx950", 160), ("sm_90", 90, 227)])
def test_properties(arch: str, triton_arch: str | int, lds_kib: int):
    target = parse_arch(f" {arch}\n")
    assert target.lds_bytes == lds_kib * 1024 and pickle.loads(pickle.dumps(target)) == target
    tritons = target.gpu_target()
    assert (tritons.backend, tritons.arch, tritons.warp_size) == (target.backend, triton_arch, target.warp_size)


REFUSALS = {
    "gfx942:sramecc+:xnack-": "feature flags are not part of the name; use 'gfx942'",
    "gfx9-4-generic": "generic targets",
    "sm_90a": "use 'sm_90'",
    "sm_100f": "use 'sm_100'",
    "GFX942": "did you mean 'gfx942'?",
    "gfx90": "or 'gfx90a'?",
    "sm90": "did you mean 'sm_90'?",
    "MI-300": "did you mean 'mi300x'?",
    "": f"allowed: {', '.join(ARCHITECTURES)}",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_say_why(text: str):
    for make in (parse_arch, Target):
        with pytest.raises(ValueError, match="architecture") as caught:
            make(text)
        assert REFUSALS[text] in str(caught.value)


@pytest.mark.parametrize("name", ["mi300x", " MI300A", "AMD Instinct MI325X", "Radeon RX 7900 XTX", "h100", "RTX-4090"])
def test_a_gpu_by_its_name(name: str):
    wanted = {"mi": "gfx942", "am": "gfx942", "ra": "gfx1100", "h1": "sm_90", "rt": "sm_89"}
    assert parse_arch(name).arch == wanted[name.strip().lower()[:2]]
    assert set(GPU_NAMES.values()) <= set(ARCHITECTURES) and not set(GPU_NAMES) & set(ARCHITECTURES)


def test_listing_targets_does_not_import_triton():
    assert {target.tier for target in TARGETS} == {"primary", "supported", "experimental"}
    check = "import aot.targets, aot.compile.compiler, sys; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
