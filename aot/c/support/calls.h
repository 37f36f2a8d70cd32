/* ---- Calls: code loaded when it is first needed, scratch memory, launches ---------------------------------------- */

/* The function of a variant, loaded by the first call that needs it. Called with the device current. */
static bool aot_load(aot_opened *b, const aot_op *op, const aot_variant *variant, void **function, aot_status *status)
{
    int number = aot_first_variant[op - aot_ops] + (int)(variant - op->variants);
    bool is_there = true;
    *function = __atomic_load_n(&b->functions[number], __ATOMIC_ACQUIRE);
    if (*function != NULL) return true;
    (void)pthread_mutex_lock(&b->lock);
    if (b->modules[variant->code] == NULL) {
        unsigned char *image = aot_read_code(b->folder, &aot_code_objects[variant->code], status);
        is_there = image != NULL && aot_load_module(image, &b->modules[variant->code], status);
        if (is_there) b->images[variant->code] = image;
        else free(image);
    }
    is_there = is_there && aot_find_function(b->modules[variant->code], variant, function, status);
    if (is_there) __atomic_store_n(&b->functions[number], *function, __ATOMIC_RELEASE);
    (void)pthread_mutex_unlock(&b->lock);
    return is_there;
}

static bool aot_allocate(aot_opened *b, uint64_t bytes, void *stream, uint64_t *address, aot_status *status)
{
    if (b->allocator.allocate != NULL) {
        int failure = b->allocator.allocate(b->allocator.context, bytes, stream, address);
        return failure == 0 || aot_fail(status, AOT_MEMORY, "the program's allocator gives no %" PRIu64
                                        " bytes: it returned %d", bytes, failure);
    }
    (void)pthread_mutex_lock(&b->lock);
    bool is_there = aot_create_pool(b, status);
    (void)pthread_mutex_unlock(&b->lock);
    return is_there && aot_pool_allocate(b, bytes, stream, address, status);
}

static void aot_release(aot_opened *b, uint64_t address, uint64_t bytes, void *stream)
{
    if (b->allocator.allocate != NULL) b->allocator.release(b->allocator.context, address, bytes, stream);
    else aot_pool_release(b, address, stream);
}

/* Where in the call's scratch memory a piece of it lies; `end` grows. */
static uint64_t aot_place(uint64_t bytes, uint64_t alignment, uint64_t *end)
{
    uint64_t start = (*end + alignment - 1) / alignment * alignment;
    if (bytes == 0) return *end;
    *end = start + bytes;
    return start;
}

typedef struct aot_scratch {
    uint64_t workspaces[AOT_MAX_WORKSPACES + 1], global[AOT_MAX_LAUNCHES + 1], profile[AOT_MAX_LAUNCHES + 1], bytes;
} aot_scratch;

/* One piece of memory for everything that a call needs; its parts are multiples of 256 bytes apart. */
static aot_scratch aot_arrange(const aot_op *op, const aot_decision *d)
{
    aot_scratch s;
    memset(&s, 0, sizeof s);
    for (int i = 0; i < op->n_workspaces; i++) s.workspaces[i] = aot_place(d->workspaces[i], 256, &s.bytes);
    for (int i = 0; i < d->count; i++) {
        uint64_t alignment = d->launches[i].variant->alignment > 256 ? d->launches[i].variant->alignment : 256;
        s.global[i] = aot_place(d->launches[i].scratch, alignment, &s.bytes);
        s.profile[i] = aot_place(d->launches[i].profile, alignment, &s.bytes);
    }
    return s;
}

/* Put the addresses of scratch memory into the kernargs. What has no bytes has the address 0. */
static void aot_pack_addresses(const aot_op *op, aot_decision *d, const aot_scratch *s, uint64_t address)
{
    for (int i = 0; i < d->count; i++) {
        const aot_layout *layout = &op->layouts[d->launches[i].variant->layout];
        for (int n = 0; n < layout->count; n++) {
            const aot_kernarg *arg = &layout->kernargs[n];
            uint64_t at = 0;
            if (arg->source == AOT_OF_WORKSPACE && d->workspaces[arg->index] > 0)
                at = address + s->workspaces[arg->index];
            else if (arg->source == AOT_OF_GLOBAL && d->launches[i].scratch > 0)
                at = address + s->global[i];
            else if (arg->source == AOT_OF_PROFILE && d->launches[i].profile > 0)
                at = address + s->profile[i];
            if (at != 0) memcpy(d->launches[i].kernargs + arg->offset, &at, sizeof at);
        }
    }
}

/* Zero the outputs that want it; they are packed. */
static bool aot_zero_outputs(const aot_plan *p, void *stream, aot_status *status)
{
    for (int i = 0; i < p->op->n_tensors; i++) {
        const aot_tensor *tensor = p->tensors[i];
        if (!p->op->tensors[i].zero || tensor == NULL) continue;
        uint64_t bytes = (uint64_t)aot_itemsize(tensor->dtype);
        for (int dim = 0; dim < tensor->rank; dim++) bytes *= (uint64_t)tensor->shape[dim];
        if (bytes > 0 && !aot_zero(tensor->address, bytes, stream, status)) return false;
    }
    return true;
}

static bool aot_enqueue_all(const aot_op *op, aot_decision *d, const aot_scratch *s, uint64_t address, void *stream,
                            void *const *functions, aot_status *status)
{
    for (int i = 0; i < op->n_workspaces; i++)
        if (op->workspaces[i].zero && d->workspaces[i] > 0 &&
            !aot_zero(address + s->workspaces[i], d->workspaces[i], stream, status))
            return false;
    for (int i = 0; i < d->count; i++) {
        aot_chosen *chosen = &d->launches[i];
        size_t size = chosen->variant->kernarg_bytes;
        void *extra[5];
        extra[0] = (void *)1; /* the buffer's address */
        extra[1] = chosen->kernargs;
        extra[2] = (void *)2; /* its size */
        extra[3] = &size;
        extra[4] = (void *)AOT_LAUNCH_END;
        if (!aot_enqueue(functions[i], chosen->grid, chosen->variant, stream, extra, status)) {
            size_t used = strlen(status->message);
            (void)snprintf(status->message + used, sizeof status->message - used, " (launch %d of %d, %s)", i + 1,
                           d->count, chosen->variant->name);
            return false;
        }
    }
    return true;
}

/* Launch what was decided, with the device current. */
static bool aot_launch_all(aot_opened *b, const aot_plan *p, aot_decision *d, void *stream, aot_status *status)
{
    const aot_op *op = p->op;
    void *functions[AOT_MAX_LAUNCHES + 1];
    aot_scratch s = aot_arrange(op, d);
    uint64_t address = 0;
    for (int i = 0; i < d->count; i++)
        if (!aot_load(b, op, d->launches[i].variant, &functions[i], status)) return false;
    if (!aot_pack_maps(p, d, status) || !aot_zero_outputs(p, stream, status)) return false;
    if (d->count == 0) return true;
    if (s.bytes > 0 && !aot_allocate(b, s.bytes, stream, &address, status)) return false;
    aot_pack_addresses(op, d, &s, address);
    bool was_launched = aot_enqueue_all(op, d, &s, address, stream, functions, status);
    if (s.bytes > 0) aot_release(b, address, s.bytes, stream);
    return was_launched;
}

/* What a call would launch, a line each, in the status's message. */
static void aot_explain(const aot_plan *p, const aot_decision *d)
{
    aot_text text = aot_new_text();
    for (int i = 0; i < d->count; i++)
        aot_write(&text, "%s%s, grid (%" PRIu32 ", %" PRIu32 ", %" PRIu32 ")", i > 0 ? "\n" : "",
                  d->launches[i].variant->name, d->launches[i].grid[0], d->launches[i].grid[1], d->launches[i].grid[2]);
    (void)aot_fail(p->status, AOT_OK, "%s", d->count == 0 ? "nothing is launched" : text.content);
}

/* What a call launches; for the other requests as much of it as they need. */
static bool aot_plan_call(aot_plan *p, aot_decision *d, uint64_t signature, aot_request request, const void *args)
{
    p->op = NULL;
    p->status->code = AOT_OK;
    p->status->message[0] = 0;
    for (int i = 0; i < AOT_OPS && p->op == NULL; i++)
        if (aot_ops[i].signature == signature) p->op = &aot_ops[i];
    if (p->op == NULL)
        return aot_fail(p->status, AOT_BUNDLE, "%s: the program was compiled with another header than %s.c has: the "
                        "op is not in it, or has other arguments", aot_bundle_name, aot_bundle_name);
    p->lays_out = request != AOT_CALL;
    p->v[p->op->num_cus] = aot_i(p->num_cus);
    p->v[p->op->num_xcds] = aot_i(p->num_xcds);
    for (int i = 0; i < p->op->n_constants; i++) p->v[p->op->constants[i].slot] = p->op->constants[i].value;
    return aot_check(p, args) && (request == AOT_OUTPUTS || aot_decide(p, d)) &&
           (request != AOT_CALL || aot_require_apart(p));
}

static void aot_library_call(aot_bundle *bundle, uint64_t signature, aot_request request, const void *args,
                             void *stream, aot_status *status)
{
    aot_opened *b = (aot_opened *)bundle;
    aot_plan p;
    aot_decision d;
    uintptr_t before = 0;
    p.status = status;
    p.num_cus = b->num_cus;
    p.num_xcds = b->num_xcds;
    if (!aot_plan_call(&p, &d, signature, request, args)) return;
    if (request == AOT_EXPLAIN) aot_explain(&p, &d);
    for (int i = 0; i < p.op->n_tensors && request == AOT_OUTPUTS; i++)
        if (p.tensors[i] == &p.laid_out[i]) ((aot_tensor *)(uintptr_t)args)[i] = p.laid_out[i];
    if (request != AOT_CALL || !aot_device_enter(b, &before, status)) return;
    (void)aot_launch_all(b, &p, &d, stream, status);
    aot_device_leave(b, before);
}

static void aot_library_close(aot_bundle *bundle)
{
    aot_opened *b = (aot_opened *)bundle;
    aot_status ignored;
    uintptr_t before = 0;
    if (b->arch[0] != 0 && aot_device_enter(b, &before, &ignored)) {
        for (int i = 0; i < AOT_CODE_OBJECTS; i++) {
            if (b->modules[i] != NULL) aot_unload_module(b->modules[i]);
            free(b->images[i]);
        }
        aot_destroy_pool(b);
        aot_device_leave(b, before);
        aot_device_release(b);
    }
    (void)pthread_mutex_destroy(&b->lock);
    free(b->folder);
    free(b);
}

static bool aot_prepare(aot_opened *b, aot_status *status)
{
    if (!aot_check_folder(b->folder, aot_bundle_id, status) || !aot_load_driver(status) ||
        !aot_device_properties(b, status))
        return false;
    if (strcmp(b->arch, AOT_ARCH) != 0)
        return aot_fail(status, AOT_ARCH_MISMATCH, "bundle %s is for %s, but device %d is %s", b->folder, AOT_ARCH,
                        b->device, b->arch);
    if (b->num_xcds == 0) b->num_xcds = (b->num_cus * AOT_PRODUCT_XCDS + AOT_PRODUCT_CUS / 2) / AOT_PRODUCT_CUS;
    if (b->num_xcds == 0) b->num_xcds = 1;
    return true;
}

static void aot_library_open(const char *folder, int device, const aot_allocator *allocator, aot_bundle **opened,
                             aot_status *status)
{
    aot_opened *b = (aot_opened *)calloc(1, sizeof *b);
    status->code = AOT_OK;
    status->message[0] = 0;
    *opened = NULL;
    if (b != NULL) b->folder = (char *)malloc(strlen(folder) + 1);
    if (b == NULL || b->folder == NULL || pthread_mutex_init(&b->lock, NULL) != 0) {
        if (b != NULL) free(b->folder);
        free(b);
        (void)aot_fail(status, AOT_MEMORY, "no memory to open a bundle");
        return;
    }
    memcpy(b->folder, folder, strlen(folder) + 1);
    b->head.library = &AOT_LIBRARY;
    b->device = device;
    if (allocator != NULL) b->allocator = *allocator;
    if (aot_prepare(b, status)) *opened = &b->head;
    else aot_library_close(&b->head);
}
