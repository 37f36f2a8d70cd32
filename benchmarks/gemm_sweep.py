"""Finds the fastest configs of matrix products on this GPU.

    python benchmarks/gemm_sweep.py make benchmarks/sweeps/gemm_sm_90.yaml -o sweep     # anywhere
    aotbuild --arch sm_90 --filter "$(cat sweep/filter)" sweep/gemm_sweep.yaml -o sweep
    python benchmarks/gemm_sweep.py time sweep                                          # where the GPU is

`make` writes a manifest like `manifests/gemm.yaml`, whose ops have one scalar more: `candidate`, the number of the
config that a call uses. The file of candidates says of each group which op and launch they belong to, for which kinds
and shapes (`benchmarks/gemm.py` explains both) they are timed, with which scalars of the op, and their configs: a list
in place of a value stands for each of its values. `time` prints the fastest of each shape, beside torch; a candidate
whose result is further from torch's than that of most is marked wrong.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import gemm
import numpy as np
from measure import ROOT, interleaved, median, table
from on_gpu import calls_of, device_seconds, import_torch

from aot_runtime import AotError, Bundle, open_bundle

PLAN, MANIFEST, FILTER = "plan.json", "gemm_sweep.yaml", "filter"
PEER = -1
"""Stands for torch among the candidates' places in a list."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    make = commands.add_parser("make", help="write the manifest of the candidates")
    make.add_argument("candidates", type=Path)
    make.add_argument("-o", "--output", type=Path, required=True, help="folder for the manifest, and for its bundle")
    make.set_defaults(run=lambda options: write(options.candidates, options.output))
    time = commands.add_parser("time", help="time them")
    time.add_argument("folder", type=Path, help="what `make` and `aotbuild` wrote to")
    time.add_argument("--groups", nargs="+", metavar="NAME", help="only these groups of candidates")
    time.add_argument("--rounds", type=int, default=3, help="rounds of each (default: %(default)s)")
    time.add_argument("--best", type=int, default=6, help="how many to show of each shape (default: %(default)s)")
    time.set_defaults(run=time_all)
    options = parser.parse_args()
    options.run(options)


# Candidates


def write(candidates: Path, folder: Path) -> None:
    """A manifest with the candidates, what `aotbuild --filter` needs for them, and a plan of what to time."""
    import yaml

    found = yaml.safe_load(candidates.read_text())
    manifest = yaml.safe_load((ROOT / "manifests/gemm.yaml").read_text())
    manifest |= {"bundle": "gemm_sweep", "root": str(ROOT)}
    ops = {group["op"] for group in found["groups"]}
    manifest["ops"] = {
        name: {key: value for key, value in op.items() if key != "selftest"}
        for name, op in manifest["ops"].items()
        if name in ops
    }
    manifest = json.loads(json.dumps(manifest))  # what anchors shared is separate from here on
    for op in manifest["ops"].values():
        op["scalars"]["candidate"] = {"type": "i32", "default": 0}
    plan, number = [], 0
    for group in found["groups"]:
        launch = _launch(manifest["ops"][group["op"]], group["launch"])
        entries = []
        for config in itertools.chain.from_iterable(map(product, group["configs"])):
            number += 1
            when = " and ".join([f"candidate == {number}", *group.get("when", [])])
            entries.append({"name": f"candidate{number}", "when": when, **_typed(config)})
            cases = itertools.product(group["kinds"], group["shapes"], group.get("options", [{}]))
            plan += [{"group": group["name"], "kind": kind, "shape": shape, "config": config,
                      "options": {"candidate": number, **scalars}} for kind, shape, scalars in cases]  # fmt: skip
        launch["configs"] = entries + launch["configs"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MANIFEST).write_text(yaml.safe_dump(manifest, sort_keys=False, width=120))
    (folder / FILTER).write_text(found["filter"])
    (folder / PLAN).write_text(json.dumps(plan))
    print(f"{number} candidates, {len(plan)} measurements")


def product(config: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each choice of one value of every list: `{a: 1, b: [2, 3]}` is `{a: 1, b: 2}` and `{a: 1, b: 3}`."""
    lists = [value if isinstance(value, list) else [value] for value in config.values()]
    return (dict(zip(config, values, strict=True)) for values in itertools.product(*lists))


def _typed(config: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """A flat config as manifests have it. Constexprs of kernels are in capitals, compiler options are not."""
    return {
        "blocks": {key: value for key, value in config.items() if key.isupper()},
        "options": {key: value for key, value in config.items() if not key.isupper()},
    }


def _launch(op: Mapping[str, Any], name: str) -> dict[str, Any]:
    found = next((launch for launch in op["launches"] if launch["kernel"].endswith(f":{name}")), None)
    if found is None:
        sys.exit(f"gemm_sweep.py: no launch {name}; there are {', '.join(each['kernel'] for each in op['launches'])}")
    return found


# Time


def time_all(options: argparse.Namespace) -> None:
    torch = import_torch()
    if torch is None:
        sys.exit("gemm_sweep.py: torch is needed, for inputs and as the peer")
    plan = [
        entry
        for entry in json.loads((options.folder / PLAN).read_text())
        if not options.groups or entry["group"] in options.groups
    ]
    bundle = open_bundle(next(options.folder.glob("gemm_sweep-*")))
    for (kind, shape), entries in itertools.groupby(sorted(plan, key=_case), key=_case):
        print(f"\n{report(bundle, torch, kind, gemm.Shape.parse(shape), list(entries), options)}", flush=True)


def _case(entry: Mapping[str, Any]) -> tuple[str, str]:
    return entry["kind"], entry["shape"]


def report(
    bundle: Bundle, torch: Any, kind: str, shape: gemm.Shape, entries: list[dict], options: argparse.Namespace
) -> str:
    """The fastest candidates for a shape, the fastest first, and torch."""
    cases = gemm.cases_of(bundle, torch, kind, shape)
    exact = _ends(cases[0].peer().float().cpu().numpy())  # and the peer is ready to be captured
    graphs = {PEER: gemm.peer_graph(torch, cases)}
    errors = {}
    for index, entry in enumerate(entries):
        try:
            graphs[index] = gemm.our_graph(bundle, cases, entry["options"])
        except AotError as error:
            print(f"left out: {entry['config']}: {str(error).splitlines()[0]}")
            continue
        errors[index] = float(np.abs(_ends(cases[0].out) - exact).max())
    usual = float(np.median(list(errors.values())))
    ways = {
        index: partial(device_seconds, bundle, way, min(20, calls_of(bundle, way)))
        for index, (way, _) in graphs.items()
    }
    times = interleaved(ways, options.rounds)
    seconds = {index: median(taken) / graphs[index][1] for index, taken in times.items()}
    peer = seconds.pop(PEER)
    rows = [["torch", f"{peer * 1e6:.2f}", f"{shape.flops / peer / 1e12:.0f}", "1.00", ""]]
    for index in sorted(seconds, key=seconds.__getitem__)[: options.best]:
        entry, taken = entries[index], seconds[index]
        scalars = {name: value for name, value in entry["options"].items() if name != "candidate"}
        text = ", ".join(f"{name}: {json.dumps(value)}" for name, value in entry["config"].items())
        calls = " ".join(f"{name}={value}" for name, value in scalars.items())
        mark = "wrong" if errors[index] > 4 * usual + 1e-3 else ""
        cells = [f"{taken * 1e6:.2f}", f"{shape.flops / taken / 1e12:.0f}", f"{peer / taken:.2f}", mark]
        rows.append([f"{entry['group']} {calls} {{{text}}}", *cells])
    return table((f"{kind} {shape}", "µs", "TFLOP/s", "of torch", ""), rows)


def _ends(matrix: Any) -> np.ndarray:
    """The first and the last rows, fp32: enough to see that a candidate is wrong, and soon copied."""
    parts = (matrix[:64], matrix[-64:])
    return np.concatenate([np.asarray(x if isinstance(x, np.ndarray) else x.numpy(), np.float32) for x in parts])


if __name__ == "__main__":
    main()
