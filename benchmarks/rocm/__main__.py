"""AMD's libraries beside our kernels, by AMD's unmodified HIP on emulated GPUs. Times are modelled, never measured.

    python -m benchmarks.rocm install build/libraries
    python -m benchmarks.rocm products build/libraries --size 2048 4096
    python -m benchmarks.rocm generate build/libraries --size 2048 4096
    python -m benchmarks.rocm compare build/libraries --count 34 --seed 1
    python -m benchmarks.rocm sample build/libraries hipblaslt --count 20
    python -m benchmarks.rocm tests build/libraries
    python -m benchmarks.rocm random build/libraries
    python -m benchmarks.rocm attention build/libraries --length 512
    python -m benchmarks.rocm llama build/libraries --device rx7900xtx

docs/howto/emulate.md says more.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from aot.tune.model_timer import model_version
from tests.rocm.packages import Unavailable

from .aiter import attention_code
from .building import built
from .comparison import SQUARES, Product, Results, distribution, drawn, squares
from .generator import ARCH, SOURCE, Kind, generate
from .libraries import CLANG, LLAMA, NAMES, RANDOM, ROCBLAS_TESTS, Libraries, environment, install
from .llama import write_model
from .own_tests import drawn as drawn_tests
from .own_tests import listed
from .own_tests import outcome as outcome_of_tests
from .samples import Case, cases

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("product.py")
ATTENTION = SCRIPT.with_name("attention.py")
RANDOM_NUMBERS = SCRIPT.with_name("random_numbers.py")
CHECKED = (257, 129, 65)
CHECKED_GENERATED = (520, 456, 576)
"""Kernels for large products refuse other multiples than of 8, and of their tile along K."""
CHECKED_ATTENTION = ("1", "2", "512")
"""Batch, heads and length."""
HEAD_DIM = 128
_MODELLED = re.compile(r"([\d.]+) us, modelled")
_ERROR = re.compile(r"relative error (\S+)")
_OTHERS = r"^(?!__amd_rocclr)"
"""Kernels other than those of HIP's own copies and fills."""
Program = Sequence[str | Path]
"""A script and its arguments."""
HEADINGS = ("product", "whose", "µs, modelled", "TFLOP/s", "of our rate", "error of a small one")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("install", help="fetch HIP and AMD's libraries")
    command.add_argument("folder", type=Path)
    command.add_argument("--only", nargs="+", choices=(*NAMES, RANDOM, LLAMA), default=NAMES)
    command.set_defaults(run=run_install)
    command = commands.add_parser("products", help="a table of modelled products")
    command.add_argument("folder", type=Path)
    command.add_argument("--device", default="mi210", metavar="GPU", help="as of `aotbundle emulate` (%(default)s)")
    command.add_argument("--arch", default="gfx90a", help="that GPU's architecture (%(default)s)")
    command.add_argument("--type", choices=("f16", "bf16"), default="bf16")
    command.add_argument("--ops", choices=("NN", "NT", "TN", "TT"), default="TN")
    command.add_argument("--size", type=int, nargs="+", default=[2048, 4096, 8192], metavar="N")
    command.set_defaults(run=run_products)
    command = commands.add_parser("generate", help="make hipBLASLt's kernels for gfx942 with AMD's generator")
    command.add_argument("folder", type=Path)
    command.add_argument("--source", default=SOURCE, metavar="PLACE",
                         help="hipBLASLt's repository, or a checkout of it (%(default)s)")  # fmt: skip
    command.add_argument("--type", choices=("f16", "bf16"), nargs="+", default=["bf16"])
    command.add_argument("--ops", choices=("NN", "NT", "TN"), nargs="+", default=["TN"])
    command.add_argument("--size", type=int, nargs="+", default=[2048, 4096, 8192], metavar="N")
    command.add_argument("--all", action="store_true", help="all winners of AMD's tables, not those of --size alone")
    command.set_defaults(run=run_generate)
    command = commands.add_parser("compare", help="squares and random products TN of an MI300X, beside hipBLASLt's")
    command.add_argument("folder", type=Path)
    command.add_argument("--size", type=int, nargs="*", default=SQUARES, metavar="N")
    command.add_argument("--count", type=int, default=34, help="random products by 64, by 8 and odd each (%(default)s)")
    command.add_argument("--seed", type=int, default=1)
    command.add_argument("--results", type=Path, default=Path("build/compare.jsonl"), metavar="FILE",
                         help="where modelled times are kept (%(default)s)")  # fmt: skip
    command.set_defaults(run=run_compare)
    command = commands.add_parser("sample", help="products drawn at random, checked by the library's own program")
    command.add_argument("folder", type=Path)
    command.add_argument("library", choices=NAMES)
    command.add_argument("--device", default="mi210", metavar="GPU")
    command.add_argument("--count", type=int, default=20)
    command.add_argument("--seed", type=int, default=0)
    command.set_defaults(run=run_sample)
    command = commands.add_parser("tests", help="rocBLAS's own test program: a test of each function")
    command.add_argument("folder", type=Path)
    command.add_argument("--device", default="mi210", metavar="GPU")
    command.add_argument("--seed", type=int, default=1)
    command.set_defaults(run=run_tests)
    command = commands.add_parser("random", help="rocRAND's numbers of a GPU, compared with the host's")
    command.add_argument("folder", type=Path)
    command.add_argument("--device", default="mi210", metavar="GPU")
    command.add_argument("--count", type=int, default=20000)
    command.set_defaults(run=run_random)
    command = commands.add_parser("attention", help="AITER's attention of an MI300X, checked and modelled")
    command.add_argument("folder", type=Path)
    command.add_argument("--code", type=Path, help="the code object, where it cannot be fetched from GitHub")
    command.add_argument("--batch", type=int, default=1)
    command.add_argument("--heads", type=int, default=2)
    command.add_argument("--length", type=int, nargs="+", default=[512], metavar="N")
    command.set_defaults(run=run_attention)
    command = commands.add_parser("llama", help="llama.cpp on a small random model: the same text as on the CPU?")
    command.add_argument("folder", type=Path)
    command.add_argument("--device", default="mi210", metavar="GPU")
    command.add_argument("--tokens", type=int, default=4)
    command.set_defaults(run=run_llama)
    given = parser.parse_args()
    try:
        given.run(given)
    except Unavailable as error:
        parser.exit(1, f"{error}\n")


def run_install(given: argparse.Namespace) -> None:
    install(given.folder.absolute(), given.only)
    print(f"{', '.join(given.only)} and HIP are in {given.folder}")


def run_generate(given: argparse.Namespace) -> None:
    libraries = install(given.folder.absolute(), ["hipblaslt", CLANG])
    kinds = [Kind(kind, ops) for kind in given.type for ops in given.ops]
    sizes = None if given.all else given.size
    print(f"hipBLASLt's kernels for {ARCH} are in {generate(libraries, kinds, sizes, given.source)}")


def run_products(given: argparse.Namespace) -> None:
    libraries = Libraries(given.folder.absolute())
    generated = libraries.generated(given.arch)
    more = {"HIPBLASLT_TENSILE_LIBPATH": str(generated)} if generated.exists() else {}
    checked_sizes = CHECKED_GENERATED if more else CHECKED
    row(HEADINGS)
    for size in given.size:
        product = [given.type, given.ops, *[str(size)] * 3]
        small = [given.type, given.ops, *map(str, checked_sizes)]
        sizes = [(size,) * 3, checked_sizes]
        bundle = built(given.folder.absolute() / "ours", given.arch, given.type, given.ops, sizes)
        own = None
        for who in ("ours", *(name for name in NAMES if libraries.computes(name, given.arch))):
            place = str(bundle) if who == "ours" else who
            seconds = modelled(libraries, given.device, [SCRIPT, place, *product], more)
            own = own or seconds
            error = checked(libraries, given.device, [SCRIPT, place, *small], more)
            rate = f"{2 * size**3 / seconds / 1e12:.1f}" if seconds else "none"
            times = f"{seconds * 1e6:.1f}" if seconds else "none"
            part = f"{own / seconds:.2f}" if own and seconds else "none"
            row((f"{given.type} {given.ops} {size}³", who, times, rate, part, error))
    print(f"Modelled for {given.device}, not measured: docs/timing.md says what such times are worth.")


def run_compare(given: argparse.Namespace) -> None:
    libraries = Libraries(given.folder.absolute())
    if not libraries.computes("hipblaslt", ARCH):
        raise Unavailable(f"{given.folder} does not have hipBLASLt's kernels for {ARCH}: `generate --all` makes them")
    found = [*squares(given.size), *drawn(given.count, given.seed)]
    more = {"HIPBLASLT_TENSILE_LIBPATH": str(libraries.generated(ARCH))}
    results, ratios = Results(given.results), dict[str, list[float]]()
    for product, bundle in zip(found, bundles(libraries, found), strict=True):
        sizes = [product.type, "TN", *map(str, product.sizes)]
        ours = results.of(
            f"{model_version()} {digest(bundle)} {product}",
            partial(modelled, libraries, "mi300x", [SCRIPT, bundle, *sizes], {}),
        )
        theirs = results.of(
            f"{model_version()} hipblaslt {product}",
            partial(modelled, libraries, "mi300x", [SCRIPT, "hipblaslt", *sizes], more),
        )
        shown = [f"{who} {seconds * 1e6:.1f} µs, {product.flops / seconds / 1e12:.0f} TFLOP/s" if seconds
                 else f"{who} none" for who, seconds in (("ours", ours), ("hipBLASLt", theirs))]  # fmt: skip
        if ours and theirs:
            ratios.setdefault(product.group, []).append(theirs / ours)
            shown.append(f"hipBLASLt's time over ours {theirs / ours:.2f}")
        print(f"{product.group}: {product}: {'; '.join(shown)}", flush=True)
    for group, each in ratios.items():
        print(f"hipBLASLt's time over ours, {group}, {distribution(each)}")
    print("Modelled for mi300x, not measured: docs/timing.md says what such times are worth.")


def bundles(libraries: Libraries, products: Sequence[Product]) -> list[Path]:
    """Return the bundle with each product, one for all of a type."""
    by_type = {
        kind: built(libraries.folder / "ours", ARCH, kind, "TN", [each.sizes for each in products if each.type == kind])
        for kind in {product.type for product in products}
    }
    return [by_type[product.type] for product in products]


def digest(bundle: Path) -> str:
    return hashlib.sha256((bundle / "bundle.json").read_bytes()).hexdigest()[:16]


def row(cells: Sequence[str]) -> None:
    print("  ".join(cell.ljust(width) for cell, width in zip(cells, (16, 10, 13, 8, 12, 0), strict=True)), flush=True)


def run_attention(given: argparse.Namespace) -> None:
    libraries = Libraries(given.folder.absolute())
    code = attention_code(given.code)
    error = checked(libraries, "mi300x", [ATTENTION, code, *CHECKED_ATTENTION], {})
    print(f"Relative error of batch, heads, length {', '.join(CHECKED_ATTENTION)}: {error}", flush=True)
    for length in given.length:
        sizes = [str(size) for size in (given.batch, given.heads, length)]
        seconds = modelled(libraries, "mi300x", [ATTENTION, code, *sizes], {})
        flops = 4 * given.batch * given.heads * length**2 * HEAD_DIM
        shown = f"{seconds * 1e6:.1f} µs, {flops / seconds / 1e12:.0f} TFLOP/s" if seconds else "none"
        print(f"{', '.join(sizes)}: {shown}", flush=True)
    print("Modelled for mi300x, not measured: docs/timing.md says what such times are worth.")


def modelled(libraries: Libraries, device: str, program: Program, more: dict[str, str]) -> float | None:
    """Return the seconds that all kernels of a program take, or None if it fails, with its errors printed."""
    done = emulated(libraries, ["--device", device, "--time", _OTHERS, "--time-only"], program, more)
    found = [float(microseconds) * 1e-6 for microseconds in _MODELLED.findall(done.stderr)]
    if done.returncode or not found:
        print(done.stderr[-1000:], file=sys.stderr)
        return None
    return sum(found)


def checked(libraries: Libraries, device: str, program: Program, more: dict[str, str]) -> str:
    """Run a program with `--check`; return the relative error, or that it fails."""
    done = emulated(libraries, ["--device", device], [*program, "--check"], more)
    found = _ERROR.search(done.stdout)
    return found[1] if found and not done.returncode else f"fails: {(done.stderr or done.stdout)[-200:]}"


def emulated(
    libraries: Libraries, options: Sequence[str], program: Program, more: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    return run(options, libraries.rocm.python(*program, executable=Path(sys.executable)), more)


def run(options: Sequence[str], program: Sequence[str], more: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(emulation(options, program), capture_output=True, text=True, env=environment(more), cwd=ROOT)


def emulation(options: Sequence[str], program: Sequence[str]) -> list[str]:
    return [sys.executable, "-m", "aot_bundle", "emulate", *options, "--", *program]


def run_sample(given: argparse.Namespace) -> None:
    libraries = Libraries(given.folder.absolute())
    wrong = 0
    for case in cases(given.library, given.count, given.seed):
        text = outcome(libraries, given.device, case)
        wrong += text != "right"
        print(f"{case}: {text}", flush=True)
    print(f"{given.count - wrong} of {given.count} are right")
    sys.exit(bool(wrong))


def run_tests(given: argparse.Namespace) -> None:
    libraries = install(given.folder.absolute(), ["rocblas", ROCBLAS_TESTS])

    def rocblas_test(option: str) -> subprocess.CompletedProcess[str]:
        return run(["--device", given.device], libraries.rocm.command([*libraries.rocblas_test(), option]), {})

    names = drawn_tests(listed(rocblas_test("--gtest_list_tests").stdout), given.seed)
    done = rocblas_test(f"--gtest_filter={':'.join(names)}")
    found = outcome_of_tests(done.stdout)
    print(f"{found.passed} of {len(names)} tests pass on {given.device}")
    if found.failed or found.passed < len(names):
        print(*found.failed, done.stdout[-2000:], done.stderr[-2000:], sep="\n")
        sys.exit(1)


def run_random(given: argparse.Namespace) -> None:
    libraries = install(given.folder.absolute(), [RANDOM])
    for generator in ("xorwow", "philox"):
        program = [RANDOM_NUMBERS, generator, str(given.count)]
        done = emulated(libraries, ["--device", given.device], program, {})
        print(done.stdout, end="", flush=True)
        if done.returncode:
            sys.exit(f"{generator} is not right: {done.stderr[-1000:]}")


def run_llama(given: argparse.Namespace) -> None:
    libraries = Libraries(given.folder.absolute())
    model = libraries.folder / "random.gguf"
    write_model(model)
    options = ["-m", str(model), "-p", "abc", "-n", str(given.tokens), "--temp", "0", "-no-cnv", "--no-warmup"]
    on_cpu = subprocess.run(libraries.llama(*options, "-ngl", "0"), capture_output=True)
    on_gpu = subprocess.run(
        emulation(["--device", given.device], libraries.llama(*options, "-ngl", "99")), capture_output=True, cwd=ROOT,
        env=environment(),
    )  # fmt: skip
    is_same = on_gpu.returncode == 0 and on_cpu.stdout == on_gpu.stdout != b""
    print(f"{given.tokens} tokens on {given.device}: {'as on the CPU' if is_same else 'not as on the CPU'}")
    if not is_same:
        print(on_cpu.stdout, on_gpu.stdout, on_gpu.stderr.decode(errors="replace")[-1000:], sep="\n")
    sys.exit(not is_same)


def outcome(libraries: Libraries, device: str, case: Case) -> str:
    program = libraries.rocm.command([libraries.bench(case.library), *case.arguments()])
    done = run(["--device", device], program, {})
    if done.returncode:
        return f"ends with status {done.returncode}: {(done.stderr or done.stdout)[-300:]}"
    error = case.error_of(done.stdout)
    return "right" if error <= case.tolerance else f"wrong: the error is {error}"


if __name__ == "__main__":
    main()
