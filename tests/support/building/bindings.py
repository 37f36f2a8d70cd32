"""Kernel parameters bound to an op of a small project."""

import pytest

from aot.compile.kernel_source import Parameter
from aot.manifest.yamlfile import ManifestError
from aot.plan.binding import Binder, Bound
from aot.plan.contract import build_contract
from aot.plan.variants import VariantSpec, enumerate_variants

from .projects import EVERYTHING, OPTIONS, edit, load, position

BIND = "        bind: {{{}}}\n"


def parameters(*names: str) -> tuple[Parameter, ...]:
    """Upper-case names are constexprs; `NAME=3` is one with a default."""
    return tuple(
        Parameter(n, n.isupper(), bool(default), eval(default or "None"))
        for n, _, default in (name.partition("=") for name in names)
    )


class Bindings:
    """Binds parameters to the variants of an op whose launch may have a `bind`."""

    def __init__(self, tmp_path, text: str = EVERYTHING, bind: str = ""):
        bound = BIND.format(bind) if bind else ""
        self.manifest = load(tmp_path, edit(text, ("        grid: [rows]\n", "        grid: [rows]\n" + bound)))
        self.path = tmp_path / "m.yaml"
        self.op = build_contract(self.manifest, "scale", "gfx942", OPTIONS)
        self.variants = enumerate_variants(self.op, self.manifest.spec.ops["scale"], "gfx942").variants

    def variant(self, **wanted) -> VariantSpec:
        """The first variant that is aligned, of dtype float16 and config 0, unless `wanted` says otherwise."""
        wanted = {"aligned": True, "T": "float16", **wanted}
        return next(v for v in self.variants if wanted.items() <= dict(v.constants).items())

    def binder(self, *names: str) -> Binder:
        return Binder(self.manifest, self.op, 0, parameters(*names), "gfx942")

    def bind(self, *names: str, **wanted) -> list[Bound]:
        return list(self.binder(*names).bind(self.variant(**wanted)))

    def one(self, name: str, **wanted) -> Bound:
        (bound,) = self.bind(name, **wanted)
        return bound

    def fault(self, *names: str, **wanted) -> str:
        binder = self.binder(*names)
        with pytest.raises(ManifestError) as caught:
            binder.check()
            binder.bind(self.variant(**wanted))
        (message,) = caught.value.messages
        return message

    def at(self, fragment: str) -> str:
        return f"{position(self.path, fragment)}: op 'scale', kernel 'k.py:scale_rows': "
