"""Packed weights: their layout, compared with one written by hand, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from aot_models.quantise import (
    AWQ_ORDER,
    NF4,
    Packed,
    from_awq,
    from_compressed_tensors,
    from_gptq,
    pack_int4,
    prepack,
    to_int4,
    to_int8,
    to_nf4,
    unpack_int4,
)

RNG = np.random.default_rng(0)
CODES = RNG.integers(0, 16, (64, 24), dtype=np.uint8)  # [k, n]
ZEROS = RNG.integers(0, 16, (2, 24), dtype=np.uint8)
SCALES = RNG.uniform(0.5, 1, (2, 24)).astype(np.float16)


def words(nibbles: np.ndarray, order: tuple[int, ...] = tuple(range(8))) -> np.ndarray:
    """Pack nibbles [.., n] into int32 [.., n / 8]: nibble order[i] of a word is its neighbour i."""
    eights = nibbles.reshape(*nibbles.shape[:-1], -1, 8).astype(np.uint32)
    return sum(eights[..., i] << np.uint32(4 * order[i]) for i in range(8)).astype(np.uint32).view(np.int32)


def bytes_in_words(codes: np.ndarray) -> np.ndarray:
    """Pack codes of 8 bits [.., n] into int32 [.., n / 4], the first lowest."""
    fours = codes.reshape(*codes.shape[:-1], -1, 4).astype(np.uint32)
    return sum(fours[..., i] << np.uint32(8 * i) for i in range(4)).astype(np.uint32).view(np.int32)


def codes_of(packed: Packed, k: int) -> np.ndarray:
    """Unpack by the layout's definition: columns 2i and 2i + 1 are the low and the high half of byte i."""
    codes = [(packed.w[:, column // 2] >> 4 * (column % 2)) & 15 for column in range(k)]
    return np.array(codes)


def test_two_codes_share_a_byte_the_even_one_low():
    packed = pack_int4(np.array([[1, 2, 3], [15, 0, 8]], np.uint8))
    np.testing.assert_array_equal(packed, [[0x21, 0x03], [0x0F, 0x08]])


def test_gptq_of_8_bits_that_does_not_fit_is_refused():
    codes, zeros = (RNG.integers(1, 256, shape, dtype=np.uint8) for shape in ((64, 24), (2, 24)))
    qweight, qzeros = bytes_in_words(codes.T).T, bytes_in_words(zeros - 1)
    with pytest.raises(ValueError, match="a zero of 8-bit codes is 256"):
        from_gptq(qweight, np.full_like(qzeros, -1), SCALES, bits=8)
    with pytest.raises(ValueError, match=r"symmetric checkpoint.*; 128 is needed"):
        from_gptq(qweight, np.full_like(qzeros, 0x7E7E7E7E), SCALES, symmetric=True, bits=8)
    with pytest.raises(ValueError, match="codes of 3 bits; 4 and 8 are supported"):
        from_gptq(qweight, qzeros, SCALES, bits=3)


@pytest.mark.parametrize("zeros", (None, ZEROS), ids=("symmetric", "zeros"))
@pytest.mark.parametrize("bits", (4, 8))
def test_compressed_tensors_has_inputs_in_words_and_zeros_by_output(bits: int, zeros: np.ndarray | None):
    """Codes and zeros are stored less what makes them unsigned; the last word of a row has places to spare."""
    middle, pack, short = 1 << bits - 1, words if bits == 4 else bytes_in_words, 62
    by_word = None if zeros is None else pack(zeros).T
    found = from_compressed_tensors(pack(CODES.T), SCALES.T, np.array([24, short]), by_word, bits=bits)
    codes = codes_of(found, short) if bits == 4 else found.w.T.astype(int) + middle
    np.testing.assert_array_equal(codes, CODES[:short])
    wanted = np.full((2, 24), middle) if zeros is None else zeros
    np.testing.assert_array_equal(found.zeros.astype(int) + (middle if bits == 8 else 0), wanted)
    np.testing.assert_array_equal(found.scales, SCALES)
    assert (found.group_size, found.order) == (31, None)


@pytest.mark.parametrize(
    "change, message",
    (
        ({"weight_packed": words(CODES.T)[:, :7]}, r"weight_packed is int32 \[24, 7\]; int32 \[24, 8\] is needed"),
        ({"weight_scale": SCALES}, r"weight_scale is float16 \[2, 24\]; floats \[24, groups\]"),
        ({"weight_shape": np.array([24.0, 64])}, "weight_shape is float64"),
        ({"weight_zero_point": words(ZEROS)}, "weight_zero_point"),
        ({"weight_g_idx": np.full(64, 2)}, "g_idx"),
        ({"weight_g_idx": np.full(64, -1)}, "g_idx"),
    ),
)
def test_weights_of_compressed_tensors_that_do_not_fit_are_refused(change: dict[str, np.ndarray], message: str):
    given = {"weight_packed": words(CODES.T), "weight_scale": SCALES.T, "weight_shape": np.array([24, 64]), **change}
    with pytest.raises(ValueError, match=message):
        from_compressed_tensors(**given)


@pytest.mark.parametrize("word, less_one", ((0x77777777, True), (0x88888888, False)))
def test_zeros_of_the_other_version_of_gptq_are_noticed(word: int, less_one: bool):
    """Symmetric checkpoints are refused if their words are those of the other version for a zero of 8."""
    zeros = np.full((2, 3), word, np.uint32).view(np.int32)
    found = from_gptq(words(CODES.T).T, zeros, SCALES, None, less_one, symmetric=True)
    assert found.zeros is not None and (found.zeros == 8).all()
    with pytest.raises(ValueError, match=r"zeros_are_less_one=.*other version"):
        from_gptq(words(CODES.T).T, zeros, SCALES, None, not less_one, symmetric=True)


@pytest.mark.parametrize(
    "change, message",
    (
        ({"qzeros": words(ZEROS)[:1]}, "qzeros"),
        ({"scales": SCALES[:, :8]}, "scales"),
        ({"qzeros": np.zeros((3, 3), np.int32), "scales": np.ones((3, 24), np.float16)}, "do not divide"),
        ({"g_idx": np.zeros(64, np.int32)}, "g_idx"),
        ({"qweight": words(CODES.T).T.astype(np.int64)}, "qweight is int64"),
        ({"qweight": words(CODES.T).T[:, :12], "scales": SCALES[:, :12]}, "multiple of 8"),
    ),
)
def test_checkpoints_that_do_not_fit_are_refused(change: dict[str, np.ndarray], message: str):
    given = {"qweight": words(CODES.T).T, "qzeros": words(ZEROS), "scales": SCALES, **change}
    with pytest.raises(ValueError, match=message):
        from_gptq(**given)


@pytest.mark.parametrize(
    "index, message",
    (
        (np.full(64, 2**31 - 1, np.int32), r"g_idx has groups from 2147483647 to 2147483647; the scales have 2"),
        (np.where(np.arange(64) == 3, 2**40, 0), r"g_idx has groups from 0 to 1099511627776"),
        (np.full(64, 2**63, np.uint64), "g_idx has groups from 9223372036854775808"),
        (np.arange(64, dtype=np.float32) // 32 + 0.5, r"g_idx is float32 \[64\]; integers \[64\] are needed"),
        ((np.arange(64) // 32)[::-1].reshape(2, 32), r"g_idx is int64 \[2, 32\]"),
        (np.zeros((), np.int32), r"g_idx is int32 \[\]"),
        (np.zeros(0, np.int32), r"g_idx is int32 \[0\]"),
        (np.array(["a"] * 64), "g_idx is <U1"),
        (np.array([None] * 64), "g_idx is object"),
        ([0] * 64, "g_idx is a list"),
        ((np.arange(64) > 40).astype(int), r"has groups of \[23, 41\] weights; 2 groups of 32 are needed"),
    ),
)
def test_an_order_is_held_to_its_groups_before_anything_is_allocated(index: np.ndarray, message: str):
    """Otherwise groups up to a wrong number would be allocated: 16 GiB, or 8 TiB."""
    with pytest.raises(ValueError, match=message):
        from_gptq(words(CODES.T).T, words(ZEROS), SCALES, index)
    with pytest.raises(ValueError, match=message):
        from_compressed_tensors(words(CODES.T), SCALES.T, np.array([24, 64]), None, index)


ODD = (
    np.zeros(24, np.int32), np.int32(1).reshape(()), np.zeros((2, 2, 2), np.int32), np.zeros((0, 0), np.int32),
    np.zeros((2, 24), complex), np.zeros((2, 24), "V2"), np.zeros((2, 24), "S2"), np.zeros((2, 24), bool), None, [[1]],
)  # fmt: skip


@pytest.mark.parametrize("odd", ODD, ids=[f"odd {number}" for number in range(len(ODD))])
def test_arrays_of_any_kind_are_refused(odd: np.ndarray):
    gptq = {"qweight": words(CODES.T).T, "qzeros": words(ZEROS), "scales": SCALES}
    awq = {"qweight": words(CODES, AWQ_ORDER), "qzeros": words(ZEROS, AWQ_ORDER), "scales": SCALES}
    packed = {"weight_packed": words(CODES.T), "weight_scale": SCALES.T, "weight_shape": np.array([24, 64])}
    for make, given in ((from_gptq, gptq), (from_awq, awq), (from_compressed_tensors, packed)):
        make(**given)
        for name in given:
            with pytest.raises(ValueError, match=r" (is|are) needed|do not divide"):
                make(**{**given, name: odd})


def test_a_shape_that_is_none():
    for shape in ([-24, 64], [24, -64], [24, 2**62], [2**62, 64], [0, 0]):
        with pytest.raises(ValueError, match="weight_packed"):
            from_compressed_tensors(words(CODES.T), SCALES.T, np.array(shape))


def test_rounded_weights_are_within_half_a_step():
    weight = RNG.standard_normal((6, 128)).astype(np.float32)
    four, eight = to_int4(weight, 32, np.float32), to_int8(weight, dtype=np.float32)
    assert four.zeros is not None
    zeros, scales = (np.repeat(x.T, 32, axis=1) for x in (four.zeros.astype(np.int32), four.scales))
    assert (np.abs((codes_of(four, 128).T - zeros) * scales - weight) <= 0.5001 * scales + 1e-6).all()
    assert (np.abs(eight.w * eight.scales.T - weight) <= 0.5001 * eight.scales.T).all()


def test_nf4_takes_the_nearest_value_of_its_codebook():
    weight = RNG.standard_normal((3, 64)).astype(np.float32)
    found = to_nf4(weight, 64, np.float32)
    relative = weight / np.abs(weight).max(1, keepdims=True)
    nearest = np.abs(relative[..., None] - NF4).argmin(-1)
    np.testing.assert_array_equal(codes_of(found, 64).T, nearest)
    assert found.arguments()["codebook"] is found.codebook and "codebook" not in to_int4(weight, 64).arguments()
    with pytest.raises(ValueError, match="do not divide k"):
        to_int4(np.zeros((2, 48), np.float32), 32)


def test_prepacked_words_hold_what_a_lane_of_a_matrix_unit_needs():
    """Check code by code: the words of a lane, and its scales and zeros, are contiguous."""
    n, k = 128, 192
    codes, by_output = RNG.integers(0, 16, (n, k), dtype=np.uint8), RNG.integers(0, 17, (3, n)).astype(np.uint8)
    scales = RNG.uniform(0.5, 1, (3, n)).astype(np.float16)
    found = prepack(Packed(pack_int4(codes), scales, by_output, 64))
    words_of_lanes = found.w.view(np.uint32).reshape(n // 64, k // 64, 4, 32, 2, 2)
    of = np.zeros((n, k), np.uint8)
    for (tile, tile_k, piece, lane, h, r), word in np.ndenumerate(words_of_lanes):
        output = 64 * tile + 16 * piece + 8 * r + lane // 4
        for low in (0, 1):
            for i in (0, 1):
                for j in (0, 1):
                    at = 64 * tile_k + 32 * h + 16 * i + 8 * j + 2 * (lane % 4) + low
                    of[output, at] = int(word) >> 4 * (4 * low + 2 * i + j) & 15
    np.testing.assert_array_equal(of, codes)
    for name, plain in (("scales", scales), ("zeros", by_output)):
        for output in range(n):
            place = output % 8 * 8 + output % 64 // 8
            np.testing.assert_array_equal(getattr(found, name)[:, output // 64, place], plain[:, output])
    assert (found.w.shape, found.group_size, found.codebook) == ((2, 48, 32), 64, None)


def test_prepacked_words_of_8_bits_hold_four_codes():
    """Check code by code that signed codes and zeros become unsigned."""
    n, k = 64, 128
    codes, by_output = (RNG.integers(-128, 128, shape, dtype=np.int8) for shape in ((n, k), (2, n)))
    found = prepack(Packed(codes, np.ones((2, n), np.float16), by_output, 64))
    of = np.zeros((n, k), int)
    for (tile_k, piece, h, lane, r, i), word in np.ndenumerate(found.w.view(np.uint32).reshape(2, 4, 2, 32, 2, 2)):
        for j, low in np.ndindex(2, 2):
            at = 64 * tile_k + 32 * h + 16 * i + 8 * j + 2 * (lane % 4) + low
            of[16 * piece + 8 * r + lane // 4, at] = int(word) >> 8 * (2 * j + low) & 255
    np.testing.assert_array_equal(of - 128, codes)
    assert found.zeros is not None and found.w.shape == (1, 64, 32)
    places = [output % 8 * 8 + output // 8 for output in range(n)]
    np.testing.assert_array_equal(found.zeros[:, 0, places].astype(int) - 128, by_output)


@pytest.mark.parametrize(
    "n, k, size, message", ((72, 64, 64, "72 outputs"), (64, 96, 96, "k = 96"), (64, 128, 32, "groups of 32"))
)
def test_what_has_no_whole_tiles_is_not_prepacked(n: int, k: int, size: int, message: str):
    with pytest.raises(ValueError, match=message):
        prepack(to_int4(RNG.standard_normal((n, k)), size))


def test_act_order_and_codes_of_other_dtypes_are_not_prepacked():
    weights = to_int4(RNG.standard_normal((64, 64)), 64)
    with pytest.raises(ValueError, match="act-order"):
        prepack(replace(weights, order=np.arange(64, dtype=np.int32)[::-1]))
    for w in (weights.w.astype(np.int16), weights.w[:, :16], weights.w.view(np.int8)):
        with pytest.raises(ValueError, match="has to be uint8"):
            prepack(replace(weights, w=w))


def with_zeros(weight: np.ndarray, size: int) -> Packed:
    """A format of 8 bits."""
    return replace(to_int8(weight, size), zeros=np.zeros((weight.shape[1] // size, len(weight)), np.int8))


@pytest.mark.parametrize("make, dtype", ((to_int4, "uint8"), (with_zeros, "int8")))
def test_parts_that_do_not_fit_are_not_prepacked(make: Callable[..., Packed], dtype: str):
    weights = make(RNG.standard_normal((64, 128)), 64)
    prepack(weights)
    for change, message in (
        ({"zeros": weights.zeros[:1]}, rf"zeros is {dtype} \[1, 64\]; {dtype} \[2, 64\] is needed"),
        ({"zeros": weights.zeros.astype(np.int32)}, "zeros is int32"),
        ({"zeros": weights.zeros.view({"int8": np.uint8, "uint8": np.int8}[dtype])}, "zeros is u?int8"),
        ({"zeros": weights.zeros[0]}, "zeros is"),
        ({"scales": weights.scales[0]}, r"scales is float16 \[64\]; floats \[groups, n\] are needed"),
        ({"scales": weights.scales.astype(np.int32)}, "scales is int32"),
        ({"scales": weights.scales[:, :63]}, "w is "),
        ({"scales": weights.scales[:1]}, "w is "),
        ({"group_size": 32}, "w is "),
        ({"group_size": 0}, "group_size is 0; an integer from 1 on is needed"),
        ({"group_size": 64.0}, r"group_size is 64\.0"),
        ({"w": weights.w.ravel()}, "w is "),
        ({"w": None}, "w is a NoneType"),
        ({"codebook": np.zeros(15, np.float32)}, r"codebook is float32 \[15\]"),
        ({"codebook": np.zeros(16, np.int8)}, "codebook is int8"),
    ):
        with pytest.raises(ValueError, match=message):
            prepack(replace(weights, **change))


def test_numbers_and_codes_that_cannot_be_packed():
    for weight in (
        np.full((2, 64), np.nan),
        np.full((2, 64), -np.inf),
        np.full((2, 64), 1e12),
        np.zeros(64),
        np.zeros((2, 64), "S1"),
        None,
    ):
        for pack in (to_int4, to_int8, to_nf4):
            with pytest.raises(ValueError, match="weight "):
                pack(weight, 64)
    with pytest.raises(ValueError, match="a code is 16; 0 to 15 are allowed"):
        pack_int4(np.array([[1, 16]], np.uint8))
    with pytest.raises(ValueError, match=r"packed is uint8 \[1, 2\]; uint8 \[n, 3\] is needed"):
        unpack_int4(np.zeros((1, 2), np.uint8), 5)
