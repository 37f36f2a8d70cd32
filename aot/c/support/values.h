/* ---- Values of expressions: Python's numbers, as far as 64 bits go; what they cannot hold is a fault ------------ */

#if defined(__GNUC__)
#define AOT_FN static __attribute__((unused))
#else
#define AOT_FN static
#endif

typedef enum aot_kind { AOT_KIND_INT, AOT_KIND_BOOL, AOT_KIND_FLOAT, AOT_KIND_TEXT } aot_kind;

/* A number, or a text by its position in the bundle's table of texts. */
typedef struct aot_value {
    aot_kind kind;
    int64_t i; /* of an integer, a truth value or a text */
    double f;  /* of a float */
} aot_value;

/* An evaluation. `fault` says why some part of it has no value; the value of the whole is then none. */
typedef struct aot_eval {
    const aot_value *v;
    aot_value t[AOT_MAX_CHAINS + 1];
    const char *fault;
} aot_eval;

typedef aot_value (*aot_expression)(aot_eval *e);

static const char aot_overflow[] = "a number on the way needs more than 64 bits";

AOT_FN aot_value aot_i(int64_t i)
{
    aot_value made = {AOT_KIND_INT, 0, 0.0};
    made.i = i;
    return made;
}

AOT_FN aot_value aot_b(bool b)
{
    aot_value made = {AOT_KIND_BOOL, 0, 0.0};
    made.i = b ? 1 : 0;
    return made;
}

AOT_FN aot_value aot_f(double f)
{
    aot_value made = {AOT_KIND_FLOAT, 0, 0.0};
    made.f = f;
    return made;
}

AOT_FN aot_value aot_s(int64_t position)
{
    aot_value made = {AOT_KIND_TEXT, 0, 0.0};
    made.i = position;
    return made;
}

AOT_FN aot_value aot_faulty(aot_eval *e, const char *why)
{
    if (e->fault == NULL) e->fault = why;
    return aot_i(0);
}

AOT_FN bool aot_is_float(aot_value a, aot_value b) { return a.kind == AOT_KIND_FLOAT || b.kind == AOT_KIND_FLOAT; }

AOT_FN bool aot_no_number(aot_eval *e, aot_value a, aot_value b)
{
    if (a.kind != AOT_KIND_TEXT && b.kind != AOT_KIND_TEXT) return false;
    (void)aot_faulty(e, "a text is computed with");
    return true;
}

AOT_FN double aot_as_float(aot_value a) { return a.kind == AOT_KIND_FLOAT ? a.f : (double)a.i; }

AOT_FN bool aot_true(aot_eval *e, aot_value a)
{
    (void)aot_no_number(e, a, a);
    return a.kind == AOT_KIND_FLOAT ? a.f < 0 || a.f > 0 || a.f != a.f : a.i != 0;
}

AOT_FN aot_value aot_add(aot_eval *e, aot_value a, aot_value b)
{
    int64_t sum = 0;
    if (aot_no_number(e, a, b)) return a;
    if (aot_is_float(a, b)) return aot_f(aot_as_float(a) + aot_as_float(b));
    return __builtin_add_overflow(a.i, b.i, &sum) ? aot_faulty(e, aot_overflow) : aot_i(sum);
}

AOT_FN aot_value aot_sub(aot_eval *e, aot_value a, aot_value b)
{
    int64_t difference = 0;
    if (aot_no_number(e, a, b)) return a;
    if (aot_is_float(a, b)) return aot_f(aot_as_float(a) - aot_as_float(b));
    return __builtin_sub_overflow(a.i, b.i, &difference) ? aot_faulty(e, aot_overflow) : aot_i(difference);
}

AOT_FN aot_value aot_mul(aot_eval *e, aot_value a, aot_value b)
{
    int64_t product = 0;
    if (aot_no_number(e, a, b)) return a;
    if (aot_is_float(a, b)) return aot_f(aot_as_float(a) * aot_as_float(b));
    return __builtin_mul_overflow(a.i, b.i, &product) ? aot_faulty(e, aot_overflow) : aot_i(product);
}

AOT_FN aot_value aot_neg(aot_eval *e, aot_value a)
{
    return a.kind == AOT_KIND_FLOAT ? aot_f(-a.f) : aot_sub(e, aot_i(0), a);
}

AOT_FN aot_value aot_pos(aot_eval *e, aot_value a)
{
    return a.kind == AOT_KIND_FLOAT ? a : aot_add(e, aot_i(0), a);
}

AOT_FN aot_value aot_abs(aot_eval *e, aot_value a)
{
    if (a.kind == AOT_KIND_FLOAT) return aot_f(fabs(a.f));
    return a.i < 0 ? aot_neg(e, a) : aot_pos(e, a);
}

AOT_FN bool aot_by_zero(aot_eval *e, aot_value b)
{
    if (aot_true(e, b)) return false;
    (void)aot_faulty(e, "division by zero");
    return true;
}

/* Both have to be floats without rounding, or the quotient would be rounded twice. */
AOT_FN aot_value aot_div(aot_eval *e, aot_value a, aot_value b)
{
    const int64_t exact = (int64_t)1 << 53;
    if (aot_no_number(e, a, b) || aot_by_zero(e, b)) return a;
    if (!aot_is_float(a, b) && (a.i > exact || a.i < -exact || b.i > exact || b.i < -exact))
        return aot_faulty(e, "an integer beyond 2**53 is divided by /");
    return aot_f(aot_as_float(a) / aot_as_float(b));
}

AOT_FN aot_value aot_float_floordiv(double a, double b)
{
    double rest = fmod(a, b), quotient = (a - rest) / b, whole;
    if ((rest < 0 || rest > 0) && (b < 0) != (rest < 0)) quotient -= 1.0;
    if (!(quotient < 0 || quotient > 0)) return aot_f(quotient != quotient ? quotient : copysign(0.0, a / b));
    whole = floor(quotient);
    return aot_f(quotient - whole > 0.5 ? whole + 1.0 : whole);
}

AOT_FN aot_value aot_floordiv(aot_eval *e, aot_value a, aot_value b)
{
    if (aot_no_number(e, a, b) || aot_by_zero(e, b)) return a;
    if (aot_is_float(a, b)) return aot_float_floordiv(aot_as_float(a), aot_as_float(b));
    if (b.i == -1) return aot_neg(e, a);
    return aot_i(a.i / b.i - (a.i % b.i != 0 && (a.i < 0) != (b.i < 0) ? 1 : 0));
}

AOT_FN aot_value aot_mod(aot_eval *e, aot_value a, aot_value b)
{
    double rest;
    if (aot_no_number(e, a, b) || aot_by_zero(e, b)) return a;
    if (!aot_is_float(a, b)) {
        int64_t left = b.i == -1 ? 0 : a.i % b.i;
        return aot_i(left != 0 && (left < 0) != (b.i < 0) ? left + b.i : left);
    }
    rest = fmod(aot_as_float(a), aot_as_float(b));
    if (!(rest < 0 || rest > 0)) return aot_f(rest != rest ? rest : copysign(0.0, aot_as_float(b)));
    return aot_f((aot_as_float(b) < 0) != (rest < 0) ? rest + aot_as_float(b) : rest);
}

AOT_FN aot_value aot_pow(aot_eval *e, aot_value a, aot_value b)
{
    double base, exponent, power;
    if (aot_no_number(e, a, b)) return a;
    if (!aot_is_float(a, b) && b.i >= 0) {
        aot_value product = aot_i(1);
        for (int64_t i = 0; i < b.i && e->fault == NULL; i++) product = aot_mul(e, product, a);
        return product;
    }
    base = aot_as_float(a);
    exponent = aot_as_float(b);
    if (base < 0 && isfinite(base) && isfinite(exponent) && floor(exponent) < exponent)
        return aot_faulty(e, "a fractional power of a negative number");
    if (!(base < 0 || base > 0) && base == base && exponent < 0) return aot_faulty(e, "division by zero");
    power = pow(base, exponent);
    return isinf(power) && isfinite(base) && isfinite(exponent) ? aot_faulty(e, "a power is too large") : aot_f(power);
}

/* -1, 0, 1: a is less, equal, more; 2: neither, as one is no number. An integer and a float are compared exactly. */
AOT_FN int aot_order(aot_value a, aot_value b)
{
    if (a.kind != AOT_KIND_FLOAT && b.kind != AOT_KIND_FLOAT) return a.i < b.i ? -1 : a.i > b.i;
    if (a.kind == AOT_KIND_FLOAT && b.kind == AOT_KIND_FLOAT)
        return a.f < b.f ? -1 : a.f > b.f ? 1 : a.f >= b.f ? 0 : 2;
    if (a.kind == AOT_KIND_FLOAT) {
        int turned = aot_order(b, a);
        return turned == 2 ? 2 : -turned;
    }
    if (b.f != b.f) return 2;
    if (b.f >= 9223372036854775808.0) return -1;
    if (b.f < -9223372036854775808.0) return 1;
    if (a.i != (int64_t)b.f) return a.i < (int64_t)b.f ? -1 : 1;
    return b.f > trunc(b.f) ? -1 : b.f < trunc(b.f) ? 1 : 0;
}

AOT_FN bool aot_eq(aot_value a, aot_value b)
{
    if ((a.kind == AOT_KIND_TEXT) != (b.kind == AOT_KIND_TEXT)) return false;
    return aot_order(a, b) == 0;
}

AOT_FN bool aot_lt(aot_eval *e, aot_value a, aot_value b) { return !aot_no_number(e, a, b) && aot_order(a, b) == -1; }
AOT_FN bool aot_gt(aot_eval *e, aot_value a, aot_value b) { return !aot_no_number(e, a, b) && aot_order(a, b) == 1; }
AOT_FN bool aot_le(aot_eval *e, aot_value a, aot_value b) { return !aot_no_number(e, a, b) && aot_order(a, b) <= 0; }
AOT_FN bool aot_ge(aot_eval *e, aot_value a, aot_value b)
{
    int order = aot_order(a, b);
    return !aot_no_number(e, a, b) && (order == 0 || order == 1);
}

AOT_FN aot_value aot_min(aot_eval *e, aot_value a, aot_value b) { return aot_lt(e, b, a) ? b : a; }
AOT_FN aot_value aot_max(aot_eval *e, aot_value a, aot_value b) { return aot_gt(e, b, a) ? b : a; }

AOT_FN aot_value aot_cdiv(aot_eval *e, aot_value a, aot_value b)
{
    return aot_neg(e, aot_floordiv(e, aot_neg(e, a), b));
}

AOT_FN aot_value aot_next_pow2(aot_eval *e, aot_value a)
{
    int64_t power = 1;
    if (a.kind == AOT_KIND_FLOAT || aot_no_number(e, a, a)) return aot_faulty(e, "next_pow2() takes an integer");
    if (a.i > (int64_t)1 << 62) return aot_faulty(e, aot_overflow);
    while (power < a.i) power *= 2;
    return aot_i(power);
}
