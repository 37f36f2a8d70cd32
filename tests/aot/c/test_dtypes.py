"""The dtypes of the C interface are those of the table, whatever the order in which the header lists them."""

from __future__ import annotations

import re
from pathlib import Path

from aot.c.api import header_text
from aot.c.dtypes import DTYPE_NUMBERS, enumerator
from aot.c.source import source_text
from aot_runtime.contract.dtypes import DTYPES, SCALAR_TYPES
from tests.support.c_interface.calling import run_c
from tests.support.sample_index import sample_index

_ROW = 'printf("%s %d %d %s %s\\n", "{name}", {c}, (int)aot_itemsize({c}), aot_dtype_name({c}), aot_texts[{c}]);'
_SCALAR = 'printf("%s %s %d %d %d\\n", "{name}", {c}.name, {c}.size, {c}.is_signed, (int){c}.kind);'


def printed(folder: Path, lines: list[str]) -> list[list[str]]:
    """Return the lines that a program with the sample's source prints."""
    body = "\n    ".join(lines)
    text = run_c(folder, sample_index(), f"int main(void)\n{{\n    {body}\n    return 0;\n}}\n")
    return [line.split() for line in text.splitlines()]


def test_each_constant_has_the_number_size_and_names_of_its_dtype(tmp_path: Path):
    found = printed(tmp_path, [_ROW.format(name=name, c=enumerator(name)) for name in DTYPES])
    # The constants as a person would write them, so that a generator that mixes up two is noticed.
    assert [enumerator(name) for name in ("int16", "float8_e5m2fnuz")] == ["AOT_INT16", "AOT_FLOAT8_E5M2FNUZ"]
    assert found == [[name, str(DTYPE_NUMBERS[name]), str(row.size), name, name] for name, row in DTYPES.items()]


def test_each_scalar_type_has_the_size_and_kind_of_its_dtype(tmp_path: Path):
    rows = [_SCALAR.format(name=name, c=f"aot_scalar_types[{enumerator(name)}]") for name in SCALAR_TYPES]
    kinds = printed(tmp_path, [*rows, 'printf("%d %d %d\\n", AOT_KIND_BOOL, AOT_KIND_INT, AOT_KIND_FLOAT);'])
    code = dict(zip(("bool", "int", "float"), kinds.pop(), strict=True))
    assert kinds == [
        [name, name, str(row.size), str(int(row.kind == "int")), code[row.kind.removeprefix("u")]]
        for name, row in SCALAR_TYPES.items()
    ]


def test_headers_with_other_dtypes_cannot_be_used_in_one_program(monkeypatch):
    def version() -> str:
        return re.findall(r"#define AOT_TYPES (0x[0-9a-f]{8})\n", header_text(sample_index()))[0]

    before = version()
    numbers = dict(DTYPE_NUMBERS)
    numbers["int16"], numbers["uint16"] = numbers["uint16"], numbers["int16"]
    monkeypatch.setattr("aot.c.dtypes.DTYPE_NUMBERS", numbers)
    assert version() != before


def test_the_source_of_a_bundle_lists_no_dtype_by_hand():
    """Support code takes each constant that it names from the table; a list of them would be a second table."""
    folder = Path(__file__).parents[3] / "aot/c/support"
    names = re.compile(rf"\b({'|'.join(map(enumerator, DTYPES))})\b")
    assert [file.name for file in folder.glob("*.h") if names.search(file.read_text())] == []
    assert names.search(source_text(sample_index()))
