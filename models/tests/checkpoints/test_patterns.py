"""Regular expressions of checkpoints match the same as Python's, in time proportional to their length."""

from __future__ import annotations

import re
import time

import pytest

from aot_models.checkpoints.formats import format_of
from aot_models.checkpoints.patterns import Budget, Listed, Matching, Subject, compiled
from aot_models.checkpoints.scheme import Plain
from aot_models.checkpoints.values import CheckpointError, Values

VALUES = Values({})
NAMES = ("model.layers.0.mlp.up_proj", "model.layers.11.self_attn.q_proj", "lm_head", "model.layers.7.mlp.gate", "a\n")
EXPRESSIONS = (
    r".*mlp\.up_proj$", r"model.layers\.\d+\..*", r"(?:a|lm)_head", r"[^.]*\.layers\.[0-7]\.", r"lm_hea(d|x){1,2}",
    r".*gate\Z", r"(?!.*mlp).*proj", r"(?=lm).*", r".*\bmlp\b", r"^lm_head$", r"a$", r"a\Z", r"a.", r"\Alm", r"(a*)*",
    r"\w{3,}?\.(\w+\.)*\d", r"(?P<x>.)*", "", r"[\w.]{0,5}", r".{26}$", r".{25}$", r"\D\S\W?", r"x{0}lm",
    r"(|lm)(_head|)", r"(?:.\B)*.",
)  # fmt: skip


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_matches(expression: str):
    """At each place where a match may end, Python finds one too, if the rest of the name has to follow."""
    pattern = compiled(expression, Budget(VALUES))
    for name in NAMES:
        ends = pattern.ends(Subject(name, Budget(VALUES)))
        for end in range(len(name) + 1):
            there = re.match(rf"(?:{expression})(?=(?s:.{{{len(name) - end}}})\Z)", name)
            assert bool(ends >> end & 1) == bool(there), (name, end)


@pytest.mark.parametrize("expression", ("(.|.)*X", "((a*)*)*X", "(.*)*(.*)*(.*)*X", "((.{1,30}){1,30}){1,30}X"))
def test_nothing_is_tried_again_and_again(expression: str):
    """Python's own module would take longer than the age of the universe; these end by their budget."""
    start = time.process_time()
    try:
        assert "model.layers.0.mlp.experts.100.up_proj" * 3 not in Matching(Budget(VALUES), [expression])
    except CheckpointError as error:
        assert "take too long to match" in str(error)
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    "expression",
    (
        "(", "[", "*", "\\", r"(?P<x>.)(?P=x)", "(?<=a)b", "(?i)a", "(?>a)", "a*+", "(" * 40 + ")" * 40, "(" * 5000,
        "(a)" * 400, "a{99999999999}",
    ),
)  # fmt: skip
@pytest.mark.parametrize("method", ({"quant_method": "awq", "bits": 4, "group_size": 64}, {"quant_method": "fp8"}))
def test_expressions_that_are_refused(method: dict[str, object], expression: str):
    with pytest.raises(CheckpointError, match=r"config\.json: the regular expression"):
        format_of(Values({"quantization_config": {**method, "modules_to_not_convert": ["lm_head", expression]}}))


def test_names_and_expressions_of_a_list():
    listed = Listed(VALUES, ["model.layers.1", r"model.*\.mlp.gate", "q_proj"])
    left_out = ("model.layers.1.mlp", "model.layers.1", "model.layers.3.mlp.gate", "x.q_proj")
    assert all(name in listed for name in left_out)
    assert not any(name in listed for name in ("model.layers.11.mlp", "model.layers.3.mlp.gate_proj", "x.q_proj_2"))


@pytest.mark.parametrize(
    "found",
    (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "modules_to_not_convert": [1]},
        {"quant_method": "fp8", "modules_to_not_convert": "lm_head"},
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": ["-:x"]},
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "modules_in_block_to_quantize": ["mlp"]},
        {"quant_method": "gptq", "bits": "4", "group_size": 64},
        {"quant_method": "gptq", "bits": 4, "group_size": 64, "desk_act": True},
        {"quant_method": ["gptq"]},
        {"quant_method": "compressed-tensors", "config_groups": [], "ignore": []},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {"num_bits": [4]}}}},
        {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": {}, "targets": [3]}}},
        [],
    ),
)
def test_configs_of_formats_of_other_types(found: object):
    if found:
        with pytest.raises(CheckpointError):
            format_of(Values({"quantization_config": found}))
    else:
        assert isinstance(format_of(Values({"quantization_config": found}))("x"), Plain)


def test_many_names_and_targets_do_not_take_for_ever():
    targets = {f"g{number}": {"weights": {}, "targets": [f"re:a{{{number}}}.*"]} for number in range(4000)}
    for found in (
        {"quant_method": "fp8", "modules_to_not_convert": [f"{number}.({'x' * 400}|y)" for number in range(16000)]},
        {"quant_method": "fp8", "modules_to_not_convert": ["x" * 900 + str(number) for number in range(16000)]},
        {"quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["re:(.|.)*X"] * 16000,
         "config_groups": {name: {**group, "weights": {"num_bits": 4, "strategy": "channel"}}
                           for name, group in targets.items()}},
    ):  # fmt: skip
        start = time.process_time()
        with pytest.raises(CheckpointError, match="take too long to match"):
            scheme_of = format_of(Values({"quantization_config": found}))
            for number in range(200_000):
                scheme_of(f"model.layers.{number}.mlp.up_proj")
        assert time.process_time() - start < 10
