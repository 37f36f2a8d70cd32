"""`aotbundle selftest --op`: which cases it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from aot_runtime.command.main import main


@pytest.mark.parametrize("ops", ((), ("accumulate",), ("row_sums", "accumulate")), ids=str)
def test_the_cases_of_the_ops_that_are_named(bundles: Path, ops: tuple[str, ...]):
    arguments = ["selftest", str(bundles / "small-gfx942"), "--device", "emulator", "--json"]
    result = CliRunner().invoke(main, [*arguments, *(f"--op={op}" for op in ops)], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    found = {item["op"] for item in json.loads(result.stdout)["results"]}
    assert found == (set(ops) or {"affine", "row_sums", "accumulate", "scale_segments"})


def test_an_op_that_is_not_there(bundles: Path):
    path = str(bundles / "small-gfx942")
    result = CliRunner().invoke(main, ["selftest", path, "--device", "emulator", "--op=accumulate", "--op=row_sum"])
    assert result.exit_code == 2 and "did you mean 'row_sums'?" in result.output
