/* ---- What a contract is, as tables ------------------------------------------------------------------------------ */

typedef enum aot_role { AOT_INPUT, AOT_OUTPUT, AOT_INOUT } aot_role;

typedef struct aot_extent {
    const char *text;
    aot_expression value;
    bool broadcast; /* 1 is allowed instead */
    bool source;    /* a dim is read from it, so that there is nothing to compare it with */
} aot_extent;

typedef struct aot_tensor_rule {
    const char *name, *shape, *dtypes; /* the last two as messages show them */
    uint32_t allowed;                  /* dtypes, a bit each */
    int variable, like;                /* its dtype variable, and the first required input of that; -1: none */
    aot_role role;
    bool optional, align, align_strides, large, zero;
    bool also_int64; /* of int32: kernels get the address and strides of its low halves */
    int rank; /* -1: any, of a pointer */
    const aot_extent *extents;
    const signed char *contiguous, *innermost; /* positions, -1 behind the last one */
    uint64_t in_place;                         /* tensors that it may be itself, a bit each */
    const char *when;
    aot_expression exists; /* NULL: always */
} aot_tensor_rule;

typedef struct aot_dim_rule {
    const char *name;
    int slot, tensor, position;
    aot_expression inverse; /* NULL: the extent itself */
    int64_t low, high;
} aot_dim_rule;

typedef enum aot_query_kind {
    AOT_GIVEN, AOT_ELSIZE, AOT_STRIDE, AOT_INNERMOST, AOT_IS_ALIGNED, AOT_FITS_32_BITS
} aot_query_kind;

typedef struct aot_query {
    aot_query_kind kind;
    int slot, tensor, position;
    bool of_output; /* answered when the outputs are known */
} aot_query;

typedef enum aot_type {
#include "scalar_enumerators"
    AOT_FLAG, AOT_CHOICE
} aot_type;

typedef struct aot_scalar_type {
    const char *name;
    aot_kind kind;
    unsigned char size; /* bytes in the kernarg segment */
    bool is_signed;
} aot_scalar_type;

/* By aot_type. */
static const aot_scalar_type aot_scalar_types[] = {
#include "scalar_types"
    {"flag", AOT_KIND_BOOL, 1, false}, {"choice", AOT_KIND_TEXT, 0, false}
};

typedef struct aot_scalar_rule {
    const char *name, *allowed;
    aot_type type;
    int slot;
    size_t offset; /* in the arguments */
    bool has_low, has_high;
    aot_value low, high;
    aot_expression standard; /* its default; NULL: the caller must pass it */
    const int *choices;      /* texts, in the order of its enum */
    int count;
} aot_scalar_rule;

typedef struct aot_constant {
    int slot;
    aot_value value;
} aot_constant;

typedef struct aot_named {
    const char *name;
    int slot;
} aot_named;

/* A dim whose extent is a multiple of a number in calls of the aligned variants. */
typedef struct aot_divisible {
    int slot;
    int64_t elements;           /* 0: of the elements in 16 bytes of each of the tensors */
    const signed char *tensors; /* positions, -1 behind the last one */
} aot_divisible;

typedef struct aot_requirement {
    const char *text;
    aot_expression holds;
    const aot_named *names;
    int count;
} aot_requirement;

typedef struct aot_derivation {
    const char *name;
    int slot;
    aot_expression value;
} aot_derivation;

/* A number that a call chooses by cost. */
typedef struct aot_alternative {
    const char *name;
    int slot;
    const aot_expression *values;
    int count;
} aot_alternative;

typedef enum aot_rule { AOT_EQUAL, AOT_SMALLEST_GE, AOT_SMALLEST_GT, AOT_LARGEST_LE, AOT_LARGEST_LT } aot_rule;

typedef struct aot_axis {
    const char *name, *wanted, *listed;
    int slot;
    aot_rule rule;
    aot_expression pick;
    const aot_value *values;
    int count;
} aot_axis;

typedef struct aot_dtype_variable {
    const char *name;
    int slot;
    const aot_dtype *dtypes;
    int count;
} aot_dtype_variable;

typedef struct aot_workspace {
    const char *name;
    const aot_expression *shape;
    int rank, itemsize, variable; /* its dtype variable; -1: none, and it is of so many bytes an element */
    bool zero;
} aot_workspace;

typedef struct aot_config {
    aot_expression when, cost; /* NULL: it serves all calls; it has no cost */
    const aot_value *values; /* of the launch's names */
} aot_config;

typedef struct aot_launch {
    const char *kernel;
    aot_expression when, grid[3];
    const int *slots; /* of the names that every config sets */
    int names;
    const aot_config *configs;
    int count;
} aot_launch;

typedef enum aot_source {
    AOT_OF_TENSOR, AOT_OF_WORKSPACE, AOT_OF_GLOBAL, AOT_OF_PROFILE, AOT_OF_VALUE, AOT_OF_MAP
} aot_source;

/* What a tensor map is made of besides the tensor; numbers as CUDA's driver has them. */
typedef struct aot_map {
    int type, rank, swizzle, fill;
    signed char dims[5]; /* of the tensor, outermost first */
    uint32_t box[5];
} aot_map;

typedef struct aot_kernarg {
    const char *name, *text;
    aot_source source;
    aot_type type;
    int index; /* of the tensor or the workspace */
    aot_expression value;
    const aot_map *map; /* NULL: it is none */
    uint32_t offset;
} aot_kernarg;

typedef struct aot_layout {
    const aot_kernarg *kernargs;
    int count;
} aot_layout;

/* Its key is the launch, the position of each dtype and axis value, 1 if it is aligned, and the config. */
typedef struct aot_variant {
    unsigned char key[AOT_MAX_KEY];
    const char *name, *symbol;
    int code, layout;
    uint32_t threads, lds_bytes, kernarg_bytes, global_scratch, profile_scratch, alignment;
} aot_variant;

typedef struct aot_op {
    const char *name;
    uint64_t signature;
    const aot_tensor_rule *tensors;
    const aot_dim_rule *dims;
    const aot_query *queries;
    const aot_scalar_rule *scalars;
    const aot_requirement *required;
    const aot_derivation *derived;
    const aot_alternative *alternatives;
    const aot_constant *constants;
    const aot_dtype_variable *variables;
    const aot_axis *axes;
    const aot_divisible *divisible;
    const aot_workspace *workspaces;
    const aot_launch *launches;
    const aot_layout *layouts;
    const aot_variant *variants;
    int n_tensors, n_dims, n_queries, n_scalars, n_required, n_derived, n_alternatives, n_constants, n_variables, n_axes,
        n_divisible, n_workspaces, n_launches, n_variants;
    int extent, aligned, num_cus, num_xcds; /* slots */
    bool wide_offsets;
    const char *built; /* what there are variants of, for messages */
} aot_op;

typedef struct aot_code_object {
    const char *file, *sha256;
    uint32_t size;
} aot_code_object;
