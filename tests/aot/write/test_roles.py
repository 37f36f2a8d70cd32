"""Kernels that use a tensor against its role are found in Triton's IR, whatever path the pointer takes."""

from pathlib import Path

import pytest

from aot.manifest.loading import load_manifest
from aot.manifest.yamlfile import ManifestError
from aot.plan.bundles import plan_bundle
from aot.targets import parse_arch
from aot.write.roles import check_roles
from tests.support.building.builds import Project
from tests.support.building.front_end import kernels
from tests.support.building.projects import write_project

MANIFEST = """\
bundle: tiny
ops:
  work:
    tensors:
      x: {{shape: [n], dtype: float32, role: {x}}}
      y: {{shape: [n], dtype: float32}}
      out: {{shape: [n], dtype: float32, role: {out}}}
    scalars: {{flag: {{type: i32}}}}
    specialisations: [general]
    launches:
      - kernel: k.py:work
        grid: ["cdiv(n, 16)"]
        configs: [{{options: {{num_warps: 1}}}}]
{more}"""
SECOND = """\
      - kernel: k.py:second
        grid: [1]
        configs: [{options: {num_warps: 1}}]
"""

HEAD = """\
import triton
import triton.language as tl


@triton.jit
def put(where, what):
    tl.store(where, what)


@triton.jit(noinline=True)
def put_elsewhere(where, what):
    tl.store(where, what)


@triton.jit
def second(y, out, n, flag):
    {second}


@triton.jit
def work(x, y, out, n, flag):
    i = tl.program_id(0) * 16 + tl.arange(0, 16)
    mask = i < n
    one = tl.program_id(0)
"""

WRITES_X = "'work' in k.py writes to 'x', which is an input; is it `role: inout`?"
UNWRITTEN = "'out' is an output, but kernel 'work' in k.py never writes to it"
UNSET = (
    "kernel 'work' in k.py reads 'out', an output to which nothing was written; is it `zero: true`, or `role: inout`?"
)


def write(folder: Path, body: str, x="input", out="output", second: str = "", more: str = "") -> Path:
    """Write a project whose kernel has this body; return the manifest's path."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    manifest = MANIFEST.format(x=x, out=out, more=more)
    return write_project(folder, manifest, HEAD.format(second=second or "tl.store(out, 0.0)") + lines)


def fault(folder: Path, body: str, arch: str = "gfx942", **given: str) -> str:
    """Return the text of the only fault, after its place; empty if there is none."""
    path = write(folder, body, **given)
    bundle = plan_bundle(load_manifest(path), parse_arch(arch), {}, False)
    try:
        check_roles(bundle, kernels(bundle))
    except ManifestError as error:
        (message,) = error.messages
        tensor = "x" if "'x'" in message else "out"
        line = next(number for number, text in enumerate(MANIFEST.splitlines(), 1) if f"      {tensor}: " in text)
        column = MANIFEST.replace("{{", "{").splitlines()[line - 1].index("role") + 1
        assert message.startswith(f"{path}:{line}:{column}: op 'work': ")
        return message.removeprefix(f"{path}:{line}:{column}: op 'work': ")
    return ""


COPY = "tl.store(out + i, tl.load(x + i, mask=mask), mask=mask)"
BRANCHES = """\
where = out + i
if flag > 0:
    where = {} + i
tl.store(where, 1.0, mask=mask)
"""
LOOP = """\
p = {} + i
for step in range(flag):
    tl.store(p, 1.0, mask=mask)
    p += 16
"""
SWAPPING = """\
p, q = x + i, out + i
for step in range(flag):
    tl.store(p, 1.0, mask=mask)
    p, q = q, p
"""
WHILE = """\
p = x
n_left = n
while n_left > 0:
    tl.store(p, 1.0)
    p += 1
    n_left -= 1
"""

WRONG = {
    "plain": "tl.store(x + i, 1.0, mask=mask)",
    "scalar": "tl.store(x, 1.0)",
    "helper": "put(x + i, 1.0)",
    "reshaped": "tl.store(tl.reshape(x + i, [4, 4]).trans(1, 0), 1.0)",
    "expanded": "tl.store(x[None] + i[:, None] + i[None, :], 1.0)",
    "cast": "tl.store((x + i).to(tl.pointer_type(tl.int32)), 1)",
    "branch": "if flag > 0:\n    tl.store(x + i, 1.0)",
    "both branches": BRANCHES.format("out").replace("where = out", "where = x").replace("= out", "= x"),
    "loop": LOOP.format("x"),
    "while": WHILE,
    "after a loop": LOOP.format("x").replace("    tl.store(p, 1.0, mask=mask)\n", "") + "tl.store(p, 1.0, mask=mask)",
    "atomic": "tl.atomic_add(x + i, 1.0, mask=mask)",
    "exchange": "tl.atomic_xchg(x, 1.0)",
    "swap": "tl.atomic_cas(x.to(tl.pointer_type(tl.int32)), 0, 1)",
    "descriptor": "tl.make_tensor_descriptor(x, [n], [1], [16]).store([one * 16], tl.full([16], 1.0, tl.float32))",
}


@pytest.mark.parametrize("arch", ["gfx942", "sm_80"])
@pytest.mark.parametrize("way", WRONG)
def test_a_store_into_an_input(tmp_path, way, arch):
    assert fault(tmp_path, f"{COPY}\n{WRONG[way]}", arch) == f"kernel {WRITES_X}"
    assert fault(tmp_path, f"{COPY}\n{WRONG[way]}", x="inout") == ""


def test_descriptors_of_what_may_lie_anywhere(tmp_path: Path):
    """sm_90's hardware wants multiples of 16 bytes; elsewhere descriptors become pointers."""
    body = "tl.store(out + i, tl.make_tensor_descriptor({}, [n], [1], [16]).load([one * 16]), mask=mask)"
    wrong = "kernel 'work' in k.py makes a tensor descriptor of 'x', whose address and strides must be multiples of "
    wrong += "16 bytes on sm_90; only the aligned specialisation requires that, for tensors without `align: false`: "
    wrong += "write `specialisations: [aligned]`"
    assert fault(tmp_path, body.format("x"), "sm_90") == wrong
    assert fault(tmp_path, body.format("(x if flag > 0 else y)"), "sm_80") == fault(tmp_path, body.format("x")) == ""


UNCERTAIN = {
    "one of two": BRANCHES.format("x"),
    "selected": "tl.store(tl.where(mask, x + i, out + i), 1.0)",
    "swapped in a loop": SWAPPING,
    "an address": "at = (out + i).to(tl.int64)\ntl.store(at.to(tl.pointer_type(tl.float32)), 1.0, mask=mask)",
    "a function of its own": "put_elsewhere(out + one, 1.0)",
    "assembly": "tl.inline_asm_elementwise('flat_store_dword $1, $2', '=v,v,v', [(out + i).to(tl.int64), i], "
    "tl.int32, is_pure=False, pack=1)",
}


@pytest.mark.parametrize("way", UNCERTAIN)
def test_what_is_not_sure_is_no_fault(tmp_path, way):
    assert fault(tmp_path, UNCERTAIN[way]) == ""


def test_an_output_that_is_not_written(tmp_path):
    assert fault(tmp_path, "tl.load(x + i)") == UNWRITTEN
    assert fault(tmp_path, "unused = tl.load(out + i)\ntl.store(out + i, unused, mask=i < 0)", out="inout") == ""
    assert fault(tmp_path, "tl.load(x + i)", more=SECOND) == "", "another launch writes to it"
    never = "'work' in k.py and 'second' in k.py never writes to it"
    assert fault(tmp_path, "tl.load(x + i)", more=SECOND, second="tl.load(y)").endswith(never)


def test_an_output_that_is_read_before_it_is_written(tmp_path):
    adding = "tl.atomic_add(out + i, tl.load(x + i), mask=mask)"
    assert fault(tmp_path, adding) == UNSET
    assert fault(tmp_path, adding, out="inout") == fault(tmp_path, adding, out="output, zero: true") == ""
    assert fault(tmp_path, f"tl.store(out + i, 0.0)\n{adding}") == ""
    assert fault(tmp_path, "tl.atomic_xchg(out + i, 1.0)") == ""
    reading = "tl.store(out + i, tl.load(out + i) + 1)"
    assert fault(tmp_path, reading) == "", "it may read what it wrote itself"
    early = "if tl.load(out) > 0:\n    tl.device_assert(flag > 0)\n    tl.debug_barrier()\n    tl.atomic_add(out, 1.0)"
    assert fault(tmp_path, early, more=SECOND) == UNSET


def test_a_kernel_that_is_cached_is_checked_too(tmp_path):
    writing = f"{COPY}\ntl.store(x + i, 1.0, mask=mask)"
    project = Project(tmp_path)
    for role, status in (("inout", 0), ("input", 2)):
        write(tmp_path, writing, x=role)
        result = project.build("-o", str(tmp_path / role))
        assert result.exit_code == status, result.output
        assert (WRITES_X in result.stderr) == bool(status)
        assert (tmp_path / role / "tiny-gfx942").exists() == (not status)
