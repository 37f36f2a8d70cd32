/* ---- Overlap in memory: the rule of aot_runtime/contract/overlap.py ---------------------------------------------- */

/* First byte of an array and end, relative to its address; both are 0 if it has no elements. */
typedef struct aot_reach { int64_t low, high; } aot_reach;

/* The bytes that are reached along the dims whose strides are not multiples of `period`; along all dims if it is 0.
 * `aot_measure` found that sums of extents times strides fit. */
static aot_reach aot_reach_of(const aot_tensor *tensor, int64_t period)
{
    const int64_t itemsize = aot_itemsize(tensor->dtype);
    aot_reach reach = {0, 0};
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) return reach;
    reach.high = itemsize;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 1 || (period != 0 && tensor->strides[i] * itemsize % period == 0)) continue;
        int64_t end = (tensor->shape[i] - 1) * tensor->strides[i] * itemsize;
        if (end < 0) reach.low += end; else reach.high += end;
    }
    return reach;
}

/* Return true if two arrays at this distance lie in different columns of rows of `row` bytes. */
static bool aot_in_other_columns(const aot_tensor *one, const aot_tensor *other, int64_t distance, int64_t row)
{
    const aot_reach a = aot_reach_of(one, row), b = aot_reach_of(other, row);
    int64_t column = (distance + b.low - a.low) % row;
    if (column < 0) column += row;
    return a.high - a.low <= column && column <= row - (b.high - b.low);
}

static int64_t aot_common_divisor(int64_t a, int64_t b)
{
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static bool aot_may_overlap(const aot_tensor *one, const aot_tensor *other)
{
    int64_t strides[2 * AOT_MAX_RANK];
    int count = 0;
    const aot_reach a = aot_reach_of(one, 0), b = aot_reach_of(other, 0);
    int64_t distance;
    if (a.low == a.high || b.low == b.high) return false;
    if (__builtin_sub_overflow((int64_t)other->address, (int64_t)one->address, &distance)) return false;
    if (distance <= a.low - b.high || a.high - b.low <= distance) return false;
    for (int i = 0; i < one->rank; i++)
        if (one->shape[i] > 1) strides[count++] = llabs(one->strides[i]) * aot_itemsize(one->dtype);
    for (int i = 0; i < other->rank; i++)
        if (other->shape[i] > 1) strides[count++] = llabs(other->strides[i]) * aot_itemsize(other->dtype);
    for (int i = 0; i < count; i++)
        for (int k = 0; k <= i; k++) {
            int64_t row = aot_common_divisor(strides[i], strides[k]);
            if (row != 0 && aot_in_other_columns(one, other, distance, row)) return false;
        }
    return true;
}

/* Return true if each stride is larger than the reach of all smaller ones, so that no two elements share memory. */
static bool aot_is_nested(const aot_tensor *tensor)
{
    int64_t reach = 0;
    int order[AOT_MAX_RANK], count = 0;
    for (int i = 0; i < tensor->rank; i++)
        if (tensor->shape[i] == 0) return true;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 1) continue;
        int at = count++;
        while (at > 0 && llabs(tensor->strides[order[at - 1]]) > llabs(tensor->strides[i])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
    for (int i = 0; i < count; i++) {
        int64_t step = llabs(tensor->strides[order[i]]);
        if (step <= reach) return false;
        reach += step * (tensor->shape[order[i]] - 1);
    }
    return true;
}
