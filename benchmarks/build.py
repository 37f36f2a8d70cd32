"""Compile times of `aotbuild`: warm processes against a fresh one per variant, and an empty cache against a full one.

A fresh process imports Triton and compiles one variant by the very same `compile_job`; as many run at once as the pool
has workers, and both sides compile the same variants, evenly spaced over the manifest. The pool's own start is counted.
Then `aotbuild` builds the whole manifest twice, with an empty cache and again.
"""

from __future__ import annotations

import argparse
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from measure import ROOT, machine, seconds, table, versions

from aot.compile.jobs import CompileJob
from aot.manifest.loading import load_manifest
from aot.plan.bundles import plan_bundle
from aot.targets import parse_arch
from aot.workers.pool import CompileFailure, WarmPool, default_workers, run_jobs

FRESH = "import pickle, sys; from aot.compile.compiler import compile_job; compile_job(pickle.load(sys.stdin.buffer))"
"""Program of a fresh process, which reads the job from its standard input."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("manifests", nargs="*", type=Path, metavar="MANIFEST",
                        default=[ROOT / "manifests/attention.yaml", ROOT / "manifests/rows.yaml"],
                        help="manifests to build (default: attention and rows)")  # fmt: skip
    parser.add_argument("--arch", default="gfx942", help="target (default: %(default)s)")
    parser.add_argument("-j", "--jobs", type=int, default=default_workers(1 << 16),
                        help="processes at once, on both sides (default: %(default)s)")  # fmt: skip
    parser.add_argument("--sample", type=int, default=64, metavar="N",
                        help="variants of each manifest that are compiled; 0: all (default: %(default)s)")  # fmt: skip
    parser.add_argument("--no-cache", action="store_true", help="leave the builds of whole manifests out")
    options = parser.parse_args()
    print(machine())
    print(f"{versions('triton', 'aotbuild')}; {options.arch}, {options.jobs} processes at once\n")
    print(_throughput(options.manifests, options.arch, options.jobs, options.sample))
    if not options.no_cache:
        print(f"\n{_cache(options.manifests, options.arch, options.jobs)}")


def sampled(jobs: Sequence[CompileJob], count: int) -> list[CompileJob]:
    """`count` jobs, evenly spaced; all of them where there are fewer, or `count` is 0."""
    if not count or count >= len(jobs):
        return list(jobs)
    return [jobs[index * len(jobs) // count] for index in range(count)]


def _throughput(manifests: Sequence[Path], arch: str, workers: int, sample: int) -> str:
    rows = []
    for path in manifests:
        planned = plan_bundle(load_manifest(path), parse_arch(arch), {}, False)
        distinct = list({variant.key: variant.job for variant in planned.variants}.values())
        jobs = sampled(distinct, sample)
        fresh, warm = seconds(partial(compile_fresh, jobs, workers)), seconds(partial(compile_warm, jobs, workers))
        rates = [60 * len(jobs) / taken for taken in (fresh, warm)]
        rows.append([path.stem, f"{len(jobs)} of {len(distinct)}", *(f"{rate:.0f}" for rate in rates),
                     f"{rates[1] / rates[0]:.1f}"])  # fmt: skip
    return table(("variants per minute", "sample", "fresh process each", "warm pool", "ratio"), rows)


def compile_fresh(jobs: Sequence[CompileJob], workers: int) -> None:
    """Compile each job in a process of its own. Raises CalledProcessError where one fails."""
    with ThreadPoolExecutor(workers) as threads:
        for _ in threads.map(_compile_one, jobs):
            pass


def _compile_one(job: CompileJob) -> None:
    subprocess.run([sys.executable, "-c", FRESH], input=pickle.dumps(job), cwd=ROOT, check=True)


def compile_warm(jobs: Sequence[CompileJob], workers: int) -> None:
    """Compile the jobs as `aotbuild` does. Raises RuntimeError where one fails."""
    with WarmPool(workers) as pool:
        for _, result in run_jobs(jobs, pool):
            if isinstance(result, CompileFailure):
                raise RuntimeError(result.reason)


def _cache(manifests: Sequence[Path], arch: str, workers: int) -> str:
    rows = []
    for path in manifests:
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, "-c", "from aot.cli import main; main()", "--arch", arch, "-j", str(workers),
                       str(path.resolve()), "-o", f"{folder}/dist", "--cache-dir", f"{folder}/cache"]  # fmt: skip
            build = partial(subprocess.run, command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            cold, warm = seconds(build), seconds(build)
        rows.append([path.stem, f"{cold:.1f}", f"{warm:.1f}", f"{cold / warm:.0f}"])
    return table(("seconds for the whole manifest", "empty cache", "full cache", "ratio"), rows)


if __name__ == "__main__":
    main()
