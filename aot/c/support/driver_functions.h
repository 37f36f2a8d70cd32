#define AOT_MEMBER(name, parameters) int (*name) parameters;
#define AOT_DECLARE(name, parameters) int name parameters;
#define AOT_TAKE(name, parameters) aot_driver.name = name;
#define AOT_LOOK_UP(name, parameters) \
    if (!aot_find_symbol(#name, &aot_driver.name, sizeof aot_driver.name) && missing == NULL) missing = #name;

typedef struct aot_driver_table { AOT_FUNCTIONS(AOT_MEMBER) } aot_driver_table;

#ifdef AOT_LINK_DRIVER
#ifdef __cplusplus
extern "C" {
#endif
AOT_FUNCTIONS(AOT_DECLARE)
#ifdef __cplusplus
}
#endif
#endif

static aot_driver_table aot_driver;
static void *aot_driver_library;

/* An open bundle. */
typedef struct aot_opened {
    aot_bundle head;
    char *folder;
    int device, num_cus, num_xcds, has_pools;
    char arch[64];
    void *context, *pool;
    aot_allocator allocator;
    pthread_mutex_t lock;
    void *modules[AOT_CODE_OBJECTS + 1], *functions[AOT_VARIANTS + 1];
    unsigned char *images[AOT_CODE_OBJECTS + 1];
} aot_opened;

/* What a pool of a device's memory is made of, for HIP and for CUDA. */
typedef struct aot_pool_properties {
    int kind, handles, location, device;
    void *security;
    size_t most;
    unsigned char reserved[56];
} aot_pool_properties;

enum { AOT_RELEASE_THRESHOLD = 4 };

static aot_pool_properties aot_pool_of(int device)
{
    aot_pool_properties properties;
    memset(&properties, 0, sizeof properties);
    properties.kind = 1;     /* pinned */
    properties.location = 1; /* on a device */
    properties.device = device;
    return properties;
}

/* Put the address of a function into a pointer to it. */
static bool aot_find_symbol(const char *name, void *pointer, size_t size)
{
    void *symbol = dlsym(aot_driver_library == NULL ? RTLD_DEFAULT : aot_driver_library, name);
    if (symbol != NULL) memcpy(pointer, &symbol, size);
    return symbol != NULL;
}

static const char *aot_status_name(int status);

/* Of statuses, HIP and CUDA agree on this one. */
enum { AOT_OUT_OF_MEMORY = 2 };

static bool aot_driver_fail(aot_status *status, const char *call, int code)
{
    return aot_fail(status, code == AOT_OUT_OF_MEMORY ? AOT_MEMORY : AOT_DEVICE, "%s failed: %s (%d)", call,
                    aot_status_name(code), code);
}

/* Call a function of the driver, and return false where it fails. */
#define AOT_TRY(status, name, arguments)                                     \
    do {                                                                     \
        int aot_result = aot_driver.name arguments;                          \
        if (aot_result != 0) return aot_driver_fail(status, #name, aot_result); \
    } while (0)
