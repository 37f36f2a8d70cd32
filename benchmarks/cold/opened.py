"""python opened.py BUNDLE ARCH: opens a bundle on the emulator, makes the call of its smallest selftest case, and
prints when it had imported the runtime, opened the bundle, and had the result."""

import sys
import time

from aot_runtime import open_bundle

path, arch = sys.argv[1:]
times = [time.monotonic()]
bundle = open_bundle(path, f"emulator:{arch}")
times.append(time.monotonic())

from aot_runtime.bundle.files import source_of  # noqa: E402
from aot_runtime.bundle.vector_files import read_vectors  # noqa: E402
from aot_runtime.call.selftests import Prepared, run_case  # noqa: E402

if not bundle.index.selftest:
    sys.exit(f"{path} has no selftest vectors")
case = min(bundle.index.selftest, key=lambda item: item.vectors.size)
op = next(op for op in bundle.index.ops if op.name == case.op)
result = run_case(bundle, Prepared(case, read_vectors(source_of(bundle.path), op, case)))
times.append(time.monotonic())

if not result.passed:
    sys.exit(f"case {case.name} of {case.op} fails: {result.fault}")
print(times)
