"""Handle a bundle of any content: open, verify and show it, plan calls of it, and run the self-test of some on the
emulator. Each step succeeds, or raises a typed error."""

from __future__ import annotations

import ast
import json
import os
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Any

from aot_bundle.callspec import CallSpec, plan_call
from aot_bundle.command.listing import list_bundle, listing_data
from aot_bundle.command.origin import origin_lines
from aot_bundle.command.tables import head_text, summary_lines, variants_lines
from aot_bundle.command.variants import bundle_data, variant_rows
from aot_bundle.stub import module_text, stub_text
from aot_bundle.terminal import json_pieces
from aot_bundle.trust.state import SignatureState
from aot_bundle.verification import verify_bundle
from aot_emulator import EmulatorDriver, Options
from aot_emulator.isa.archs import ARCHS
from aot_runtime.bundle.reading import read_index
from aot_runtime.call.documentation import docstring
from aot_runtime.call.explanation import explain_decision
from aot_runtime.call.op import call_source
from aot_runtime.call.planner import Planner, op_planner
from aot_runtime.contract.records import INDEX, Index, Op
from aot_runtime.device.device import Device
from aot_runtime.errors import AotError, BundleError, ExpressionError
from aot_runtime.opening import Bundle

from .bundle_inputs import BundleInput, Files, Inputs, Seed, Special, files_of

PLANNED_CALLS = 2
UNSIGNED = SignatureState("unsigned", "not signed")
_EXTENTS = (0, 1, 2, 3, 5, 16, 64, 100, 128, 129, 1000, 4096, 4097, 1 << 20, 2**31 - 1, 2**31, 2**62)
_LIMITS = Options(budget=20_000, launch_budget=500_000, time_limit_s=2.0)


class WrongError(AssertionError):
    """Raised if an accepted input is not what its index says, or a step contradicts another."""


class Bundles:
    """Handles inputs, one after the other, in a folder of its own."""

    def __init__(self, folder: Path, seed: int):
        self.folder, self.inputs = folder, Inputs(seed)
        for name, made in self.inputs.seeds.items():
            self._write(folder / name, dict(made.files))

    def warm_up(self) -> None:
        """Handle each seed as it is."""
        for name in self.inputs.seeds:
            given = BundleInput(name, (), False, 0, True)
            outcome = self.handle(given, self.prepare(given))
            assert outcome in ("run: right", "opened, verified, a call planned"), (name, outcome)

    def draw(self, number: int) -> BundleInput:
        return self.inputs.draw(number)

    @property
    def readable(self) -> Path:
        """Return the folder that may be read."""
        return self.folder

    def prepare(self, given: BundleInput) -> Files:
        """Lay out an input's files; return a function that undoes it."""
        seed = self.inputs.seeds[given.seed]
        files = files_of(given, seed)
        self._write(self.folder / seed.name, files)
        return files

    def undo(self, given: BundleInput, files: Files) -> None:
        seed = self.inputs.seeds[given.seed]
        self._write(self.folder / seed.name, {name: seed.files.get(name, Special("nothing")) for name in files})

    @staticmethod
    def _write(folder: Path, files: Files) -> None:
        for name, content in files.items():
            path = f"{folder}/{name}"
            if isinstance(content, bytes):
                try:
                    descriptor = os.open(
                        path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644
                    )
                except OSError:
                    _remove(path)
                    os.makedirs(os.path.dirname(path), exist_ok=True)
                    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(descriptor, content)
                os.close(descriptor)
                continue
            _remove(path)
            match content.kind:
                case "link":
                    os.symlink(content.target, path)
                case "fifo":
                    os.mkfifo(path)
                case "folder":
                    os.mkdir(path)

    def handle(self, given: BundleInput, files: Files) -> str:
        """Return the outcome of an input in a few words; raise what is wrong with it."""
        seed, folder = self.inputs.seeds[given.seed], self.folder / given.seed
        is_damaged = not given.adopted and self._differs(seed, files)
        try:
            index = read_index(folder)
        except BundleError as error:
            must(bool(str(error)), "an error without words")
            if given.calls % 16 == 0:  # these read it again, and find the same
                must(bool(verify_bundle(folder)), "verify finds no fault in what cannot be opened")
                listing_data([list_bundle(folder)])
            return "refused when it is opened"
        faults = verify_bundle(folder)
        must(not is_damaged or bool(faults), f"verify finds no fault in a damaged bundle: {sorted(files)}")
        must(given.adopted or files[INDEX] == seed.files[INDEX], "a damaged index was opened")
        outcome = f"opened, {'verify finds faults' if faults else 'verified'}"
        found = study(folder, index, given.calls, given.is_run, is_damaged)
        return found if found.startswith("run: ") else f"{outcome}, {found}"

    @staticmethod
    def _differs(seed: Seed, files: Files) -> bool:
        return any(
            content != seed.files.get(name)
            for name, content in files.items()
            if name.startswith(("code/", "selftest/", INDEX))
        )


def study(place: Path, index: Index, calls: int, is_run: bool, is_damaged: bool) -> str:
    """Show an open bundle, plan calls of it and run some self-tests; return the outcome, or raise the fault."""
    _show(index, whole=calls % 8 == 0)
    planned = _plan(index, calls)
    return f"run: {_run(place, index, is_damaged)}" if is_run and index.target.arch in ARCHS else planned


def _show(index: Index, whole: bool) -> None:
    rows = variant_rows(index)
    if whole:
        head_text(index)
        list(summary_lines(index, rows, 80))
        list(variants_lines(index, rows, 120))
        json.loads("".join(json_pieces(bundle_data(index, rows))))
        must(all(map(str.isprintable, origin_lines(index, UNSIGNED))), "where it comes from is not two lines")
        with suppress(ExpressionError):  # of a default
            ast.parse(stub_text(index))
            must(is_declaration(module_text(index)), "the module that is imported for the types does something")
    for op in index.ops:
        with suppress(ExpressionError):
            docstring(op)


def _plan(index: Index, calls: int) -> str:
    rng, outcomes = random.Random(calls), set()
    for op in index.ops:
        try:
            planner = op_planner(index, op.name)
        except BundleError as error:
            must(bool(str(error)), "an error without words")
            outcomes.add("refused when an op is first called")
            continue
        compile(call_source(op, planner.static), "call", "exec")
        for number in range(PLANNED_CALLS):
            outcomes.add(_plan_call(index, planner, draw_call(op, rng, number)))
    return min(outcomes, default="without ops")


def _plan_call(index: Index, planner: Planner, call: CallSpec) -> str:
    try:
        decision = plan_call(index, planner, call, 304)
    except AotError as error:
        must(bool(str(error)), "an error without words")
        return "every call refused"
    explain_decision(planner, decision, index.blobs)
    return "a call planned"


def _run(folder: Path, index: Index, is_damaged: bool) -> str:
    device = Device(EmulatorDriver(_LIMITS), list(ARCHS).index(index.target.arch))
    bundle = Bundle(folder, index, device, True)
    try:
        report = bundle.selftest()
    except AotError:
        return "refused"
    if report.passed:
        return "right"
    faults = [output.fault for result in report.results for output in result.outputs if output.fault]
    must(not (is_damaged and faults), f"a damaged bundle computes something else: {faults}")
    return "wrong, as its self-test says" if faults else "a call raised a typed error"


def is_declaration(source: str) -> bool:
    """Tell if Python source has only classes, functions and constants."""
    nodes = ast.walk(ast.parse(source))
    return not any(isinstance(node, ast.Call | ast.Lambda | ast.For | ast.While | ast.With) for node in nodes)


def draw_call(op: Op, rng: random.Random, number: int) -> CallSpec:
    """Draw a call of an op: mostly a small one that its contract should accept."""
    names = sorted({name for tensor in op.tensors for dim in tensor.shape for name in _words(dim.extent)})
    extents = (2, 3, 16, 20) if number == 0 else _EXTENTS
    dims = {name: rng.choice(extents) for name in names}
    dtypes = {name: rng.choice(values) for name, values in op.dtypes.items() if values}
    optional = frozenset(tensor.name for tensor in op.tensors if tensor.optional and rng.random() < 0.5)
    scalars = {scalar.name: _scalar(scalar, rng) for scalar in op.scalars if not scalar.default or rng.random() < 0.3}
    unaligned = frozenset(tensor.name for tensor in op.tensors if rng.random() < 0.1)
    return CallSpec(dims=dims, given=optional, dtypes=dtypes, scalars=scalars, unaligned=unaligned)


def _words(text: str) -> list[str]:
    return [text] if text.isidentifier() else [word for word in text.replace("+", " ").split() if word.isidentifier()]


def _scalar(scalar: Any, rng: random.Random) -> str:
    if scalar.choices:
        return str(rng.choice(scalar.choices))
    return rng.choice(("0", "1", "1", "true", "0.5", "-1", "3", "inf", "nan", str(2**63)))


def must(holds: bool, fault: str) -> None:
    if not holds:
        raise WrongError(fault)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    else:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(path)
