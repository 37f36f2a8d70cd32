/* ---- The first half of planning: arguments held to the contract, and the value of every name -------------------- */

#define AOT_ALIGNMENT 16
#define AOT_RANGE_32 ((int64_t)1 << 31)

typedef struct aot_plan {
    const aot_op *op;
    aot_status *status;
    int num_cus, num_xcds;
    bool lays_out; /* outputs that are not given are laid out here, and no address is needed */
    aot_tensor laid_out[AOT_MAX_TENSORS + 1];
    const aot_tensor *tensors[AOT_MAX_TENSORS + 1]; /* NULL: absent */
    int64_t low[AOT_MAX_TENSORS + 1], high[AOT_MAX_TENSORS + 1]; /* elements that it reaches from its address */
    int dtypes[AOT_MAX_KEY + 1]; /* position of each dtype variable's dtype */
    aot_value v[AOT_MAX_SLOTS + 1];
    aot_eval e;
} aot_plan;

static const char *const aot_dtype_names[] = {
#include "dtype_names"
};

static const char *aot_dtype_name(aot_dtype dtype)
{
    return (int)dtype >= 0 && (int)dtype < AOT_DTYPES ? aot_dtype_names[(int)dtype] : "an unknown dtype";
}

/* Set a status; always gives false. */
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
static bool aot_fail(aot_status *status, aot_code code, const char *format, ...)
{
    va_list arguments;
    status->code = code;
    va_start(arguments, format);
    (void)vsnprintf(status->message, sizeof status->message, format, arguments);
    va_end(arguments);
    return false;
}

#define AOT_REFUSE(plan, format, ...) \
    aot_fail((plan)->status, AOT_ARGUMENT, "%s: " format, (plan)->op->name, __VA_ARGS__)

/* Text that grows in a buffer, and is cut off at its end. */
typedef struct aot_text {
    char content[640];
    size_t used;
} aot_text;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static void aot_write(aot_text *text, const char *format, ...)
{
    va_list arguments;
    int length;
    va_start(arguments, format);
    length = vsnprintf(text->content + text->used, sizeof text->content - text->used, format, arguments);
    va_end(arguments);
    if (length > 0) text->used += (size_t)length;
    if (text->used >= sizeof text->content) text->used = sizeof text->content - 1;
}

static aot_text aot_new_text(void)
{
    aot_text text;
    text.content[0] = 0;
    text.used = 0;
    return text;
}

static aot_text aot_list(const int64_t *numbers, int count)
{
    aot_text text = aot_new_text();
    aot_write(&text, "[");
    for (int i = 0; i < count; i++) aot_write(&text, "%s%" PRId64, i > 0 ? ", " : "", numbers[i]);
    aot_write(&text, "]");
    return text;
}

/* A float with as many digits as it takes to read it back, and a point where it is finite. */
static void aot_write_float(aot_text *text, double f)
{
    char digits[40];
    if (!isfinite(f)) {
        aot_write(text, f != f ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 1; precision <= 17; precision++) {
        bool plain = (fabs(f) >= 1e-4 && fabs(f) < 1e16) || !(f < 0 || f > 0);
        int exponent = f < 0 || f > 0 ? (int)floor(log10(fabs(f))) : 0;
        int decimals = precision - 1 - exponent;
        (void)snprintf(digits, sizeof digits, plain ? "%.*f" : "%.*e",
                       plain ? (decimals < 1 ? 1 : decimals) : precision - 1, f);
        if (!(strtod(digits, NULL) < f) && !(strtod(digits, NULL) > f)) break;
    }
    aot_write(text, "%s", digits);
}

static void aot_write_value(aot_text *text, aot_value value)
{
    switch (value.kind) {
    case AOT_KIND_INT: aot_write(text, "%" PRId64, value.i); break;
    case AOT_KIND_BOOL: aot_write(text, value.i ? "True" : "False"); break;
    case AOT_KIND_FLOAT: aot_write_float(text, value.f); break;
    case AOT_KIND_TEXT: aot_write(text, "%s", aot_texts[value.i]); break;
    }
}

static aot_text aot_shown(aot_value value)
{
    aot_text text = aot_new_text();
    aot_write_value(&text, value);
    return text;
}

static bool aot_evaluate(aot_plan *p, aot_expression expression, aot_value *value)
{
    p->e.fault = NULL;
    p->e.v = p->v;
    *value = expression(&p->e);
    if (p->e.fault == NULL) return true;
    return AOT_REFUSE(p, "these arguments have no plan: %s", p->e.fault);
}

static bool aot_holds(aot_plan *p, aot_expression expression, bool *holds)
{
    aot_value value;
    if (!aot_evaluate(p, expression, &value)) return false;
    *holds = aot_true(&p->e, value);
    return true;
}

static int64_t aot_kernel_stride(const aot_tensor *tensor, int dim)
{
    return tensor->shape[dim] == 1 ? 0 : tensor->strides[dim];
}

/* The dim with stride 1 of a tensor with several that may have it, of others the last contiguous one; -1: none. */
static int aot_innermost(const aot_tensor_rule *rule, const aot_tensor *tensor)
{
    const signed char *at;
    int last = -1;
    if (rule->innermost[0] < 0) {
        for (at = rule->contiguous; *at >= 0; at++) last = *at;
        return last;
    }
    for (at = rule->innermost; *at >= 0; at++)
        if (tensor->strides[*at] == 1 && tensor->shape[*at] != 1) return *at;
    for (at = rule->innermost; *at >= 0; at++)
        if (tensor->shape[*at] == 1) return *at;
    return -1;
}

/* Whether a tensor fills its memory without gaps or overlap. */
static bool aot_is_packed(const aot_tensor *tensor)
{
    int64_t step = 1;
    int left = 0;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] == 0) return true;
        left += tensor->shape[i] != 1;
    }
    while (left-- > 0) {
        int next = 0;
        while (next < tensor->rank && (tensor->shape[next] == 1 || tensor->strides[next] != step)) next++;
        if (next == tensor->rank || __builtin_mul_overflow(step, tensor->shape[next], &step)) return false;
    }
    return true;
}

static bool aot_check_contiguity(aot_plan *p, const aot_tensor_rule *rule, const aot_tensor *tensor)
{
    int64_t step = 1;
    int count = 0;
    if (rule->innermost[0] >= 0 && aot_innermost(rule, tensor) < 0) {
        aot_text names = aot_new_text();
        for (const signed char *at = rule->innermost; *at >= 0; at++)
            aot_write(&names, "%s%d (%s)", at > rule->innermost ? " or " : "", *at, rule->extents[*at].text);
        return AOT_REFUSE(p, "argument '%s' has strides %s; that of dim %s must be 1 (make a contiguous copy)",
                          rule->name, aot_list(tensor->strides, tensor->rank).content, names.content);
    }
    while (rule->contiguous[count] >= 0) count++;
    while (count-- > 0) {
        int dim = rule->contiguous[count];
        if (tensor->shape[dim] != 1 && tensor->strides[dim] != step)
            return AOT_REFUSE(p, "argument '%s' has stride %" PRId64 " in dim %d (%s); it must be %" PRId64
                              ": that dim is contiguous (make a contiguous copy)",
                              rule->name, tensor->strides[dim], dim, rule->extents[dim].text, step);
        if (__builtin_mul_overflow(step, tensor->shape[dim], &step))
            return AOT_REFUSE(p, "argument '%s' has more elements than 64 bits count", rule->name);
    }
    return true;
}

/* The range of elements that a tensor reaches, and that all numbers of it are sensible. */
static bool aot_measure(aot_plan *p, int index)
{
    const aot_tensor *tensor = p->tensors[index];
    const char *name = p->op->tensors[index].name;
    const int64_t most = (int64_t)1 << 53; /* so that sums of them in bytes fit, too */
    int64_t low = 0, high = 0, step;
    bool empty = false;
    for (int i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return AOT_REFUSE(p, "argument '%s' has shape %s; an extent is 0 or more", name,
                              aot_list(tensor->shape, tensor->rank).content);
        empty = empty || tensor->shape[i] == 0;
        if (tensor->shape[i] <= 1) continue;
        if (__builtin_mul_overflow(tensor->shape[i] - 1, tensor->strides[i], &step) || step > most || step < -most)
            return AOT_REFUSE(p, "argument '%s' reaches further than 2**53 elements: shape %s, strides %s", name,
                              aot_list(tensor->shape, tensor->rank).content,
                              aot_list(tensor->strides, tensor->rank).content);
        if (step < 0) low += step; else high += step;
    }
    p->low[index] = empty ? 0 : low;
    p->high[index] = empty ? 0 : high + 1;
    return empty || tensor->address != 0 || p->lays_out ||
           AOT_REFUSE(p, "argument '%s' has elements, but its address is 0", name);
}

/* Whether all bytes of a tensor lie less than 2**31 bytes behind its address. */
static bool aot_fits_32_bits(const aot_plan *p, int index)
{
    return p->low[index] >= 0 && p->high[index] * aot_itemsize(p->tensors[index]->dtype) < AOT_RANGE_32;
}

/* Rank, dtype, contiguity; the elements of a tensor that is written to do not share memory. */
static bool aot_check_form(aot_plan *p, int index)
{
    const aot_tensor_rule *rule = &p->op->tensors[index];
    const aot_tensor *tensor = p->tensors[index];
    if (rule->rank < 0 && (tensor->rank < 0 || tensor->rank > AOT_MAX_RANK))
        return AOT_REFUSE(p, "argument '%s' has %d dims; at most %d are allowed", rule->name, (int)tensor->rank,
                          AOT_MAX_RANK);
    if (rule->rank >= 0 && tensor->rank != rule->rank) {
        int shown = tensor->rank < 0 || tensor->rank > AOT_MAX_RANK ? 0 : tensor->rank;
        return AOT_REFUSE(p, "argument '%s' has %d dims %s; it takes %d: %s", rule->name, (int)tensor->rank,
                          aot_list(tensor->shape, shown).content, rule->rank, rule->shape);
    }
    if ((int)tensor->dtype < 0 || (int)tensor->dtype >= AOT_DTYPES || !(rule->allowed >> (int)tensor->dtype & 1))
        return AOT_REFUSE(p, "argument '%s' is %s; allowed: %s", rule->name, aot_dtype_name(tensor->dtype),
                          rule->dtypes);
    if (!aot_measure(p, index) || !aot_check_contiguity(p, rule, tensor)) return false;
    if (rule->role != AOT_INPUT && rule->rank >= 0 && !aot_is_nested(tensor))
        return AOT_REFUSE(p, "argument '%s' is written to, but may overlap itself: strides %s for shape %s are not "
                          "nested; pass a contiguous array", rule->name,
                          aot_list(tensor->strides, tensor->rank).content,
                          aot_list(tensor->shape, tensor->rank).content);
    if (rule->zero && !aot_is_packed(tensor))
        return AOT_REFUSE(p, "argument '%s' has strides %s for shape %s; it is zeroed before the launch, so it must be "
                          "packed (pass a contiguous array)", rule->name,
                          aot_list(tensor->strides, tensor->rank).content,
                          aot_list(tensor->shape, tensor->rank).content);
    return true;
}

/* Every tensor of a variable has one dtype; outputs are looked at later. */
static bool aot_check_dtype(aot_plan *p, int variable)
{
    const aot_dtype_variable *found = &p->op->variables[variable];
    int first = -1;
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor_rule *rule = &p->op->tensors[i];
        if (rule->variable != variable || rule->role == AOT_OUTPUT || p->tensors[i] == NULL) continue;
        if (first < 0) first = i;
        if (p->tensors[i]->dtype != p->tensors[first]->dtype)
            return AOT_REFUSE(p, "argument '%s' is %s, but '%s' is %s; both are %s", rule->name,
                              aot_dtype_name(p->tensors[i]->dtype), p->op->tensors[first].name,
                              aot_dtype_name(p->tensors[first]->dtype), found->name);
    }
    p->dtypes[variable] = 0;
    while (found->dtypes[p->dtypes[variable]] != p->tensors[first]->dtype) p->dtypes[variable]++;
    p->v[found->slot] = aot_s((int)p->tensors[first]->dtype); /* the bundle's first texts are the dtypes */
    return true;
}

/* The elements that kernels count for one of a tensor: 2, if they read the low halves of int64. */
static int64_t aot_words(const aot_tensor_rule *rule, const aot_tensor *tensor)
{
    return rule->also_int64 && aot_itemsize(tensor->dtype) == 8 ? 2 : 1;
}

static void aot_answer(aot_plan *p, bool of_output)
{
    for (int i = 0; i < p->op->n_queries; i++) {
        const aot_query *query = &p->op->queries[i];
        const aot_tensor *tensor = query->kind == AOT_ELSIZE ? NULL : p->tensors[query->tensor];
        if (query->of_output != of_output) continue;
        switch (query->kind) {
        case AOT_GIVEN: p->v[query->slot] = aot_b(tensor != NULL); break;
        case AOT_ELSIZE: /* of a dtype variable */
            p->v[query->slot] = aot_i(aot_itemsize((aot_dtype)p->v[p->op->variables[query->tensor].slot].i));
            break;
        case AOT_STRIDE:
            p->v[query->slot] = aot_i(tensor == NULL ? 0 : aot_kernel_stride(tensor, query->position) *
                                                           aot_words(&p->op->tensors[query->tensor], tensor));
            break;
        case AOT_INNERMOST:
            p->v[query->slot] = aot_b(tensor != NULL &&
                                      aot_innermost(&p->op->tensors[query->tensor], tensor) == query->position);
            break;
        case AOT_IS_ALIGNED:
            p->v[query->slot] = aot_b(tensor != NULL && tensor->address % AOT_ALIGNMENT == 0);
            break;
        case AOT_FITS_32_BITS:
            p->v[query->slot] = aot_b(tensor != NULL && aot_fits_32_bits(p, query->tensor));
            break;
        }
    }
}
