"""Bundles of just those variants that given calls need, out of the full matrix of a manifest.

`python -m tests.ops.attention.building --arch sm_90 -o dist` writes the bundle of all cases,
`dist/attention_cases-sm_90`.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from aot_emulator import EmulatorDriver, Options
from filelock import FileLock

from aot.compile.batch import compile_missing, look_up
from aot.compile.cache import CompileCache
from aot.compile.pool import WarmPool
from aot.manifest.loading import Manifest, load_manifest
from aot.plan.bundles import PlannedBundle, plan_bundle
from aot.targets import Target, parse_arch
from aot.write.bundle_writer import write_bundle
from aot_runtime import Bundle, open_bundle
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.layout import Layout, make_layout
from aot_runtime.device.device import Device
from tests.ops.attention.cases import EDGES, SCHEDULES, Call, Placed, make_call, pairwise
from tests.support.on_demand import Key, index_of, key_of, stub_of
from tests.support.session_builds import ROOT, session_cache, session_folder

BUNDLE = "attention_cases"


def build_for(
    calls: Iterable[Call],
    manifest_path: Path,
    arch: str,
    output: Path,
    jobs: int,
    cache: Path | None,
    name: str = BUNDLE,
) -> Path:
    """Build a bundle `<name>-<arch>` that serves the calls; returns its folder."""
    target = parse_arch(arch)
    planned, planners = plan(manifest_path, target)
    needed = {key for call in calls for key in needed_by(call, planners[call.op], arch)}
    chosen = tuple(variant for variant in planned.variants if key_of(stub_of(variant, target)) in needed)
    used = {variant.spec.op for variant in chosen}
    bundle = dataclasses.replace(
        planned,
        manifest=Manifest(planned.manifest.file, planned.manifest.spec.model_copy(update={"bundle": name})),
        ops=tuple(op for op in planned.ops if op.name in used),
        variants=chosen,
        cases=(),
    )
    return write_bundle(bundle, _compile(bundle, jobs, CompileCache(cache)), (), output).folder


def built_for(
    factory: pytest.TempPathFactory, manifest: str, calls: Callable[[], Iterable[Call]], name: str, folder: str = ""
) -> Bundle:
    """A bundle, on the emulator in strict mode, of what calls of the ops of a manifest need on gfx942.

    It is built once for all workers of a session. folder: where it is, in the session's; by default `name`.
    """
    where = session_folder(factory) / (folder or name)
    where.mkdir(exist_ok=True)
    path = where / f"{name}-gfx942"
    with FileLock(where / "lock"):
        if not (path / "bundle.json").exists():
            build_for(calls(), ROOT / f"manifests/{manifest}.yaml", "gfx942", where, 2, session_cache(factory), name)
    return open_bundle(path, Device(EmulatorDriver(Options(strict=True)), 0))


def plan(manifest_path: Path, target: Target) -> tuple[PlannedBundle, dict[str, Planner]]:
    """The matrix of a manifest, and each op's planner over it; nothing is compiled."""
    planned = plan_bundle(load_manifest(manifest_path), target, {}, line_info=False)
    index = index_of(planned)
    return planned, {op.name: op_planner(index, op.name) for op in planned.ops}


def _compile(bundle: PlannedBundle, jobs: int, cache: CompileCache) -> Mapping[str, Any]:
    outcome, missing = look_up(bundle.jobs, cache)
    if missing:
        with WarmPool(min(jobs, len(missing)), timeout_s=600) as pool:
            compile_missing(missing, cache, pool, outcome, lambda *_: None)
    labels = {variant.key: variant.spec.label for variant in bundle.variants}
    if outcome.failures:
        failures = outcome.failures.items()
        raise RuntimeError("\n".join(f"{labels[key]}: {failure.reason}" for key, failure in failures))
    return outcome.kernels


def needed_by(call: Call, planner: Planner, arch: str) -> Iterable[Key]:
    """The variants that a call launches."""
    tensors = {**call.inputs, **call.outputs}
    layouts = {name: layout_of(item.values if isinstance(item, Placed) else item) for name, item in tensors.items()}
    decision = planner.decide(layouts, call.scalars, ("host", 0), 300, arch)
    return [key_of(launch.variant) for launch in decision.launches]


def layout_of(array: Any) -> Layout:
    """The layout that a device array of the same strides has: device memory is aligned, as is the whole of `array`."""
    whole = array if array.base is None else array.base
    offset = array.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    strides = tuple(stride // array.itemsize for stride in array.strides)
    return make_layout(("host", 0), array.dtype.name, array.shape, strides, offset % 16 == 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", required=True)
    parser.add_argument("-o", "--output", type=Path, default=Path("dist"))
    parser.add_argument("-j", "--jobs", type=int, default=2)
    options = parser.parse_args()
    calls = [make_call(case) for case in (*pairwise(), *EDGES, *SCHEDULES)]
    print(build_for(calls, ROOT / "manifests/attention.yaml", options.arch, options.output, options.jobs, None))


if __name__ == "__main__":
    main()
