/* ---- The steps of checking, in the order of the runtime for Python ---------------------------------------------- */

static bool aot_check_tensors(aot_plan *p)
{
    const aot_op *op = p->op;
    for (int i = 0; i < op->n_tensors; i++) {
        if (op->tensors[i].role == AOT_OUTPUT) continue;
        if (p->tensors[i] == NULL) {
            if (!op->tensors[i].optional) return AOT_REFUSE(p, "argument '%s' is missing", op->tensors[i].name);
        } else if (!aot_check_form(p, i)) {
            return false;
        }
    }
    for (int i = 0; i < op->n_variables; i++)
        if (!aot_check_dtype(p, i)) return false;
    aot_answer(p, false);
    return true;
}

static bool aot_find_dims(aot_plan *p)
{
    for (int i = 0; i < p->op->n_dims; i++) {
        const aot_dim_rule *dim = &p->op->dims[i];
        const aot_tensor *tensor = p->tensors[dim->tensor];
        aot_value extent = aot_i(tensor == NULL ? 0 : tensor->shape[dim->position]);
        p->v[dim->slot] = extent;
        if (tensor == NULL) continue;
        if (dim->inverse != NULL) {
            p->v[p->op->extent] = extent;
            if (!aot_evaluate(p, dim->inverse, &p->v[dim->slot])) return false;
        }
        extent = p->v[dim->slot];
        if (aot_order(extent, aot_i(dim->low)) < 0 || aot_order(extent, aot_i(dim->high)) > 0)
            return AOT_REFUSE(p, "%s is %s; allowed: %" PRId64 " to %" PRId64, dim->name, aot_shown(extent).content,
                              dim->low, dim->high);
    }
    return true;
}

/* Give a named number its value. */
static bool aot_set_number(aot_plan *p, const char *name, int slot, aot_expression expression)
{
    aot_value value;
    if (!aot_evaluate(p, expression, &value)) return false;
    if (value.kind == AOT_KIND_TEXT || (value.kind == AOT_KIND_FLOAT && fabs(value.f) >= 9223372036854775808.0))
        return AOT_REFUSE(p, "%s would be %s; a number below 2**63 is allowed", name, aot_shown(value).content);
    p->v[slot] = value;
    return true;
}

/* What the caller gives as a scalar; `given` is false where it gives nothing. */
static aot_value aot_read_scalar(const aot_scalar_rule *rule, const void *args, bool *given)
{
    const unsigned char *at = (const unsigned char *)args + rule->offset;
    aot_int integer;
    aot_float number;
    aot_flag flag;
    int choice;
    switch (aot_scalar_types[rule->type].kind) {
    case AOT_KIND_TEXT:
        memcpy(&choice, at, sizeof choice);
        *given = choice != 0;
        return choice > 0 && choice <= rule->count ? aot_s(rule->choices[choice - 1]) : aot_i(choice);
    case AOT_KIND_BOOL:
        memcpy(&flag, at, sizeof flag);
        *given = flag.given;
        return aot_b(flag.value);
    case AOT_KIND_FLOAT:
        memcpy(&number, at, sizeof number);
        *given = number.given;
        return aot_f(number.value);
    default:
        memcpy(&integer, at, sizeof integer);
        *given = integer.given;
        return aot_i(integer.value);
    }
}

static bool aot_check_scalar(aot_plan *p, const aot_scalar_rule *rule, aot_value *value)
{
    const char *allowed = NULL;
    const aot_kind kind = aot_scalar_types[rule->type].kind;
    if (kind == AOT_KIND_TEXT) {
        int at = 0;
        while (at < rule->count && !aot_eq(*value, aot_s(rule->choices[at]))) at++;
        if (at == rule->count) allowed = rule->allowed;
    } else if (kind == AOT_KIND_BOOL) {
        if (value->kind == AOT_KIND_INT && (value->i == 0 || value->i == 1)) value->kind = AOT_KIND_BOOL;
        if (value->kind != AOT_KIND_BOOL) return AOT_REFUSE(p, "argument '%s' is %s; True or False is allowed",
                                                            rule->name, aot_shown(*value).content);
    } else if (kind == AOT_KIND_FLOAT) {
        if (value->kind == AOT_KIND_TEXT) allowed = rule->allowed;
        else *value = aot_f(aot_as_float(*value));
    } else {
        if (value->kind == AOT_KIND_TEXT || value->kind == AOT_KIND_FLOAT)
            return AOT_REFUSE(p, "argument '%s' is %s; an integer is allowed", rule->name, aot_shown(*value).content);
        value->kind = AOT_KIND_INT;
    }
    if (allowed == NULL && rule->has_low) {
        int order = aot_order(*value, rule->low);
        if (order != 0 && order != 1) allowed = rule->allowed;
    }
    if (allowed == NULL && rule->has_high && aot_order(*value, rule->high) > 0) allowed = rule->allowed;
    return allowed == NULL ||
           AOT_REFUSE(p, "argument '%s' is %s; allowed: %s", rule->name, aot_shown(*value).content, allowed);
}

static bool aot_check_scalars(aot_plan *p, const void *args)
{
    for (int i = 0; i < p->op->n_scalars; i++) {
        const aot_scalar_rule *rule = &p->op->scalars[i];
        bool given = false;
        aot_value value = aot_read_scalar(rule, args, &given);
        if (!given && rule->standard == NULL) return AOT_REFUSE(p, "argument '%s' is missing", rule->name);
        if (!given && !aot_evaluate(p, rule->standard, &value)) return false;
        if (!aot_check_scalar(p, rule, &value)) return false;
        p->v[rule->slot] = value;
    }
    return true;
}

static bool aot_check_requirements(aot_plan *p)
{
    for (int i = 0; i < p->op->n_required; i++) {
        const aot_requirement *required = &p->op->required[i];
        bool holds = false;
        if (!aot_holds(p, required->holds, &holds)) return false;
        if (holds) continue;
        aot_text given = aot_new_text();
        for (int n = 0; n < required->count; n++) {
            aot_write(&given, "%s%s=", n > 0 ? ", " : "", required->names[n].name);
            aot_write_value(&given, p->v[required->names[n].slot]);
        }
        return AOT_REFUSE(p, "requires %s%s%s", required->text, required->count > 0 ? "; given: " : "", given.content);
    }
    for (int i = 0; i < p->op->n_derived; i++) {
        const aot_derivation *derived = &p->op->derived[i];
        if (!aot_set_number(p, derived->name, derived->slot, derived->value)) return false;
    }
    return true;
}

/* One extent of a tensor against what the dims make it. */
static bool aot_check_extent(aot_plan *p, int index, int position)
{
    const aot_tensor_rule *rule = &p->op->tensors[index];
    const aot_extent *extent = &rule->extents[position];
    const aot_tensor *tensor = p->tensors[index];
    aot_value expected;
    if (!aot_evaluate(p, extent->value, &expected)) return false;
    if (aot_eq(aot_i(tensor->shape[position]), expected) || (extent->broadcast && tensor->shape[position] == 1))
        return true;
    return AOT_REFUSE(p, "argument '%s' has shape %s: dim %d (%s) is %" PRId64 ", but must be %s%s to agree with the "
                      "other arguments", rule->name, aot_list(tensor->shape, tensor->rank).content, position,
                      extent->text, tensor->shape[position], aot_shown(expected).content,
                      extent->broadcast ? " or 1" : "");
}

static bool aot_check_extents(aot_plan *p)
{
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor_rule *rule = &p->op->tensors[i];
        if (rule->role == AOT_OUTPUT || p->tensors[i] == NULL) continue;
        for (int position = 0; position < rule->rank; position++)
            if (!rule->extents[position].source && !aot_check_extent(p, i, position)) return false;
    }
    return true;
}

/* The dtype, shape and strides of an output that the caller has yet to allocate. */
static bool aot_lay_out(aot_plan *p, int index)
{
    const aot_tensor_rule *rule = &p->op->tensors[index];
    aot_tensor *tensor = &p->laid_out[index];
    const signed char *last = rule->innermost[0] >= 0 ? rule->innermost : rule->contiguous;
    int order[AOT_MAX_RANK], count = 0, packed = 0;
    int64_t step = 1;
    memset(tensor, 0, sizeof *tensor);
    tensor->rank = rule->rank;
    tensor->dtype = rule->like >= 0 ? p->tensors[rule->like]->dtype : AOT_ABSENT;
    for (int dtype = 1; rule->like < 0 && dtype < AOT_DTYPES; dtype++)
        if (rule->allowed >> dtype & 1) tensor->dtype = (aot_dtype)dtype;
    while (last[packed] >= 0) packed++;
    if (rule->innermost[0] >= 0) packed = 1;
    for (int dim = 0; dim < rule->rank; dim++) {
        aot_value extent;
        bool is_last = false;
        if (!aot_evaluate(p, rule->extents[dim].value, &extent)) return false;
        if (extent.kind == AOT_KIND_FLOAT || extent.kind == AOT_KIND_TEXT || extent.i < 0)
            return AOT_REFUSE(p, "dim %d of output '%s' would be %s", dim, rule->name, aot_shown(extent).content);
        tensor->shape[dim] = extent.i;
        for (int i = 0; i < packed; i++) is_last = is_last || last[i] == dim;
        if (!is_last) order[count++] = dim;
    }
    for (int i = 0; i < packed; i++) order[count++] = last[i];
    while (count-- > 0) {
        tensor->strides[order[count]] = step;
        if (__builtin_mul_overflow(step, tensor->shape[order[count]], &step))
            return AOT_REFUSE(p, "output '%s' would have more elements than 64 bits count", rule->name);
    }
    p->tensors[index] = tensor;
    return true;
}

/* The caller's outputs checked, or all laid out; what does not exist is absent. */
static bool aot_check_outputs(aot_plan *p)
{
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor_rule *rule = &p->op->tensors[i];
        bool exists = true;
        if (rule->role != AOT_OUTPUT) continue;
        if (rule->exists != NULL && !aot_holds(p, rule->exists, &exists)) return false;
        if (!exists && p->tensors[i] == NULL) continue;
        if (!exists)
            return AOT_REFUSE(p, "argument '%s' is given, but exists only when %s", rule->name, rule->when);
        if (p->tensors[i] == NULL && p->lays_out && !aot_lay_out(p, i)) return false;
        if (p->tensors[i] == NULL)
            return AOT_REFUSE(p, "argument '%s' is missing: the caller gives the outputs", rule->name);
        if (!aot_check_form(p, i)) return false;
        for (int position = 0; position < rule->rank; position++)
            if (!aot_check_extent(p, i, position)) return false;
        if (rule->like >= 0 && p->tensors[i]->dtype != p->tensors[rule->like]->dtype)
            return AOT_REFUSE(p, "argument '%s' is %s, but '%s' is %s; both are %s", rule->name,
                              aot_dtype_name(p->tensors[i]->dtype), p->op->tensors[rule->like].name,
                              aot_dtype_name(p->tensors[rule->like]->dtype),
                              p->op->variables[rule->variable].name);
    }
    aot_answer(p, true);
    return true;
}

/* Without 64-bit offsets in the kernel, no tensor may reach beyond 2**31 elements. */
static bool aot_check_reach(aot_plan *p)
{
    for (int i = 0; i < p->op->n_tensors && !p->op->wide_offsets; i++) {
        int64_t most = p->high[i] > -p->low[i] ? p->high[i] : -p->low[i];
        if (p->tensors[i] != NULL && most >= AOT_RANGE_32)
            return AOT_REFUSE(p, "argument '%s' reaches over %" PRId64 " elements; this op's kernel takes less than "
                              "%" PRId64, p->op->tensors[i].name, most, AOT_RANGE_32);
    }
    return true;
}

/* A call whose arguments keep the contract. The tensors come first in the arguments. */
static bool aot_check(aot_plan *p, const void *args)
{
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor *given = (const aot_tensor *)args + i;
        p->tensors[i] = given->dtype == AOT_ABSENT && given->address == 0 ? NULL : given;
        p->low[i] = p->high[i] = 0;
    }
    return aot_check_tensors(p) && aot_find_dims(p) && aot_check_scalars(p, args) && aot_check_requirements(p) &&
           aot_check_extents(p) && aot_check_outputs(p) && aot_check_reach(p);
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

/* Tensors that are written to share no memory with others, unless the contract lists the pair as `in_place`. */
static bool aot_require_apart(aot_plan *p)
{
    const aot_tensor_rule *rules = p->op->tensors;
    for (int i = 0; i < p->op->n_tensors; i++) {
        if (rules[i].role == AOT_INPUT || rules[i].rank < 0 || p->tensors[i] == NULL) continue;
        for (int other = 0; other < p->op->n_tensors; other++) {
            bool was_seen = other < i && rules[other].role != AOT_INPUT;
            bool in_place = rules[i].in_place >> other & 1 || rules[other].in_place >> i & 1;
            if (other == i || was_seen || rules[other].rank < 0 || p->tensors[other] == NULL) continue;
            if (in_place && aot_is_same(p->tensors[i], p->tensors[other])) continue;
            if (!aot_may_overlap(p->tensors[i], p->tensors[other])) continue;
            return AOT_REFUSE(p, "arguments '%s' and '%s' may overlap in memory, and '%s' is written to; pass an array "
                              "with memory of its own%s%s%s", rules[i].name, rules[other].name, rules[i].name,
                              in_place ? ", or '" : "", in_place ? rules[other].name : "",
                              in_place ? "' itself (the same address, shape and strides)" : "");
        }
    }
    return true;
}
