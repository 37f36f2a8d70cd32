/* ---- Memory that a call writes to, and that another argument lies in too: allowed only as the contract says ------ */

#define AOT_MAX_WORK 65536 /* steps of the search; what takes more counts as overlapping */

/* Integers 0 <= z[k] <= most[k] with the sum of step[k] * z[k] = total? */
typedef struct aot_sum {
    int64_t step[2 * AOT_MAX_RANK + 2], most[2 * AOT_MAX_RANK + 2];
    int64_t reach[2 * AOT_MAX_RANK + 3], divisor[2 * AOT_MAX_RANK + 3]; /* of the terms from k on */
    int count, work;
} aot_sum;

/* Terms are kept by falling step; equal steps are one term. */
static void aot_add_term(aot_sum *sum, int64_t step, int64_t most)
{
    int at = 0;
    if (step == 0 || most == 0) return;
    while (at < sum->count && sum->step[at] > step) at++;
    if (at < sum->count && sum->step[at] == step) {
        sum->most[at] += most;
        return;
    }
    for (int i = sum->count++; i > at; i--) {
        sum->step[i] = sum->step[i - 1];
        sum->most[i] = sum->most[i - 1];
    }
    sum->step[at] = step;
    sum->most[at] = most;
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

static bool aot_has_solution(aot_sum *sum, int k, int64_t total)
{
    if (++sum->work > AOT_MAX_WORK) return true;
    if (total < 0 || total > sum->reach[k]) return false;
    if (k == sum->count) return total == 0;
    if (total % sum->divisor[k] != 0) return false;
    int64_t last = total / sum->step[k] < sum->most[k] ? total / sum->step[k] : sum->most[k];
    int64_t first = total > sum->reach[k + 1] ? (total - sum->reach[k + 1] + sum->step[k] - 1) / sum->step[k] : 0;
    for (int64_t z = first; z <= last; z++)
        if (aot_has_solution(sum, k + 1, total - z * sum->step[k])) return true;
    return false;
}

/* Add a tensor's dims, in bytes. Negative steps are counted from their other end, by which `total` grows. */
static void aot_add_dims(aot_sum *sum, const aot_tensor *tensor, int sign, int64_t *total)
{
    const int64_t itemsize = aot_itemsize(tensor->dtype);
    for (int i = 0; i < tensor->rank; i++) {
        int64_t step = sign * aot_kernel_stride(tensor, i) * itemsize, most = tensor->shape[i] - 1;
        if (step < 0) *total += -step * most;
        aot_add_term(sum, llabs(step), most);
    }
    aot_add_term(sum, 1, itemsize - 1); /* the bytes of an element */
    if (sign < 0) *total += itemsize - 1;
}

static bool aot_share_memory(const aot_plan *p, int one, int other)
{
    const aot_tensor *a = p->tensors[one], *b = p->tensors[other];
    const int64_t a_size = aot_itemsize(a->dtype), b_size = aot_itemsize(b->dtype);
    int64_t apart = 0; /* from the address of a to that of b */
    aot_sum sum;
    if (__builtin_sub_overflow((int64_t)b->address, (int64_t)a->address, &apart) || llabs(apart) > (int64_t)1 << 61)
        return false;
    if (p->low[one] * a_size >= apart + p->high[other] * b_size) return false;
    if (apart + p->low[other] * b_size >= p->high[one] * a_size) return false;
    memset(&sum, 0, sizeof sum);
    aot_add_dims(&sum, a, 1, &apart);
    aot_add_dims(&sum, b, -1, &apart);
    for (int k = sum.count; k-- > 0;) {
        sum.reach[k] = sum.reach[k + 1] + sum.step[k] * sum.most[k];
        sum.divisor[k] = aot_common_divisor(sum.step[k], sum.divisor[k + 1]);
    }
    return aot_has_solution(&sum, 0, apart);
}

/* One array: the same address, shape and strides. */
static bool aot_is_same(const aot_tensor *a, const aot_tensor *b)
{
    if (a->address != b->address || a->rank != b->rank) return false;
    if (aot_itemsize(a->dtype) != aot_itemsize(b->dtype)) return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i] || aot_kernel_stride(a, i) != aot_kernel_stride(b, i)) return false;
    return true;
}

static bool aot_hold_apart(aot_plan *p)
{
    const aot_tensor_rule *rules = p->op->tensors;
    for (int i = 0; i < p->op->n_tensors; i++) {
        if (rules[i].role == AOT_INPUT || p->high[i] == p->low[i]) continue;
        for (int other = 0; other < p->op->n_tensors; other++) {
            bool was_seen = other < i && rules[other].role != AOT_INPUT;
            bool in_place = rules[i].in_place >> other & 1 || rules[other].in_place >> i & 1;
            if (other == i || was_seen || p->tensors[other] == NULL || p->high[other] == p->low[other]) continue;
            if ((in_place && aot_is_same(p->tensors[i], p->tensors[other])) || !aot_share_memory(p, i, other)) continue;
            return AOT_REFUSE(p, "arguments '%s' and '%s' overlap in memory, and '%s' is written to; allowed: memory "
                              "of its own%s%s%s", rules[i].name, rules[other].name, rules[i].name,
                              in_place ? ", or '" : "", in_place ? rules[other].name : "",
                              in_place ? "' itself (the same address, shape and strides)" : "");
        }
    }
    return true;
}
