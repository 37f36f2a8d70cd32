"""Instructions, loops and access widths of AMD code, and requirements on them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from aot_bundle.isa import CodeFacts, Instruction, code_facts, hot_loops, load_bits, loops_of, read_instructions
from aot_bundle.requirements import Code, parse_requirements, unmet_lines, unmet_requirements
from aot_runtime.bundle.reading import read_index
from aot_runtime.contract import records
from aot_runtime.errors import BundleError, ExpressionError

WIDTHS = {
    "buffer_load_dwordx4": 128, "global_load_dwordx3": 96, "flat_load_dword": 32, "buffer_load_ushort": 16,
    "buffer_load_short_d16_hi": 16, "global_load_ubyte": 8, "global_load_sbyte_d16": 8, "global_load_b128": 128,
    "buffer_load_b32": 32, "buffer_load_u16": 16, "global_load_d16_hi_b16": 16, "buffer_load_d16_u8": 8,
    "global_load_tr_b128": 128, "global_load_lds_dwordx4": 128, "s_load_dwordx8": 0, "ds_read_b128": 0,
    "buffer_store_dwordx4": 0, "v_add_f32": 0,
}  # fmt: skip


def test_widths_of_loads():
    assert {mnemonic: load_bits(mnemonic) for mnemonic in WIDTHS} == WIDTHS


def program(*lines: str) -> list[Instruction]:
    """Return instructions of 4 bytes from lines `name` or `branch>target line`."""
    found = []
    for number, line in enumerate(lines):
        mnemonic, _, target = line.partition(">")
        found.append(Instruction(4 * number, mnemonic, 4 * int(target) if target else None))
    return found


def test_loops_are_natural_ones():
    code = program("flat_load_dword", "flat_load_ubyte", "s_cbranch_scc1>1", "s_nop", "v_sub", "s_cbranch_vccz>0")
    assert loops_of(code) == [(code[1],), tuple(code[:5])]
    assert hot_loops(code) == [(code[1],)], "the innermost one"
    behind = program("s_branch>3", "global_load_ubyte", "s_branch>4", "s_cbranch_scc0>1", "s_endpgm")
    assert loops_of(behind) == [], "what is done on one way only may lie before its branch"
    rotated = program("s_branch>2", "global_load_dword", "v_add", "s_cbranch_scc1>5", "s_branch>1", "s_endpgm")
    assert loops_of(rotated) == [tuple(rotated[1:4])], "come to in its middle"
    code[1] = Instruction(4, "v_add")
    assert hot_loops(code) == [tuple(code[:5])], "the innermost one that loads"


def test_facts_are_those_of_the_hot_loops():
    loads, products = "global_load_dwordx4", "v_mfma_f32_32x32x8_f16"
    plain = ("buffer_load_ubyte", "s_cbranch_vccnz>0")
    assert code_facts(program(*plain, "s_nop", "s_cbranch_scc0>2")) == CodeFacts(8, "", 1), "that loads"
    both = program(*plain, loads, products, "buffer_load_dwordx2", products, "s_cbranch_scc1>2", "global_load_dword")
    assert code_facts(both) == CodeFacts(64, products, 4), "that has matrix instructions"
    assert code_facts(program("v_add", loads, "s_endpgm")) == CodeFacts(128, "", 3), "all, where there is no loop"
    assert code_facts(program("v_add", "s_cbranch_scc1>0", loads)) == CodeFacts(128, "", 3), "or it does not load"
    assert code_facts(program("v_add", "s_endpgm")) == CodeFacts(None, "", 2)


def code_of(folder: Path) -> tuple[records.Index, Code]:
    index = read_index(folder)
    return index, Code(index, lambda key: (folder / index.blobs[key].file).read_bytes())


def test_instructions_of_a_bundle(rows_bundle: Path):
    index, code = code_of(rows_bundle)
    variant = next(v for v in index.variants if v.aligned and v.axis_values["BLOCK"] == 4096)
    image = (rows_bundle / index.blobs[variant.code].file).read_bytes()
    found = read_instructions(image, variant.symbol)
    assert found[-1].mnemonic in ("s_endpgm", "s_nop") and {item.pc for item in found} >= {0}
    assert found[-1].pc < variant.resources.code_bytes
    assert code.facts(variant).load_bits == 128 and code.facts(variant).matrix == ""
    with pytest.raises(BundleError, match="no machine code for kernel 'absent'"):
        read_instructions(image, "absent")


def test_the_code_of_other_architectures_is_not_read(rows_bundles: Path):
    index, code = code_of(rows_bundles / "rows-sm_90")
    with pytest.raises(BundleError, match="instructions of cubins is not supported"):
        code.facts(index.variants[0])
    (requirement,) = parse_requirements(["spills == 0"], index.ops)
    with pytest.raises(ExpressionError, match="needs spills, which has no value here"):
        list(unmet_requirements(index, [requirement], code))


def unmet(index: records.Index, *texts: str) -> list[str]:
    """Return the requirements that variants fail without reading their code."""

    def image_of(key: str) -> bytes:
        raise AssertionError(f"{key} was read")

    found = unmet_requirements(index, parse_requirements(texts, index.ops), Code(index, image_of))
    return list(unmet_lines(index, list(found)))


def test_requirements_of_registers(sample: records.Index):
    """The sample has 74 variants; 6 of `reduce` spill, and `swap` has no axis WIDTH."""
    recorded = tuple(variant for variant in sample.variants if variant.resources.vgpr_spills is not None)
    lines = unmet(msgspec.structs.replace(sample, variants=recorded), "spills == 0", "scratch_bytes <= 68")
    assert lines[0] == "spills == 0: not met by" and len(lines) == 8
    assert lines[-1] == f"6 of {len(recorded)} variants fail"
    assert lines[1] == "  reduce[float16 WEIGHTED WIDTH=4096] aligned, reduce_rows wide: spills = 17"
    assert unmet(sample, "vgprs > 0", "config != ''", "op == 'swap' or op == 'reduce'") == [
        "every variant meets the requirements"
    ]
    assert unmet(sample, "WIDTH == 0")[-1].startswith("72 of 74"), "swap, which has no WIDTH, is not held to it"


@pytest.mark.parametrize(
    ("text", "message"),
    [("spils == 0", "undefined name 'spils'; did you mean 'spills'"), ("op + 1", "text can only be compared"),
     ("spills = 0", "is not an expression")],
)  # fmt: skip
def test_wrong_requirements(sample: records.Index, text: str, message: str):
    with pytest.raises(ExpressionError, match=message):
        parse_requirements([text], sample.ops)


def test_what_loads_nothing_loads_wide_enough(rows_bundle: Path, monkeypatch: pytest.MonkeyPatch):
    index, code = code_of(rows_bundle)
    monkeypatch.setattr(Code, "facts", lambda self, variant: CodeFacts(None, "", 1))
    assert not list(unmet_requirements(index, parse_requirements([f"load_bits > {2**62}"], index.ops), code))
