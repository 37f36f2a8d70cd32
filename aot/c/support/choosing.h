/* ---- The second half of planning: which variants a call gets, over which grids ---------------------------------- */

typedef struct aot_chosen {
    const aot_variant *variant;
    const aot_launch *launch;
    const aot_config *config;
    uint32_t grid[3];
    unsigned char kernargs[AOT_MAX_KERNARG_BYTES + 8];
    uint64_t scratch, profile; /* bytes */
} aot_chosen;

typedef struct aot_decision {
    aot_chosen launches[AOT_MAX_LAUNCHES + 1];
    int count;
    double cost; /* of all launches, in microseconds */
    uint64_t workspaces[AOT_MAX_WORKSPACES + 1]; /* bytes */
    aot_text tried; /* why no variant fits */
} aot_decision;

/* Elements in 16 bytes, at least 1. */
static int64_t aot_unit(const aot_tensor *tensor)
{
    int64_t size = (int64_t)aot_itemsize(tensor->dtype);
    return size < AOT_ALIGNMENT ? AOT_ALIGNMENT / size : 1;
}

/* The number that an extent is a multiple of in calls of the aligned variants. */
static int64_t aot_divisor(const aot_plan *p, const aot_divisible *divisible)
{
    int64_t most = divisible->elements;
    for (const signed char *at = divisible->tensors; *at >= 0; at++) {
        int64_t unit = aot_unit(p->tensors[*at]);
        if (unit > most) most = unit;
    }
    return most;
}

/* Whether the aligned specialisation may serve the call. */
static bool aot_may_align(const aot_plan *p)
{
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor_rule *rule = &p->op->tensors[i];
        const aot_tensor *tensor = p->tensors[i];
        if (tensor == NULL) continue;
        if (!rule->large && !aot_fits_32_bits(p, i)) return false;
        if (!rule->align) continue;
        int innermost = aot_innermost(rule, tensor);
        if (tensor->address % AOT_ALIGNMENT != 0) return false;
        if (!rule->align_strides) continue;
        for (int dim = 0; dim < tensor->rank; dim++)
            if (aot_kernel_stride(tensor, dim) % aot_unit(tensor) != 0 && dim != innermost) return false;
    }
    for (int i = 0; i < p->op->n_divisible; i++)
        if (p->v[p->op->divisible[i].slot].i % aot_divisor(p, &p->op->divisible[i]) != 0) return false;
    return true;
}

/* Whether `value` is one that a rule may pick for `wanted`. */
static bool aot_fits(aot_rule rule, aot_value value, aot_value wanted)
{
    int order = aot_order(value, wanted);
    switch (rule) {
    case AOT_SMALLEST_GE: return order == 0 || order == 1;
    case AOT_SMALLEST_GT: return order == 1;
    case AOT_LARGEST_LE: return order == 0 || order == -1;
    case AOT_LARGEST_LT: return order == -1;
    default: return aot_eq(value, wanted);
    }
}

/* The value of each axis; -1: a fault, 0: some axis has none, 1: all have one. */
static int aot_pick_axes(aot_plan *p, unsigned char *key, aot_decision *d)
{
    for (int i = 0; i < p->op->n_axes; i++) {
        const aot_axis *axis = &p->op->axes[i];
        aot_value wanted;
        int best = -1;
        if (!aot_evaluate(p, axis->pick, &wanted)) return -1;
        for (int at = 0; at < axis->count; at++) {
            if (!aot_fits(axis->rule, axis->values[at], wanted)) continue;
            if (best < 0 || (axis->rule != AOT_EQUAL && aot_order(axis->values[at], axis->values[best]) ==
                                 (axis->rule == AOT_LARGEST_LE || axis->rule == AOT_LARGEST_LT ? 1 : -1)))
                best = at;
        }
        if (best < 0) {
            aot_write(&d->tried, "\n  %s: none of [%s] is picked by %s", axis->name, axis->listed, axis->wanted);
            return 0;
        }
        p->v[axis->slot] = axis->values[best];
        key[1 + p->op->n_variables + i] = (unsigned char)best;
    }
    return 1;
}

static const aot_variant *aot_find_variant(const aot_op *op, const unsigned char *key)
{
    int low = 0, high = op->n_variants;
    while (low < high) {
        int middle = low + (high - low) / 2;
        int order = memcmp(op->variants[middle].key, key, AOT_MAX_KEY);
        if (order == 0) return &op->variants[middle];
        if (order < 0) low = middle + 1; else high = middle;
    }
    return NULL;
}

static bool aot_find_grid(aot_plan *p, const aot_launch *launch, aot_chosen *chosen)
{
    /* HIP counts the threads along x in 32 bits. */
    const int64_t limits[3] = {AOT_COUNTS_THREADS ? UINT32_MAX / chosen->variant->threads : INT32_MAX, 65535, 65535};
    aot_value grid[3];
    for (int i = 0; i < 3; i++)
        if (!aot_evaluate(p, launch->grid[i], &grid[i])) return false;
    for (int i = 0; i < 3; i++) {
        if (grid[i].kind == AOT_KIND_FLOAT || grid[i].kind == AOT_KIND_TEXT || grid[i].i < 0 || grid[i].i > limits[i])
            return AOT_REFUSE(p, "the launch grid would be (%s, %s, %s); along %c 0 to %" PRId64 " is allowed",
                              aot_shown(grid[0]).content, aot_shown(grid[1]).content, aot_shown(grid[2]).content,
                              "xyz"[i], limits[i]);
        chosen->grid[i] = (uint32_t)grid[i].i;
    }
    return true;
}

/* Bytes of some count for each workgroup. */
static bool aot_count_scratch(aot_plan *p, const aot_chosen *chosen, uint32_t each, uint64_t *bytes)
{
    uint64_t groups = 0;
    if (__builtin_mul_overflow((uint64_t)chosen->grid[0] * chosen->grid[1], chosen->grid[2], &groups) ||
        __builtin_mul_overflow(groups, each, bytes) || *bytes > (uint64_t)1 << 60)
        return AOT_REFUSE(p, "%s would need more scratch memory than there is", chosen->variant->symbol);
    return true;
}

/* The bits of the nearest float of 16 bits, of two the even one; false where that is beyond the largest.
 * digits: of its significand. lowest: exponent of a normal number. */
static bool aot_to_16_bits(double number, int digits, int lowest, uint16_t *bits)
{
    const uint32_t infinite = (uint32_t)(3 - 2 * lowest) << (digits - 1);
    uint32_t found = infinite | (number != number ? (uint32_t)1 << (digits - 2) : 0);
    bool fits = true;
    if (isfinite(number)) {
        int exponent;
        (void)frexp(number, &exponent);
        exponent = exponent - 1 < lowest || !(number < 0 || number > 0) ? lowest : exponent - 1;
        if (exponent > 1 - lowest) return false;
        found = ((uint32_t)(exponent - lowest) << (digits - 1)) +
                (uint32_t)nearbyint(ldexp(fabs(number), digits - 1 - exponent));
        fits = found < infinite;
    }
    *bits = (uint16_t)(found | (signbit(number) ? 0x8000u : 0u));
    return fits;
}

/* Write a value as its type has it; false where it does not fit. */
static bool aot_pack(aot_type type, aot_value value, unsigned char *at)
{
    const aot_scalar_type *scalar = &aot_scalar_types[type];
    const int bits = 8 * scalar->size - 1; /* of the largest signed value */
    if (value.kind == AOT_KIND_TEXT) return false;
    if (type == AOT_FP16 || type == AOT_BF16) {
        uint16_t word = 0;
        bool fits = aot_to_16_bits(aot_as_float(value), type == AOT_FP16 ? 11 : 8, type == AOT_FP16 ? -14 : -126, &word);
        memcpy(at, &word, sizeof word);
        return fits;
    }
    if (type == AOT_FP32 || type == AOT_FP64) {
        double number = aot_as_float(value);
        float single = (float)number;
        if (type == AOT_FP64) memcpy(at, &number, sizeof number);
        else memcpy(at, &single, sizeof single);
        return type == AOT_FP64 || !isinf(single) || isinf(number);
    }
    if (scalar->kind == AOT_KIND_BOOL) {
        *at = value.kind == AOT_KIND_FLOAT ? value.f < 0 || value.f > 0 || value.f != value.f : value.i != 0;
        return true;
    }
    if (value.kind == AOT_KIND_FLOAT) return false;
    if (value.i < 0 ? !scalar->is_signed || (bits < 63 && value.i < -((int64_t)1 << bits))
                    : bits < 63 && value.i >> (bits + !scalar->is_signed) != 0)
        return false;
    memcpy(at, &value.i, scalar->size); /* little endian, as the device is */
    return true;
}

/* The kernargs that are values; addresses of memory that is yet to be allocated are filled in later. */
static bool aot_pack_values(aot_plan *p, aot_chosen *chosen)
{
    const aot_layout *layout = &p->op->layouts[chosen->variant->layout];
    memset(chosen->kernargs, 0, sizeof chosen->kernargs);
    for (int i = 0; i < layout->count; i++) {
        const aot_kernarg *arg = &layout->kernargs[i];
        unsigned char *at = chosen->kernargs + arg->offset;
        aot_value value;
        if (arg->source == AOT_OF_TENSOR && p->tensors[arg->index] != NULL)
            memcpy(at, &p->tensors[arg->index]->address, 8);
        if (arg->source != AOT_OF_VALUE) continue;
        if (!aot_evaluate(p, arg->value, &value)) return false;
        if (!aot_pack(arg->type, value, at))
            return AOT_REFUSE(p, "%s is %s; the kernel takes it as %s ('%s')", arg->text, aot_shown(value).content,
                              aot_scalar_types[arg->type].name, arg->name);
    }
    return true;
}

/* Whether there is a tensor map of an array. */
static bool aot_has_map(const aot_tensor *tensor, int innermost)
{
    if (tensor->address % 16 != 0) return false;
    for (int dim = 0; dim < tensor->rank; dim++) {
        int64_t step = 0;
        if (tensor->shape[dim] < 1 || tensor->shape[dim] > INT32_MAX) return false;
        if (tensor->shape[dim] == 1 || dim == innermost) continue;
        if (__builtin_mul_overflow(tensor->strides[dim], aot_itemsize(tensor->dtype), &step)) return false;
        if (step < 0 || step % 16 != 0 || step >= (int64_t)1 << 40) return false;
    }
    return true;
}

/* Whether there are the tensor maps that a variant takes. */
static bool aot_has_maps(const aot_plan *p, const aot_variant *variant, aot_decision *d)
{
    const aot_layout *layout = &p->op->layouts[variant->layout];
    for (int i = 0; i < layout->count; i++) {
        const aot_tensor_rule *rule = &p->op->tensors[layout->kernargs[i].index];
        const aot_tensor *tensor = p->tensors[layout->kernargs[i].index];
        if (layout->kernargs[i].map == NULL || tensor == NULL || aot_has_map(tensor, aot_innermost(rule, tensor)))
            continue;
        aot_write(&d->tried, "\n  there is no tensor map of '%s'", rule->name);
        return false;
    }
    return true;
}

/* The first config that serves the call and is built; if it has a cost, the cheapest of those that have one.
 * -1: a fault, 0: there is none, 1: there is one. */
static int aot_choose_config(aot_plan *p, int number, unsigned char *key, aot_decision *d)
{
    const aot_launch *launch = &p->op->launches[number];
    aot_chosen *chosen = &d->launches[d->count];
    double least = 0;
    key[0] = (unsigned char)number;
    chosen->variant = NULL;
    for (int i = 0; i < launch->count; i++) {
        const aot_config *config = &launch->configs[i];
        const aot_variant *variant;
        aot_value cost = aot_f(0);
        bool holds = true;
        if (chosen->variant != NULL && config->cost == NULL) continue;
        if (config->when != NULL && !aot_holds(p, config->when, &holds)) return -1;
        if (!holds) continue;
        key[AOT_MAX_KEY - 1] = (unsigned char)i;
        variant = aot_find_variant(p->op, key);
        if (config->cost != NULL && !aot_evaluate(p, config->cost, &cost)) return -1;
        if (variant == NULL || (chosen->variant != NULL && !(aot_as_float(cost) < least))) continue;
        least = aot_as_float(cost);
        chosen->variant = variant;
        chosen->launch = launch;
        chosen->config = config;
        if (config->cost == NULL) break;
    }
    if (chosen->variant != NULL) {
        if (!aot_has_maps(p, chosen->variant, d)) return 0;
        d->cost += least;
        d->count++;
        return 1;
    }
    aot_write(&d->tried, "\n  %s[", launch->kernel);
    for (int i = 0; i < p->op->n_variables + p->op->n_axes; i++) {
        bool is_axis = i >= p->op->n_variables;
        const aot_axis *axis = &p->op->axes[is_axis ? i - p->op->n_variables : 0];
        aot_write(&d->tried, "%s%s=", i > 0 ? ", " : "", is_axis ? axis->name : p->op->variables[i].name);
        aot_write_value(&d->tried, p->v[is_axis ? axis->slot : p->op->variables[i].slot]);
    }
    aot_write(&d->tried, "], aligned=%s: not built", key[AOT_MAX_KEY - 2] ? "True" : "False");
    return 0;
}

/* The configs of all launches, with the alternatives that are set: -1: a fault, 0: one is not built, 1: there they are.
 */
static int aot_choose_configs(aot_plan *p, unsigned char *key, aot_decision *d)
{
    int found = aot_pick_axes(p, key, d);
    d->count = 0;
    d->cost = 0;
    for (int i = 0; i < p->op->n_launches && found == 1; i++) {
        bool is_made = true;
        if (p->op->launches[i].when != NULL && !aot_holds(p, p->op->launches[i].when, &is_made)) return -1;
        if (is_made) found = aot_choose_config(p, i, key, d);
    }
    return found;
}

/* Set the alternatives of a combination. */
static bool aot_set_alternatives(aot_plan *p, int combination)
{
    for (int i = p->op->n_alternatives - 1; i >= 0; i--) {
        const aot_alternative *item = &p->op->alternatives[i];
        if (!aot_set_number(p, item->name, item->slot, item->values[combination % item->count])) return false;
        combination /= item->count;
    }
    return true;
}

/* Grids, kernargs and scratch memory of the chosen launches. Those without workgroups are left out. */
static bool aot_finish_launches(aot_plan *p, aot_decision *d)
{
    int chosen_count = d->count;
    d->count = 0;
    for (int i = 0; i < chosen_count; i++) {
        aot_chosen *chosen = &d->launches[d->count];
        const aot_launch *launch = d->launches[i].launch;
        const aot_config *config = d->launches[i].config;
        chosen->variant = d->launches[i].variant;
        for (int n = 0; n < launch->names; n++) p->v[launch->slots[n]] = config->values[n];
        if (!aot_find_grid(p, launch, chosen) || !aot_pack_values(p, chosen)) return false;
        if (!aot_count_scratch(p, chosen, chosen->variant->global_scratch, &chosen->scratch)) return false;
        if (!aot_count_scratch(p, chosen, chosen->variant->profile_scratch, &chosen->profile)) return false;
        if (chosen->grid[0] != 0 && chosen->grid[1] != 0 && chosen->grid[2] != 0) d->count++;
    }
    return true;
}

/* Every launch of one specialisation, with the cheapest combination of alternatives: -1: a fault, 0: something is not
 * built, 1: there they are. */
static int aot_choose_launches(aot_plan *p, bool aligned, aot_decision *d)
{
    unsigned char key[AOT_MAX_KEY];
    int combinations = 1, best = -1;
    size_t told = 0;
    double least = 0;
    memset(key, 0, sizeof key);
    p->v[p->op->aligned] = aot_b(aligned);
    key[AOT_MAX_KEY - 2] = aligned ? 1 : 0;
    for (int i = 0; i < p->op->n_variables; i++) key[1 + i] = (unsigned char)p->dtypes[i];
    for (int i = 0; i < p->op->n_alternatives; i++) combinations *= p->op->alternatives[i].count;
    for (int i = 0; i < combinations; i++)
        if (!aot_set_alternatives(p, i)) return -1;
    for (int i = 0; i < combinations; i++) {
        int found = aot_set_alternatives(p, i) ? aot_choose_configs(p, key, d) : -1;
        if (found < 0) return -1;
        if (i == 0) told = d->tried.used;
        d->tried.used = told; /* of the first combination only */
        d->tried.content[told] = 0;
        if (found == 0 || (best >= 0 && !(d->cost < least))) continue;
        best = i;
        least = d->cost;
    }
    if (best < 0) return 0;
    if (best < combinations - 1 && (!aot_set_alternatives(p, best) || aot_choose_configs(p, key, d) < 0)) return -1;
    return aot_finish_launches(p, d) ? 1 : -1;
}

static bool aot_measure_workspaces(aot_plan *p, aot_decision *d)
{
    for (int i = 0; i < p->op->n_workspaces; i++) {
        const aot_workspace *space = &p->op->workspaces[i];
        uint64_t bytes = (uint64_t)space->itemsize;
        if (space->variable >= 0)
            bytes = (uint64_t)aot_itemsize((aot_dtype)p->v[p->op->variables[space->variable].slot].i);
        for (int dim = 0; dim < space->rank; dim++) {
            aot_value extent;
            if (!aot_evaluate(p, space->shape[dim], &extent)) return false;
            if (extent.kind == AOT_KIND_FLOAT || extent.kind == AOT_KIND_TEXT || extent.i < 0 ||
                __builtin_mul_overflow(bytes, (uint64_t)extent.i, &bytes) || bytes > (uint64_t)1 << 60)
                return AOT_REFUSE(p, "dim %d of workspace '%s' would be %s", dim, space->name,
                                  aot_shown(extent).content);
        }
        d->workspaces[i] = bytes;
    }
    return true;
}

/* The aligned specialisation if the call allows it and all of it is built, else the general one. */
static bool aot_decide(aot_plan *p, aot_decision *d)
{
    int found = 0;
    d->tried.content[0] = 0;
    d->tried.used = 0;
    if (aot_may_align(p)) found = aot_choose_launches(p, true, d);
    if (found == 0) found = aot_choose_launches(p, false, d);
    if (found == 1) return aot_measure_workspaces(p, d);
    return found == 0 && aot_fail(p->status, AOT_NO_VARIANT, "%s: no variant of this bundle fits the call:%s\n  built: "
                                  "%s", p->op->name, d->tried.content, p->op->built);
}
