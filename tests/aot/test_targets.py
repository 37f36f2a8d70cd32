import pickle
import subprocess
import sys

import pytest

from aot.targets import TARGETS, Target, parse_arch


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
    "GFX942": "the nearest is 'gfx942'",
    "sm90": "the nearest is 'sm_90'",
    "": "allowed: gfx908, gfx90a",
    "gfx942,gfx950": "one name at a time",
}


@pytest.mark.parametrize("text", REFUSALS)
def test_refusals_say_why(text: str):
    for make in (parse_arch, Target):
        with pytest.raises(ValueError, match="architecture") as caught:
            make(text)
        assert REFUSALS[text] in str(caught.value)


def test_listing_targets_does_not_import_triton():
    assert {target.tier for target in TARGETS} == {"primary", "supported", "experimental"}
    check = "import aot.targets, aot.compile.compiler, sys; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
