"""Kernel files in any style: only the statements that a kernel needs are run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aot.compile.compiler import compile_job
from aot.compile.jobs import CompileJob
from aot.errors import CompileError
from aot.source.kernel_source import inspect_kernel
from aot.source.project import project
from aot.targets import Target
from tests.support.building import builds
from tests.support.building.jobs import load_kernel
from tests.support.building.projects import KERNELS, SCALE

HEAD = """\
import torch
import triton
import triton.language as tl
"""
KERNEL = """
@triton.jit
def kernel(x, N: tl.constexpr = 4):
    tl.store(x, VALUE)
"""


def write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def value(folder: Path, files: dict[str, str], name: str = "VALUE", source: str = "k.py") -> Any:
    """Return a global that a kernel of these files reads."""
    write(folder, files)
    found = load_kernel(folder, source, "kernel").get_capture_scope()[name]
    return getattr(found, "value", found)


# What a file has beside its kernel, and what makes VALUE 7.
AROUND = {
    "torch at module level": "x = torch.rand(4, device='cuda')\nkernel[(1,)](x)\nprint(x)\nVALUE = tl.constexpr(7)",
    "driver query": "WARP = triton.runtime.driver.active.get_current_target().warp_size\nVALUE = tl.constexpr(7)",
    "script": "import argparse\nargs = argparse.ArgumentParser().parse_args()\nexit()\nVALUE = tl.constexpr(7)",
    "main": "VALUE = tl.constexpr(7)\nif __name__ == '__main__':\n    VALUE = tl.constexpr(8)",
    "class of torch": "class Op(torch.autograd.Function):\n    scale = 3\nVALUE = tl.constexpr(7)",
    "chain": "A = 3\nB = A * 2\nVALUE = tl.constexpr(B + 1)",
    "used before it is bound again": "A = 7\nVALUE = tl.constexpr(A)\nA = 8",
    "used after it is bound again": "A = 7\nB = A\nA = 8\nVALUE = tl.constexpr(B if A == 8 else 0)",
    "used before a name of its own": "VALUE = tl.constexpr(max(3, 7))\ndef max(a, b):\n    return 8",
    "bound again": "VALUE = tl.constexpr(6)\nVALUE = tl.constexpr(VALUE.value + 1)",
    "bound again after a failure": "VALUE = torch.x\nVALUE = tl.constexpr(7)",
    "an attribute of a function": "def f():\n    return 7\nf.x = torch.y\nVALUE = tl.constexpr(f())",
    "augmented": "A = 6\nA += 1\nVALUE = tl.constexpr(A)\nA += 1",
    "changed in place": "SIZES = []\nSIZES.append(5)\nSIZES.append(7)\nVALUE = tl.constexpr(SIZES[-1])",
    "loop": "SIZES = {}\nfor i in range(8):\n    SIZES[i] = i\nVALUE = tl.constexpr(SIZES[7])",
    "function": "def largest():\n    return max(SIZES)\nSIZES = [2, 7]\nVALUE = tl.constexpr(largest())",
    "own name of a builtin": "def max(a, b):\n    return 7\nVALUE = tl.constexpr(max(1, 2))",
    "annotated": "VALUE: torch.dtype = tl.constexpr(7)",
    "version": "if triton.__version__ >= '2':\n    VALUE = tl.constexpr(7)\nelse:\n    VALUE = tl.constexpr(8)",
    "condition with a default": "VALUE = tl.constexpr(7)\nif triton.__version__ < '2':\n    VALUE = tl.constexpr(8)",
    "one branch": "if torch.cuda.is_available():\n    VALUE = tl.constexpr(7)",
    "try": "try:\n    from nowhere import VALUE\nexcept ImportError:\n    VALUE = tl.constexpr(7)",
    "tried flag": "try:\n    import apex\n    N = 8\nexcept ImportError:\n    N = 7\nVALUE = tl.constexpr(N)",
    "raises": "try:\n    N = torch.cuda.device_count()\nexcept Exception:\n    N = 7\nVALUE = tl.constexpr(N)",
    "with": "import contextlib\nwith contextlib.suppress(ImportError):\n    VALUE = tl.constexpr(7)",
    "deleted": "for i in range(8):\n    VALUE = tl.constexpr(i)\ndel i",
    "named tuple": "from typing import NamedTuple\nclass P(NamedTuple):\n    a: int = 7\nVALUE = tl.constexpr(P().a)",
    "dataclass": "import dataclasses\n@dataclasses.dataclass\nclass P:\n    t: torch.Tensor = None\n    a: int = 7\n"
    "VALUE = tl.constexpr(P().a)",
    "class body": "A = 7\nclass P:\n    a = A\nVALUE = tl.constexpr(P.a)",
    "two imports": "from helper import nothing, VALUE",
    "two modules": "import torch, helper\nVALUE = helper.VALUE",
    "star": "from helper import *",
    "star of what is not there": "from nowhere import *\nfrom helper import VALUE",
    "private by star": "from helper import *\nfrom math import *\nVALUE = tl.constexpr(int(floor(PI) + 4))",
    "postponed import": "def get():\n    import helper\n    return helper.VALUE\nVALUE = get()",
    "computed import": "import importlib\nVALUE = importlib.import_module('hel' + 'per').VALUE",
    "module's __getattr__": "import lazy\nVALUE = lazy.anything",
}
HELPERS = {
    "helper.py": "import triton.language as tl\nimport torch\n_x = torch.x\nPI = 3.5\nVALUE = tl.constexpr(7)\n",
    "lazy.py": "import triton.language as tl\ndef __getattr__(name):\n    return tl.constexpr(len(name) - 1)\n",
}


@pytest.mark.parametrize("around", AROUND.values(), ids=AROUND)
def test_what_a_kernel_reads_is_what_the_whole_file_would_make_of_it(tmp_path: Path, around: str):
    assert value(tmp_path, {"k.py": HEAD + KERNEL + around + "\n", **HELPERS}) == 7


DECORATED = {
    "autotune": "@triton.autotune(configs=configs(), key=['N'])\n@triton.jit",
    "configs need a GPU": "@triton.autotune(configs=torch.cuda.configs(), key=[])\n@triton.jit",
    "heuristics": "@triton.heuristics({'N': lambda args: torch.f(args)})\n@triton.jit",
    "wrapper": "@libentry()\n@triton.autotune(configs=configs(), key=['N'])\n@triton.jit",
    "wrapper of torch": "@torch.library.triton_op('a::b', mutates_args={})\n@triton.jit",
    "options": "@triton.jit(do_not_specialize=['x'], launch_metadata=torch.metadata)",
    "project's own jit": "@triton_dist.jit",
    "gluon": "@gluon.jit",
}


@pytest.mark.parametrize("decorators", DECORATED.values(), ids=DECORATED)
def test_decorators_are_followed_to_the_jit_function(tmp_path: Path, decorators: str):
    head = f"{HEAD}from elsewhere import libentry\nfrom triton.experimental import gluon\nVALUE = tl.constexpr(7)\n"
    configs = "def configs():\n    return [triton.Config({'N': n}) for n in (16, 32)]\n"
    signature = "def kernel(x: torch.Tensor, N: tl.constexpr = torch.size, M: 'tl.constexpr' = 3) -> torch.Tensor:"
    text = f"{head}{configs}\n{decorators}\n{signature}\n    tl.store(x, VALUE)\n"
    assert value(tmp_path, {"k.py": text}) == 7
    kernel = load_kernel(tmp_path, "k.py", "kernel")
    assert [param.is_constexpr for param in kernel.params] == [False, True, True]
    assert kernel.starting_line_number == text[: text.index(decorators)].count("\n") + 1, "as when the file is run"
    assert repr(inspect_kernel(tmp_path, "k.py:kernel").parameters[1].default).startswith("torch.size (ModuleNotFound")


def test_an_attribute_is_the_kernel_within_its_autotuner_and_heuristics(tmp_path: Path):
    decorators = [
        "@libentry()",
        "@triton.autotune(configs=[triton.Config({'N': n}) for n in SIZES], key=['x'])",
        "@triton.heuristics({'M': lambda args: args['N'] // 2})",
        "@triton.jit",
    ]
    text = (
        f"{HEAD}SIZES = (16, 32)\n"
        + "\n".join(decorators)
        + "\ndef kernel(x, N: tl.constexpr, M: tl.constexpr): pass\n"
    )
    write(tmp_path, {"k.py": text, "bad.py": text.replace("in SIZES", "in torch.SIZES")})
    with project(tmp_path).active() as modules:
        tuner = modules.attribute("k.py", "kernel")
        assert [config.kwargs for config in tuner.configs] == [{"N": 16}, {"N": 32}] and tuner.keys == ["x"]
        assert tuner.fn.values["M"]({"N": 8}) == 4
        assert tuner.fn.fn is modules.load("k.py", "kernel")
        modules.load("bad.py", "kernel")
        wrong = r"the decorators of 'kernel' in bad.py cannot be evaluated: .*No module named 'torch' \(bad.py:1\)"
        with pytest.raises(CompileError, match=wrong):
            modules.attribute("bad.py", "kernel")
    autotuning = inspect_kernel(tmp_path, "bad.py:kernel").autotuning
    assert autotuning.fault.startswith("the decorators of 'kernel' in bad.py") and not autotuning.configs


RAN = "def {0}(*functions):\n    pathlib.Path(__file__).with_name('ran').touch()\n    return functions[0]\n"


def test_what_a_kernel_does_not_depend_on_is_not_run(tmp_path: Path):
    """Benchmarks at module level and wrappers of kernels are left out, both here and in imported files."""
    ran = f"{RAN.format('benchmark')}{RAN.format('wrapped')}benchmark(1)\nvalues = []\nvalues.append(benchmark(2))\n"
    kernel = KERNEL.replace("@", "@wrapped\n@").replace("(x,", "(x, values,")
    text = f"{HEAD}import pathlib\n{ran}{{}}{kernel}"
    files = {"k.py": text.format("from helper import VALUE\n"), "helper.py": text.format("VALUE = tl.constexpr(7)\n")}
    assert value(tmp_path, files) == 7
    inspect_kernel(tmp_path, "k.py:kernel")
    assert not (tmp_path / "ran").exists()


def test_kernels_of_a_file_are_the_same_in_whatever_order_they_are_loaded(tmp_path: Path):
    """A kernel uses the values that names had at its definition, even if they are rebound later."""
    kernel = "@triton.autotune(SIZES, key=[])\n" + KERNEL.strip() + "\n"
    sizes = "SIZES = [triton.Config({{'N': {}}})]\n"
    parts = [f"{sizes.format(n)}{kernel.replace('kernel', name)}" for n, name in ((16, "first"), (32, "second"))]
    for folder, names in (("a", ("first", "second")), ("b", ("second", "first"))):
        write(tmp_path / folder, {"k.py": f"{HEAD}VALUE = tl.constexpr(7)\n{''.join(parts)}"})
        for name in names:
            inspect_kernel(tmp_path / folder, f"k.py:{name}")
    for name, size in (("first", 16), ("second", 32)):
        a, b = (inspect_kernel(tmp_path / folder, f"k.py:{name}") for folder in ("a", "b"))
        assert a.digest == b.digest
        assert [dict(found.autotuning.configs[0].blocks)["N"] for found in (a, b)] == [size, size]


def test_a_local_variable_is_not_the_global_of_its_name(tmp_path: Path):
    """The module has that global only where another kernel that reads it was loaded before."""
    files = {
        "common.py": f"{HEAD}{KERNEL.replace('kernel', 'common').replace('VALUE', 'N')}",
        "k.py": f"""{HEAD}from common import common
@triton.jit
def kernel(x):
    common = tl.program_id(0)
    tl.store(x, common)

@triton.jit
def other(x):
    common(x)
""",
    }
    digests = []
    for folder, before in (("alone", []), ("second", ["other"])):
        write(tmp_path / folder, files)
        digests.append([inspect_kernel(tmp_path / folder, f"k.py:{name}").digest for name in (*before, "kernel")][-1])
    assert digests[0] == digests[1]


def test_only_what_a_kernel_depends_on_is_hashed(tmp_path: Path):
    text = (
        f"{HEAD}OTHER = tl.constexpr(1)\nA = 6\nVALUE = tl.constexpr(A + 1)\n{KERNEL}@triton.jit\ndef f(x):\n    pass\n"
    )

    def digest(*edit: str) -> str:
        write(tmp_path, {"k.py": text.replace(*edit)})
        return inspect_kernel(tmp_path, "k.py:kernel").digest

    before = digest("", "")
    assert digest("constexpr(1)", "constexpr(2)") == digest("pass", "tl.store(x, OTHER)") == before
    assert before not in (digest("A = 6", "A = 7"), digest("(x, VALUE)", "(x + 1, VALUE)"))


@pytest.mark.parametrize("text", [
    "def plain(x):\n    tl.store(x, VALUE)\nkernel = triton.jit(plain)\n",
    "class Kernels(torch.nn.Module):\n    @triton.jit\n    def kernel(x):\n        tl.store(x, VALUE)\n",
    "def make():\n    @triton.jit\n    def kernel(x):\n        tl.store(x, VALUE)\n    return kernel\n",
    "if HAS_TRITON:\n    @triton.jit\n    def kernel(x):\n        tl.store(x, VALUE)\n",
    "try:\n    import apex\n    @triton.jit\n    def kernel(x):\n        tl.store(x, VALUE)\nexcept: pass\n",
], ids=["assigned", "method", "factory", "condition", "try"])  # fmt: skip
def test_where_jit_functions_are(tmp_path: Path, text: str):
    (tmp_path / "k.py").write_text(f"{HEAD}VALUE = tl.constexpr(7)\n{text}")
    name = next((f"{owner}.kernel" for owner in ("Kernels", "make") if owner in text), "kernel")
    kernel = load_kernel(tmp_path, "k.py", name)
    assert kernel.get_capture_scope()["VALUE"].value == 7 and "tl.store(x, VALUE)" in kernel.src


INIT = "import torch\nfrom .helper import add\nfrom .ops.k import kernel\ntorch.library.define('a')\n"
PACKAGE = {
    "pkg/__init__.py": INIT,
    "pkg/helper.py": "import triton\nfrom . import ops\n@triton.jit\ndef add(a):\n    return a + ops.constants.ONE\n",
    "pkg/ops/__init__.py": "from pkg.ops.k import *\nfrom . import constants\nhelper = 3\n",
    "pkg/ops/constants.py": "import triton.language as tl\nimport torch\nONE = tl.constexpr(1)\n",
    "pkg/ops/k.py": "{}\nimport triton, triton.language as tl\n@triton.jit\ndef kernel(x):\n    tl.store(x, {}(1.0))\n",
}


@pytest.mark.parametrize("root", ["", "pkg", "pkg/ops", ".."])
@pytest.mark.parametrize(("line", "name"), [
    ("from pkg import add", "add"),
    ("from pkg.helper import add", "add"),
    ("from .. import add", "add"),
    ("from ..helper import add as plus", "plus"),
    ("from .. import helper", "helper.add"),
    ("import pkg.helper", "pkg.helper.add"),
    ("import pkg.helper as h", "h.add"),
])  # fmt: skip
def test_packages_run_what_is_asked_of_them(tmp_path: Path, root: str, line: str, name: str):
    """The root may be any folder: dotted names begin above the topmost package."""
    folder = tmp_path / "project"
    write(folder, {**PACKAGE, "pkg/ops/k.py": PACKAGE["pkg/ops/k.py"].format(line, name)})
    base = (folder / root).resolve()
    source = (folder / "pkg/ops/k.py").relative_to(base).as_posix()
    kernel = load_kernel(base, source, "kernel")
    before = inspect_kernel(base, f"{source}:kernel")
    assert kernel.fn.__module__ == "pkg.ops.k"
    assert len(before.sources) >= 3, "the helper and its constant, at least"
    path = folder / "pkg/ops/constants.py"
    path.write_text(path.read_text().replace("(1)", "(2)"))
    after = inspect_kernel(base, f"{source}:kernel")
    assert after.digest != before.digest, "a constant of a module of a module of a helper"
    path.write_text(path.read_text() + "\n# nothing\n")
    assert inspect_kernel(base, f"{source}:kernel").digest == after.digest


def test_folders_without_an_init_are_packages_too(tmp_path: Path):
    files = {
        "a/b/k.py": f"{HEAD}from a.c import VALUE\n{KERNEL}",
        "a/c.py": "from .b.d import VALUE",
        "a/b/d.py": "from e import VALUE\n",  # beside it: what Python finds where the file is a script's
        "a/b/e.py": "import triton.language as tl\nVALUE = tl.constexpr(7)\n",
    }
    assert value(tmp_path, files, source="a/b/k.py") == 7


def test_the_modules_of_a_package_are_not_beside_each_other(tmp_path: Path):
    files = {"pkg/__init__.py": "", "pkg/torch.py": "VALUE = 7", "pkg/k.py": f"{HEAD}VALUE = torch.VALUE\n{KERNEL}"}
    write(tmp_path, files)
    with project(tmp_path).active() as modules, pytest.raises(CompileError, match="No module named 'torch'"):
        modules.check(modules.load("pkg/k.py", "kernel"))


UNREADABLE = "KERNEL: 'kernel' reads 'VALUE', which is not available: "
FAULTS = {
    "VALUE = torch.float16\n": UNREADABLE + "ModuleNotFoundError: No module named 'torch' (k.py:1)",
    "VALUE = tl.constexpr(7)\nVALUE = torch.float16\n": UNREADABLE
    + "ModuleNotFoundError: No module named 'torch' (k.py:1)",
    "from helper import VALUE\n": UNREADABLE + "ImportError: cannot import name 'VALUE' from helper.py (k.py:8)",
    "VALUE = 1 // 0\n": UNREADABLE + "ZeroDivisionError: integer division or modulo by zero (k.py:8)",
    "if torch.a:\n    VALUE = 1\nelse:\n    VALUE = 2\n": UNREADABLE + "UndecidedError: 'VALUE' is bound at k.py:9 and "
    "k.py:11, and the condition at k.py:8 cannot be evaluated: ModuleNotFoundError: No module named 'torch'",
    "if torch.a:\n    @triton.jit\n    def kernel(x, N):\n        pass\n": "'kernel' in k.py cannot be evaluated: "
    "UndecidedError: 'kernel' is bound at k.py:6 and k.py:10, and the condition at k.py:8 cannot be evaluated: "
    "ModuleNotFoundError: No module named 'torch'",
    "@triton.jit\ndef VALUE():\n    kernel(1)\n": "a jit function cannot call itself, directly or indirectly, because "
    "all calls are inlined: 'kernel' at KERNEL, 'VALUE' at k.py:10",
    "def VALUE(:\n": "file k.py:8: SyntaxError: invalid syntax",
}


@pytest.mark.parametrize("more", FAULTS)
def test_what_is_refused(tmp_path: Path, more: str):
    kernel = KERNEL.replace("VALUE", "VALUE()") if "def VALUE():" in more else KERNEL
    write(tmp_path, {"k.py": HEAD + kernel + more, "helper.py": ""})
    line = (HEAD + KERNEL).count("\n")
    with project(tmp_path).active() as modules, pytest.raises(CompileError) as caught:
        modules.check(modules.load("k.py", "kernel"))
    assert str(caught.value) == FAULTS[more].replace("KERNEL", f"k.py:{line}")


def test_names_that_are_not_there(tmp_path: Path):
    write(tmp_path, {"k.py": HEAD + KERNEL, "empty.py": "import torch\n"})
    for source, name, said in (
        ("k.py", "kernal", "k.py has no function 'kernal'; did you mean kernel?"),
        ("k.py", "softmax", "k.py has no function 'softmax'; its @triton.jit functions are kernel"),
        ("empty.py", "kernel", "empty.py has no function 'kernel', nor any @triton.jit function"),
    ):
        with pytest.raises(CompileError) as caught:
            load_kernel(tmp_path, source, name)
        assert str(caught.value) == said


def test_the_last_of_two_functions_is_meant(tmp_path: Path):
    text = "@triton.jit\ndef kernel(x):\n    tl.store(x, {})\n"
    (tmp_path / "k.py").write_text(HEAD + text.format(1) + text.format(2))
    assert "tl.store(x, 2)" in load_kernel(tmp_path, "k.py", "kernel").src


def test_triton_is_there_whatever_a_package_makes_of_the_machine(tmp_path: Path):
    files = {
        "pkg/__init__.py": "",
        "pkg/compat.py": "try:\n    import torch\n    HAS = True\nexcept ImportError:\n    HAS = False\n"
        "if HAS:\n    import triton\n    import triton.language as tl\nelse:\n    triton = tl = None\n",
        "pkg/k.py": "from .compat import HAS, tl, triton\nVALUE = tl.constexpr(7)\n" + KERNEL,
        "pkg/vendor.py": "from vllm.compat import HAS, tl, triton\nVALUE = tl.constexpr(7)\n" + KERNEL,
    }
    assert value(tmp_path, files, source="pkg/k.py") == 7
    assert value(tmp_path, files, source="pkg/vendor.py") == 7


def test_the_gpu_that_is_built_for_is_the_one_that_files_find(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from triton.runtime.driver import driver

    machine = SimpleNamespace(get_current_target=lambda: SimpleNamespace(backend="hip", warp_size=16))
    monkeypatch.setattr(driver, "_active", machine)
    write(tmp_path, {"k.py": f"{HEAD}{KERNEL}{AROUND['driver query']}\nVALUE = tl.constexpr(WARP)\n"})
    found = load_kernel(tmp_path, "k.py", "kernel").get_capture_scope()["VALUE"]
    assert "RuntimeError: whoever reads a kernel has no device to ask" in found.text and driver.active is machine
    digests = {arch: inspect_kernel(tmp_path, "k.py:kernel", arch).digest for arch in ("gfx942", "sm_90", "gfx1100")}
    assert len(set(digests.values())) == 2, "of wavefronts of 64 lanes, and of 32"
    with project(tmp_path).active(target=Target("gfx942")) as modules:
        assert modules.load("k.py", "kernel").get_capture_scope()["VALUE"].value == 64


COMPILED = f"""{HEAD}
from typing import Optional
import helper


@triton.jit
def count(x, N: tl.constexpr):
    if N > 0:
        return count(x, N - 1) + 1
    return 0


@triton.jit
def kernel(x: torch.Tensor, N: tl.constexpr, y: Optional[torch.Tensor] = None, z: tl.constexpr = torch.float16):
    if N == 1:
        tl.store(x, torch.pi)
    if N == 2:
        tl.store(x, helper.BAD)
    if N == 3:
        tl.store(x, helper.endless(x, N))
    tl.store(x, count(x, 3) + helper.GOOD)
"""
HELPER = f"""{HEAD}
BAD = torch.pi
GOOD = tl.constexpr(7)


@triton.jit
def endless(x, N: tl.constexpr):
    if N > 0:
        return endless(x, N)
    return 0
"""


@pytest.mark.parametrize(("n", "said"), [
    (0, ""),
    (1, "k.py:19: 'torch', which is not available: ModuleNotFoundError: No module named 'torch' (k.py:1)\n    tl."),
    (2, "k.py:21: 'helper.BAD', which is not available: ModuleNotFoundError: No module named 'torch' (helper.py:1)"),
    (3, "a jit function cannot call itself, directly or indirectly, because all calls are inlined: "
     "'endless' at helper.py:12"),
])  # fmt: skip
def test_what_only_some_variants_read_is_a_fault_of_theirs(tmp_path: Path, n: int, said: str):
    """Annotations and defaults from torch cause no fault in any variant."""
    write(tmp_path, {"k.py": COMPILED, "helper.py": HELPER})
    assert not inspect_kernel(tmp_path, "k.py:kernel").fault
    signature = (("x", "*fp32"), ("N", "constexpr"), ("y", "constexpr"), ("z", "constexpr"))
    constants = (("N", n), ("y", None), ("z", 0))
    job = CompileJob(str(tmp_path), "k.py", "kernel", signature, constants, (), (), (), "gfx942")
    if not said:
        assert compile_job(job).image
        return
    with pytest.raises(CompileError) as caught:
        compile_job(job)
    assert str(caught.value).startswith(said)


def test_a_function_that_is_passed_on_need_not_be_called(tmp_path: Path):
    missing = "@triton.jit\ndef VALUE(x):\n    return x + torch.pi\n"
    apply = "@triton.jit\ndef apply(f: tl.constexpr, N: tl.constexpr):\n    return f(N) if N > 4 else N\n"
    for called, at_fault in (("VALUE(N)", True), ("apply(VALUE, N)", False)):
        write(tmp_path, {"k.py": HEAD + missing + apply + KERNEL.replace("VALUE", called)})
        assert bool(inspect_kernel(tmp_path, "k.py:kernel").fault) == at_fault


def test_what_was_left_out_is_told(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    text = f"{HEAD}try:\n    N = torch.a\nexcept ImportError:\n    N = 7\nVALUE = tl.constexpr(N)\n{KERNEL}"
    (tmp_path / "k.py").write_text(text)
    told = inspect_kernel(tmp_path, "k.py:kernel").left_out
    assert told == ("file k.py: left out line 1 (ModuleNotFoundError: No module named 'torch')",)
    counted = f"{text[: text.index(KERNEL)]}{KERNELS.replace('* factor', '* VALUE')}"
    assert builds.Project(tmp_path, SCALE, counted).build("--dry-run", "-v").exit_code == 0
    assert told[0] in caplog.messages
