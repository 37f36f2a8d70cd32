#if defined(AOT_TYPES) && AOT_TYPES != $VERSION
#error "this bundle and one that was included before are of versions of aotbuild that cannot be used in one file"
#endif
#ifndef AOT_TYPES
#define AOT_TYPES $VERSION
#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What became of a call. Every code but AOT_OK means that nothing was launched, unless the message says so. */
typedef enum aot_code {
    AOT_OK = 0,
    AOT_ARGUMENT,   /* an argument breaks the op's contract */
    AOT_NO_VARIANT, /* the contract holds, but the bundle has no code object for these arguments */
    AOT_BUNDLE,     /* the bundle's folder, or a file in it, is not what the program was compiled for */
    AOT_ARCH_MISMATCH, /* the bundle is for another architecture than the device has */
    AOT_DEVICE,     /* there is no driver or no such device, or the driver reported an error */
    AOT_MEMORY      /* the host or the device is out of memory */
} aot_code;

typedef struct aot_status {
    aot_code code;
    char message[1020]; /* empty where the code is AOT_OK, unless a function says what is in it */
} aot_status;

typedef enum aot_dtype {
    AOT_ABSENT = 0, /* of a tensor that the call does not have */
#include "dtype_enumerators"
} aot_dtype;

static_assert(sizeof(aot_dtype) == sizeof(int), "the dispatcher takes enums to be as large as int");

#define AOT_MAX_RANK 8

/* An array in device memory. All zeros: the call does not have that tensor. */
typedef struct aot_tensor {
    uint64_t address; /* on the device */
    aot_dtype dtype;
    int32_t rank;
    int64_t shape[AOT_MAX_RANK];
    int64_t strides[AOT_MAX_RANK]; /* in elements */
} aot_tensor;

/* Scalars; all zeros: the call does not pass it, and it has its default. */
typedef struct aot_int { int64_t value; bool given; } aot_int;
typedef struct aot_float { double value; bool given; } aot_float;
typedef struct aot_flag { bool value; bool given; } aot_flag;

static inline aot_int aot_set_int(int64_t value) { aot_int made; made.value = value; made.given = true; return made; }
static inline aot_float aot_set_float(double value)
{
    aot_float made;
    made.value = value;
    made.given = true;
    return made;
}
static inline aot_flag aot_set_flag(bool value) { aot_flag made; made.value = value; made.given = true; return made; }

/* Bytes of an element; 0 for AOT_ABSENT. */
static inline int64_t aot_itemsize(aot_dtype dtype)
{
    switch (dtype) {
#include "dtype_sizes"
    default: return 0;
    }
}

/* A tensor in C order with no gaps. */
static inline aot_tensor aot_packed(uint64_t address, aot_dtype dtype, int32_t rank, const int64_t *shape)
{
    aot_tensor made;
    int64_t step = 1;
    made.address = address;
    made.dtype = dtype;
    made.rank = rank;
    for (int32_t i = 0; i < AOT_MAX_RANK; i++) {
        made.shape[i] = i < rank ? shape[i] : 0;
        made.strides[i] = 0;
    }
    for (int32_t i = rank < AOT_MAX_RANK ? rank : AOT_MAX_RANK; i-- > 0; step *= shape[i]) made.strides[i] = step;
    return made;
}

/* Bytes that a tensor with no gaps needs. */
static inline int64_t aot_bytes(const aot_tensor *tensor)
{
    int64_t bytes = aot_itemsize(tensor->dtype);
    for (int32_t i = 0; i < tensor->rank && i < AOT_MAX_RANK; i++) bytes *= tensor->shape[i];
    return bytes;
}

/* Where a call's scratch memory comes from. By default it is a memory pool of the driver. Both functions are called
 * with the device current, and from every thread that makes calls. Memory is used by work of `stream` alone, and
 * released when that work is enqueued, not done. `allocate` returns 0 and an address that is a multiple of 256. */
typedef struct aot_allocator {
    void *context;
    int (*allocate)(void *context, uint64_t bytes, void *stream, uint64_t *address);
    void (*release)(void *context, uint64_t address, uint64_t bytes, void *stream);
} aot_allocator;

typedef struct aot_library aot_library;

/* An open bundle on one device; what follows the first member is not a program's business. */
typedef struct aot_bundle { const aot_library *library; } aot_bundle;

typedef enum aot_request { AOT_CALL, AOT_OUTPUTS, AOT_EXPLAIN } aot_request;

/* What the source file of a bundle defines. */
struct aot_library {
    const char *bundle, *arch, *id;
    void (*open)(const char *folder, int device, const aot_allocator *allocator, aot_bundle **opened,
                 aot_status *status);
    void (*close)(aot_bundle *bundle);
    void (*call)(aot_bundle *bundle, uint64_t signature, aot_request request, const void *args, void *stream,
                 aot_status *status);
};

/* Open a bundle for a device, by the driver's number of it. No code object is loaded yet. An open bundle may be used by
 * any number of threads. `folder` is the bundle's, the one with bundle.json. `allocator` may be NULL. */
static inline aot_status aot_open(const aot_library *library, const char *folder, int device,
                                  const aot_allocator *allocator, aot_bundle **opened)
{
    aot_status status;
    library->open(folder, device, allocator, opened, &status);
    return status;
}

/* Unload a bundle's code objects, once no work that uses them is left. NULL is no error. */
static inline void aot_close(aot_bundle *bundle)
{
    if (bundle != NULL) bundle->library->close(bundle);
}

/* What the functions of ops do: `signature` says which op, and which arguments the program was compiled with. */
static inline aot_status aot_invoke(aot_bundle *bundle, uint64_t signature, aot_request request, const void *args,
                                    void *stream)
{
    aot_status status;
    bundle->library->call(bundle, signature, request, args, stream, &status);
    return status;
}

#ifdef __cplusplus
}
#endif
#endif
