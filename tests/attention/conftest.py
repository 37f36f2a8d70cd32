"""Bundles of the variants that the cases need, for gfx942, on the emulator in strict mode."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from attention import latent as latent_cases
from attention import quantised as quantised_cases
from attention.building import built_for
from attention.cases import EDGES, SCHEDULES, Call, make_call, pairwise

from aot_runtime import Bundle


@pytest.fixture(scope="session")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the pairwise cases need."""

    def calls() -> Iterable[Call]:
        return (make_call(case) for case in (*pairwise(), *EDGES, *SCHEDULES))

    return built_for(tmp_path_factory, "attention", calls, "attention_cases")


@pytest.fixture(scope="session")
def quantised(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the cases of 8-bit tensors need."""

    def calls() -> Iterable[Call]:
        return (quantised_cases.make_call(case, "gfx942") for case in quantised_cases.CASES)

    return built_for(tmp_path_factory, "attention_quantised", calls, "attention_quantised_cases")


@pytest.fixture(scope="session")
def latent(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """What the cases of latent attention need."""

    def calls() -> Iterable[Call]:
        return (latent_cases.make_call(case) for case in latent_cases.CASES)

    return built_for(tmp_path_factory, "attention", calls, "attention_latent_cases")
