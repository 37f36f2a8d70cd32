import pickle
import subprocess
import sys

import pytest

from aot.targets import TARGETS, Target, parse_arch


@pytest.mark.parametrize(
    ("arch", "backend", "warp_size", "lds_kib", "triton_arch"),
    [
        ("gfx90a", "hip", 64, 64, "gfx90a"),
        ("gfx942", "hip", 64, 64, "gfx942"),
        ("gfx950", "hip", 64, 160, "gfx950"),
        ("gfx1100", "hip", 32, 64, "gfx1100"),
        ("gfx1250", "hip", 32, 320, "gfx1250"),
        ("sm_80", "cuda", 32, 163, 80),
        ("sm_89", "cuda", 32, 99, 89),
        ("sm_90", "cuda", 32, 227, 90),
        ("sm_120", "cuda", 32, 99, 120),
    ],
)
def test_properties(arch, backend, warp_size, lds_kib, triton_arch):
    target = parse_arch(f" {arch}\n")
    assert (target.backend, target.warp_size, target.lds_bytes) == (backend, warp_size, lds_kib * 1024)
    triton_target = target.gpu_target()
    assert (triton_target.backend, triton_target.arch, triton_target.warp_size) == (backend, triton_arch, warp_size)
    assert pickle.loads(pickle.dumps(target)) == target


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("gfx942:sramecc+:xnack-", "feature flags are not part of the name; use 'gfx942'"),
        ("gfx11-generic", "generic targets"),
        ("gfx9-4-generic", "generic targets"),
        ("sm_90a", "use 'sm_90'"),
        ("sm_100f", "use 'sm_100'"),
        ("gfx943", "the nearest is 'gfx94"),
        ("GFX942", "the nearest is 'gfx942'"),
        ("sm90", "the nearest is 'sm_90'"),
        ("gfx1030", "allowed: gfx908, gfx90a"),
        ("", "allowed: "),
        ("gfx942,gfx950", "one name at a time"),
    ],
)
def test_refusals_say_why(text, part):
    with pytest.raises(ValueError, match="architecture") as caught:
        parse_arch(text)
    assert part in str(caught.value)


def test_a_target_cannot_be_of_an_unknown_architecture():
    with pytest.raises(ValueError, match="gfx000"):
        Target("gfx000")


def test_names_are_unique_and_every_tier_is_used():
    assert len({target.arch for target in TARGETS}) == len(TARGETS)
    assert {target.tier for target in TARGETS} == {"primary", "supported", "experimental"}


def test_listing_targets_does_not_import_triton():
    check = "import aot.targets, aot.compile.compiler, sys; aot.targets.TARGETS; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0
