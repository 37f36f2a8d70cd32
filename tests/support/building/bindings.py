"""Kernel parameters bound to an op of a small project."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from aot.compile.jobs import CompileJob
from aot.plan.bind_parameters import Binder
from aot.plan.bound_parameter import BoundParameter, compile_job
from aot.plan.contract import build_contract
from aot.plan.variants import VariantSpec, enumerate_variants
from aot.source.kernel_source import Parameter

from .projects import EVERYTHING, OPTIONS, edit, load


def parameter(text: str) -> Parameter:
    """Return a parameter: a name in capitals is a constexpr, `shift=3` has a default, `x: ptr stride_rows=0` is a tuple
    of two members."""
    text, _, fields = text.partition(": ")
    name, _, default = text.partition("=")
    members = (parameter(field) for field in fields.split())
    return Parameter(
        name, name.isupper() or name == "function", bool(default), eval(default or "None"),
        tuple(replace(member, name=f"{name}.{member.name}") for member in members),
    )  # fmt: skip


def with_bind(bind: str, text: str = EVERYTHING) -> str:
    """Return a manifest whose launch has a `bind` with these entries."""
    return edit(text, ("        grid: [rows]\n", f"        grid: [rows]\n        bind: {{{bind}}}\n"))


class Bindings:
    """Binds parameters to the variants of the op of a manifest."""

    def __init__(self, folder: Path, text: str = EVERYTHING):
        self.manifest = load(folder, text)
        self.op = build_contract(self.manifest, "scale", "gfx942", OPTIONS)
        self.launch = self.manifest.spec.ops["scale"].launches[0]
        self.variants = enumerate_variants(self.op, self.manifest.spec.ops["scale"], "gfx942").variants

    def variant(self, **wanted: Any) -> VariantSpec:
        """Return the first variant that is aligned, of dtype float16 and config 0, unless `wanted` says otherwise."""
        wanted = {"aligned": True, "T": "float16", **wanted}
        return next(v for v in self.variants if wanted.items() <= dict(v.constants).items())

    def binder(self, *names: str) -> Binder:
        return Binder(self.manifest, self.op, 0, tuple(map(parameter, names)), "gfx942")

    def bind(self, *names: str, **wanted: Any) -> list[BoundParameter]:
        return list(self.binder(*names).bind(self.variant(**wanted)))

    def job(self, *names: str, **wanted: Any) -> CompileJob:
        variant = self.variant(**wanted)
        return compile_job(self.manifest, self.launch, tuple(self.bind(*names, **wanted)), variant, "gfx942", False)


def binding(*names: str) -> Callable[[Path, str], Any]:
    """Reads a manifest, checks a kernel with these parameters besides WIDTH against it, and binds them."""

    def read(folder: Path, text: str) -> tuple[BoundParameter, ...]:
        bindings = Bindings(folder, text)
        binder = bindings.binder(*names, "WIDTH")
        binder.check()
        return binder.bind(bindings.variant())

    return read
