"""Log probabilities of tokens."""

import triton
import triton.language as tl

from kernels.common.softmax import LN_2, LOG2_E
from kernels.common.tensors import Matrix


@triton.jit
def token_logprobs(logits: Matrix, tokens, out, cols, STEP: tl.constexpr):
    """out[i] = log(softmax(logits[i])[tokens[i]]), in fp32. Grid: (rows,).

    logits: [rows, cols], columns contiguous; tokens: int32 [rows]; out: fp32 [rows]. A token without a column has the
        probability 0.
    """
    row = tl.program_id(0)
    source = logits.ptr + row * logits.stride_rows
    lane_max = tl.full([STEP], float("-inf"), tl.float32)
    lane_sum = tl.zeros([STEP], tl.float32)
    for start in range(0, cols, STEP):
        columns = start + tl.arange(0, STEP)
        values = tl.load(source + columns, mask=columns < cols, other=float("-inf")).to(tl.float32)
        new_max = tl.maximum(lane_max, values)
        origin = tl.where(new_max == float("-inf"), 0.0, new_max)
        lane_sum = lane_sum * tl.exp2((lane_max - origin) * LOG2_E) + tl.exp2((values - origin) * LOG2_E)
        lane_max = new_max
    row_max = tl.max(lane_max, 0)
    behind = tl.where(lane_max == float("-inf"), 0.0, lane_max - row_max)
    total = tl.sum(lane_sum * tl.exp2(behind * LOG2_E), 0)
    token = tl.load(tokens + row)
    known = (token >= 0) & (token < cols)
    logit = tl.load(source + token, known, float("-inf")).to(tl.float32)
    tl.store(out + row, (logit - row_max) - tl.log2(total) * LN_2)
