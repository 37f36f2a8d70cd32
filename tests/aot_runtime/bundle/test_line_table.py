"""The line table of a code object agrees with pyelftools; an invalid one is empty."""

import io
import random
import struct
from pathlib import Path

import pytest

from aot_emulator import EmulatorDriver, Options
from aot_emulator.errors import EmulationError
from aot_runtime.bundle.codeobject import read_code_object
from aot_runtime.bundle.elf import Elf
from aot_runtime.bundle.line_table import LineTable, read_line_table
from tests.support.building.builds import Project
from tests.support.building.projects import KERNELS

FILTER = ("--filter", "block=16,dtype=float16")


def image_of(folder: Path, *options: str) -> bytes:
    project = Project(folder)
    result = project.build(*FILTER, *options)
    assert result.exit_code == 0, result.output
    return next(project.folder_of().glob("code/*")).read_bytes()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return image_of(tmp_path_factory.mktemp("lines"), "--line-info")


def test_every_row_is_as_pyelftools_reads_it(image: bytes):
    elffile = pytest.importorskip("elftools.elf.elffile")
    unit, *others = elffile.ELFFile(io.BytesIO(image)).get_dwarf_info().iter_CUs()
    assert not others
    program = unit.dwarfinfo.line_program_for_CU(unit)
    states = [entry.state for entry in program.get_entries() if entry.state is not None]
    expected = {state.address: 0 if state.end_sequence else state.line for state in states}
    table = read_line_table(image)
    assert list(table.addresses) == sorted(expected)
    assert {at: line for at, (_, line) in zip(table.addresses, table.places, strict=True)} == expected
    assert {file for file, line in table.places if line} == {"k.py"}


def test_an_instruction_has_the_line_that_it_is_made_of(image: bytes):
    table = read_line_table(image)
    lines = KERNELS.splitlines()
    found = {lines[line - 1].strip().partition("(")[0] for file, line in table.places if file and line}
    assert {"tl.store", "value = tl.load"} <= found
    start, end = table.addresses[0], table.addresses[-1]
    assert table.place(start) == table.place(start + 1) and table.place(start - 1) is table.place(end) is None


def test_an_error_of_the_emulator_names_the_line(image: bytes):
    driver = EmulatorDriver(Options(strict=True))
    (kernel,) = read_code_object(image).kernels
    function = driver.get_function(0, driver.load_module(0, image), kernel.symbol, 0)
    launch = driver.prepare(0, function, (1, 1, 1), kernel.max_workgroup_size, 0, bytes(kernel.kernarg_bytes))
    launch.kernargs[-40:] = struct.pack("<10i", *[1] * 10)  # extents and strides; addresses are null
    with pytest.raises(EmulationError) as raised:
        launch.run(0)
    file, _, line = raised.value.source.partition(":")
    assert file == "k.py" and "tl.load" in KERNELS.splitlines()[int(line) - 1]
    assert f", at {raised.value.source}" in str(raised.value)


def test_without_line_info_there_are_no_lines(tmp_path: Path):
    assert read_line_table(image_of(tmp_path)) == LineTable((), ())


def test_damaged_tables_give_some_lines_or_none(image: bytes):
    section = Elf(image).section(".debug_line")
    assert section is not None
    rng = random.Random(0)
    for _ in range(500):
        damaged = bytearray(image)
        for _ in range(rng.randrange(1, 4)):
            damaged[section.offset + rng.randrange(section.size)] = rng.randrange(256)
        assert len(read_line_table(bytes(damaged)).addresses) <= section.size
    for size in range(0, section.size, 7):
        read_line_table(image[: section.offset + size])
