/* Plans calls by a bundle's own source, with no device; `BUNDLE` is that file. */
#include BUNDLE

#define WRITE(...) used += (size_t)snprintf(text + used, size - used, __VA_ARGS__)

/* What a call becomes, as JSON: each launch's variant, grid, kernargs and bytes of scratch, and each workspace's
 * bytes. */
#ifdef __cplusplus
extern "C" {
#endif
int harness_plan(uint64_t signature, int request, const void *args, int num_cus, int num_xcds, char *text, size_t size);
int harness_may_overlap(const aot_tensor *one, const aot_tensor *other);
int harness_is_nested(const aot_tensor *tensor);
#ifdef __cplusplus
}
#endif

int harness_plan(uint64_t signature, int request, const void *args, int num_cus, int num_xcds, char *text, size_t size)
{
    aot_status status;
    aot_plan p;
    aot_decision d;
    size_t used = 0;
    p.status = &status;
    p.num_cus = num_cus;
    p.num_xcds = num_xcds;
    if (!aot_plan_call(&p, &d, signature, (aot_request)request, args)) {
        WRITE("%s", status.message);
        return status.code;
    }
    if (request == AOT_OUTPUTS) {
        for (int i = 0; i < p.op->n_tensors; i++)
            if (p.tensors[i] == &p.laid_out[i]) ((aot_tensor *)(uintptr_t)args)[i] = p.laid_out[i];
        return 0;
    }
    WRITE("{\"launches\": [");
    for (int i = 0; i < d.count; i++) {
        const aot_chosen *c = &d.launches[i];
        WRITE("%s[\"%s\", [%u, %u, %u], \"", i ? ", " : "", c->variant->name, c->grid[0], c->grid[1], c->grid[2]);
        for (uint32_t n = 0; n < c->variant->kernarg_bytes; n++) WRITE("%02x", c->kernargs[n]);
        WRITE("\", %" PRIu64 "]", c->scratch);
    }
    WRITE("], \"workspaces\": [");
    for (int i = 0; i < p.op->n_workspaces; i++) WRITE("%s%" PRIu64, i ? ", " : "", d.workspaces[i]);
    WRITE("]}");
    return 0;
}

int harness_may_overlap(const aot_tensor *one, const aot_tensor *other)
{
    return aot_may_overlap(one, other);
}

int harness_is_nested(const aot_tensor *tensor)
{
    return aot_is_nested(tensor);
}
