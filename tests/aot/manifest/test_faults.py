"""Faults of a manifest's schema are reported at their place, with the allowed values."""

from pathlib import Path

import pytest

from aot.manifest.yamlfile import ManifestError
from tests.support.building.projects import EVERYTHING, SCALE, check_fault, edit, load, rows

# What is replaced, by what, with an @ where the fault is, and what is said, in which WORDS are spelled out.
FAULTS = r"""
bundle: tiny\n -> bundle: tiny\n@titel: x\n -> unknown key 'titel'; known: bundle, doc, include, ops, root, version
exclude: [ -> @exlude: [ -> unknown key 'exlude'; did you mean 'exclude'?
role: output}\n      top -> @rol: output}\n      top -> unknown key 'rol'; did you mean 'role'?
{max: 4096} -> {@maximum: 4096} -> unknown key 'maximum'; did you mean 'max'?
grid: [rows] -> @gird: [rows]\n        grid: [rows] -> unknown key 'gird'; did you mean 'grid'?
pick: return_top -> @pck: return_top, pick: return_top -> unknown key 'pck'; did you mean 'pick'?
BLOCK == 64, options: { -> BLOCK == 64, @option: {}, options: { -> unknown key 'option'; did you mean 'options'?
- kernel: k.py:scale_rows\n        grid: [rows]\n -> - @kernel: k.py:scale_rows\n
 -> S.launches.0: the key 'grid' is missing
top: {shape: [rows], dtype -> @top: {dtype -> S.tensors.top: a tensor has a `shape`, unless it is a `pointer`
dtype: float32, role -> @dtype: 32, role -> S.tensors.top.dtype: expected text (given: 32)
role: output, when -> @role: outptu, when
 -> S.tensors.top.role: Input should be 'input', 'output' or 'inout' (given: 'outptu')
optional: true -> @optional: yes -> S.tensors.bias.optional: expected true or false (given: 'yes')
[rows|1, cols] -> [rows|1, @[cols]]
 -> S.tensors.bias.shape.1: expected text or a whole number (given: a list)
when: rows > 0 -> @when: [rows > 0]
 -> S.launches.0.when: expected text or a whole number or a number or true or false (given: a list)
require: [cols % 2 == 0] -> @require: cols % 2 == 0 -> S.require: expected a list (given: 'cols % 2 == 0')
type: fp32, -> @type: fp23, -> S.scalars.factor.type: unknown scalar type 'fp23'; did you mean 'fp32'?
T: [float16, float32] -> T: [@bfloat61, float32] -> S.dtypes.T.0: unknown dtype 'bfloat61'; did you mean 'bfloat16'?
T: [float16, float32] -> @T: [] -> S.dtypes.T: at least 1 allowed, 0 given
grid: [rows] -> @grid: [1, 2, 3, 4] -> S.launches.0.grid: at most 3 allowed, 4 given
dims: {cols: {max: 4096}} -> dims: {@cols: {min: 5, max: 4}} -> S.dims.cols: min 5 is greater than max 4
factor: {type: fp32, default: cols ** -0.5} -> @factor: {type: fp32, min: 2, max: 1.5}
 -> S.scalars.factor: min 2 is greater than max 1.5
[{when: BLOCK == 64, options: {num_stages: 1}}] -> [@{when: BLOCK == 64, options: {num_stages: 1}, deny: x}]
 -> S.overrides.0: an override has one of `options` and `deny`
[{when: BLOCK == 64, options: {num_stages: 1}}] -> [@{when: BLOCK == 64}]
 -> S.overrides.0: an override has one of `options` and `deny`
k.py:scale_rows\n -> k.py:scale_rows\n        bind: {@x: {}}\n
 -> S.launches.0.bind.x: a mapping in `bind` needs exactly one of `value` (or `dims`), `dtype`, `layout` and `function`
k.py:scale_rows\n -> k.py:scale_rows\n        bind: {@x: {dtype: T, function: 'k.py:f'}}\n
 -> S.launches.0.bind.x: a mapping in `bind` needs exactly one of `value` (or `dims`), `dtype`, `layout` and `function`
k.py:scale_rows\n -> k.py:scale_rows\n        bind: {@x: {value: x, operands: [1]}}\n
 -> S.launches.0.bind.x: `operands` need a `function`
k.py:scale_rows\n -> k.py:scale_rows\n        bind: {@x: {dims: [rows], type: i64}}\n
 -> S.launches.0.bind.x: `type` needs a `value` without `dims`
bundle: tiny -> @bundle: ti-ny -> bundle: 'ti-ny' NO_NAME
bundle: tiny\n -> bundle: tiny\n@version: 1.2\n -> version: expected text (given: 1.2)
bundle: tiny\n -> bundle: tiny\n@version: 1.2-rc1\n -> version: '1.2-rc1' NO_VERSION
ops:\n  scale:\n -> ops:\n  @2scale:\n -> ops.2scale: '2scale' NO_NAME
mode: { -> @mo__de: { -> S.scalars.mo__de: 'mo__de' NO_NAME
values: [16, 64] -> values: [16, @.nan] -> S.constexprs.BLOCK.values.1: NAN
default: cols ** -0.5 -> @min: .nan -> S.scalars.factor.min: NAN
default: cols ** -0.5 -> @default: .nan -> S.scalars.factor.default: NAN
WIDTH: 4} -> @WIDTH: .nan} -> S.launches.0.configs.0.blocks.WIDTH: NAN
num_warps: 8 -> @num_warps: .inf
 -> S.launches.0.configs.0.options.num_warps: Input should be a finite number (given: inf)
kernel: k.py:scale_rows -> @kernel: k.py -> S.launches.0.kernel: 'k.py' is not a kernel: path/from/the/root.py:function
"""
WORDS = {
    "S.": "ops.scale.",
    "NO_NAME": "is not a name: letters, digits and single underscores between them, a letter first",
    "NO_VERSION": "is not a version: numbers with dots between them, such as 1.2.0, 1.2.0rc1 or 1.2.0.dev3",
    "NAN": "NaN is not allowed here: it does not equal itself",
}


@pytest.mark.parametrize(("old", "new", "message"), rows(FAULTS))
def test_a_fault_has_its_place_and_says_what_is_allowed(tmp_path: Path, old: str, new: str, message: str):
    for word, meaning in WORDS.items():
        message = message.replace(word, meaning)
    check_fault(tmp_path, edit(EVERYTHING, (old, new)), message, load)


def test_faults_come_together_in_the_order_of_the_file(tmp_path: Path):
    """Each fault is reported once, also one of a bind entry, which may be many things."""
    bind = "grid: [rows]\n        bind: {x: {valu: 3}, y: [[]], z: {value: 1, type: i23}}"
    changes = ("bundle: tiny", "bundle: 3"), ("factor: {type: fp32}", "factor: {}"), ("grid: [rows]", bind)
    with pytest.raises(ManifestError) as caught:
        load(tmp_path, edit(SCALE, *changes))
    launch = "ops.scale.launches.0.bind"
    assert [message.removeprefix(f"{tmp_path / 'm.yaml'}:") for message in caught.value.messages] == [
        "1:1: bundle: expected text (given: 3)",
        "8:7: ops.scale.scalars.factor: the key 'type' is missing",
        "15:20: unknown key 'valu'; did you mean 'value'?",
        f"15:34: {launch}.y.0: expected text or a whole number or a number or true or false or a mapping "
        "(given: a list)",
        f"15:53: {launch}.z.type: unknown kernarg type 'i23'; did you mean 'i32'?",
    ]


@pytest.mark.parametrize("text", ["@", "@- bundle: x\n", "@just text\n"])
def test_not_a_mapping(tmp_path: Path, text: str):
    check_fault(tmp_path, text, "expected a mapping with the keys bundle, version, doc, root, include, ops", load)
