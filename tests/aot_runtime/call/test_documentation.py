"""Descriptions of ops: signatures with defaults, help in short lines, and representations."""

from __future__ import annotations

import copy
import inspect
import pickle
import pydoc
from pathlib import Path

import msgspec
import numpy as np
import pytest

from aot.compile.settings import option_names
from aot.manifest.loading import load_manifest
from aot.plan.contract import build_contract
from aot.targets import parse_arch
from aot_runtime import open_bundle
from aot_runtime.call.display import bundle_html, call_text, html
from aot_runtime.call.documentation import (
    WIDTH,
    built_dtypes,
    bundle_help,
    call_signature,
    docstring,
)
from aot_runtime.contract import records
from tests.support.contracts import op, planner, tensor

ROOT = Path(__file__).parents[3]
REQUIRED = inspect.Parameter.empty
MARKUP = "<b>R&D</b>"


def test_defaults_are_values_or_the_expression(sample: records.Index):
    parameters = call_signature(sample.ops[0]).parameters
    defaults = {name: parameter.default for name, parameter in parameters.items()}
    assert repr(defaults.pop("scale")) == "cols ** -0.5"
    assert defaults == {
        "x": REQUIRED, "weight": None, "total": None, "largest": None, "seed": REQUIRED, "rounding": "nearest",
        "return_largest": False, "stream": None,
    }  # fmt: skip
    assert next(name for name, parameter in parameters.items() if parameter.kind is parameter.KEYWORD_ONLY) == "total"


@pytest.mark.parametrize(("default", "value"), [("-1", -1), ("1e999", float("inf")), ("1e-05", 1e-5), ("True", True)])
def test_a_number_is_a_value(default: str, value: float):
    made = op(tensor("x", "n"), scalars=(records.Scalar("s", "fp32", default=default),))
    found = call_signature(made).parameters["s"].default
    assert (found, type(found)) == (value, type(value))


def test_help_has_the_dtypes_that_are_built():
    text, dtypes = "x: T[n]; y: float32[n]", {"T": ("float16", "float32", "bfloat16")}
    some = planner(text, dtypes=dtypes, keep=lambda v: v.axis_values["T"] != "float32")
    built = built_dtypes(some.op, some.choosing.table.values())
    for shown in (docstring(some.op, built), html(some.op, built)):
        assert "    x: float16 or bfloat16 [n], input." in shown and "    y: float32 [n], input." in shown
    assert "    x: float16 or float32 or bfloat16 [n], input." in docstring(some.op)


def test_help_has_short_lines():
    """Help is shown for the op with the most arguments, and for one with a word longer than a line."""
    manifest = load_manifest(ROOT / "manifests/attention.yaml")
    attention = build_contract(manifest, "flash_attention", "gfx942", option_names(parse_arch("gfx942")))
    assert len(call_signature(attention).parameters) > 12
    shown = [*docstring(attention).splitlines(), *f"flash_attention{call_signature(attention)}".splitlines()]
    assert max(map(len, shown)) <= WIDTH
    words = " ".join(docstring(attention).split())
    for item in (*attention.tensors, *attention.scalars):
        assert f" {item.name}: " in words and " ".join(item.doc.split()) in words
    word = 30 * "wide"
    lines = docstring(op(tensor("x", "n"), doc=f"One {word} word.\n\nA paragraph.")).splitlines()
    assert lines[:6] == ["One", word, "word.", "", "A paragraph.", ""]


def test_a_call_in_short(sample: records.Index):
    reduce, swap = sample.ops
    assert call_text(swap) == "swap(a, b, *, stream=None)"
    assert call_text(reduce) == "reduce(x, weight=None, *, total=None, largest=None, seed, …)"
    assert call_text(reduce, 10) == "reduce(x, …)"


def test_help_of_an_open_bundle_and_of_its_op(small_bundle: Path):
    small = open_bundle(small_bundle, "emulator")
    shown = pydoc.plain(pydoc.render_doc(small))
    for item in small.index.ops:
        assert f"    {item.name} " in shown
    assert (
        "Bundle small for gfx942, id " in shown and str(small_bundle) in shown and "  Sum and, if asked for, " in shown
    )
    shown = pydoc.plain(pydoc.render_doc(small.affine))
    assert "\n    scale=cols ** (-0.5),\n    shift=0,\n    mode='plain',\n    stream=None,\n)" in shown
    assert max(map(len, shown.splitlines())) <= 88 and "mode: plain|negated, default 'plain'." in shown


def test_an_op_says_what_it_is(small_bundle: Path):
    small = open_bundle(small_bundle, "emulator")
    affine = small.affine
    assert "<op affine(x, bias=None, *, out=None, " in repr(affine) and "…) of bundle small for gfx942>" in repr(affine)
    assert (affine.__name__, affine.__qualname__, affine.__module__) == ("affine", "affine", "aot_runtime")
    assert inspect.signature(affine).bind(np.ones(1), scale=1.0).arguments.keys() == {"x", "scale"}
    with pytest.raises(TypeError, match="scael"):
        inspect.signature(affine).bind(np.ones(1), scael=1.0)
    assert copy.copy(affine) == affine == copy.deepcopy([affine])[0]
    with pytest.raises(TypeError, match=r"a BundleOp cannot be copied or pickled: .* open its bundle again"):
        pickle.dumps(affine)
    assert affine._repr_html_().startswith("<pre><b>affine</b>(") and "Arguments:" in affine._repr_html_()


def test_markup_of_documents_is_text_in_a_notebook(sample: records.Index):
    made = msgspec.structs.replace(sample.ops[1], doc=MARKUP)
    index = msgspec.structs.replace(sample, ops=(sample.ops[0], made), version="1.2.0")
    for shown in (html(made), bundle_html(index, "hip:0")):
        assert MARKUP not in shown and "&lt;b&gt;R&amp;D&lt;/b&gt;" in shown
    assert bundle_html(index, "hip:0").count("<tr>") == 3 and "sample 1.2.0 for gfx942 on hip:0" in shown
    assert bundle_help(index, "here").startswith("Bundle sample 1.2.0 for gfx942, id ")
