/* ---- The driver itself: found once in a process ------------------------------------------------------------------ */

static pthread_mutex_t aot_driver_lock = PTHREAD_MUTEX_INITIALIZER;
static bool aot_driver_is_there;

#ifdef AOT_LINK_DRIVER
static bool aot_find_driver(aot_status *status)
{
    (void)status;
    AOT_FUNCTIONS(AOT_TAKE)
    return true;
}
#else
/* What the process has already, else what the environment names, else what the loader finds. */
static void *aot_open_library(void)
{
    static const char *const names[] = AOT_LIBRARY_NAMES;
    const int count = (int)(sizeof names / sizeof *names);
    const char *named = getenv(AOT_LIBRARY_VARIABLE);
    void *found = NULL;
    for (int i = 0; i < count && found == NULL; i++) found = dlopen(names[i], RTLD_NOW | RTLD_NOLOAD);
    if (found == NULL && named != NULL && *named != 0) return dlopen(named, RTLD_NOW);
    for (int i = 0; i < count && found == NULL; i++) found = dlopen(names[i], RTLD_NOW);
    return found;
}

static bool aot_find_driver(aot_status *status)
{
    const char *missing = NULL, *error;
    aot_driver_library = aot_open_library();
    if (aot_driver_library == NULL) {
        error = dlerror();
        return aot_fail(status, AOT_DEVICE, "the GPU's driver cannot be loaded: %s; " AOT_LIBRARY_VARIABLE
                        " may name the library", error == NULL ? "not found" : error);
    }
    AOT_FUNCTIONS(AOT_LOOK_UP)
    return missing == NULL || aot_fail(status, AOT_DEVICE, "the GPU's driver is too old: it has no %s", missing);
}
#endif

static bool aot_load_driver(aot_status *status)
{
    (void)pthread_mutex_lock(&aot_driver_lock);
    if (!aot_driver_is_there) aot_driver_is_there = aot_find_driver(status);
    bool is_there = aot_driver_is_there;
    (void)pthread_mutex_unlock(&aot_driver_lock);
    return is_there;
}
