/* ---- Tensor maps: kernargs by which the hardware copies boxes of a tensor ---------------------------------------- */

#if AOT_MAPS
/* Up to this version the driver marks maps of small tensors wrongly; the mark is a bit of the second word. */
enum { AOT_LAST_TO_MARK = 13010, AOT_SMALL = 128 << 10, AOT_MARK = 1 << 21 };
enum { AOT_NOT_INTERLEAVED = 0, AOT_PROMOTED_TO_128_BYTES = 2, AOT_MAP_BYTES = 128 };

static bool aot_encode_map(const aot_map *map, const aot_tensor *tensor, unsigned char *at, aot_status *status)
{
    unsigned char room[2 * AOT_MAP_BYTES];
    unsigned char *made = room + (AOT_MAP_BYTES - (uintptr_t)room % AOT_MAP_BYTES) % AOT_MAP_BYTES;
    uint64_t shape[5], strides[5], reach = 1, itemsize = (uint64_t)aot_itemsize(tensor->dtype);
    uint32_t box[5], steps[5];
    int version = 0;
    for (int i = 0; i < map->rank; i++) { /* CUDA counts dims from the innermost one */
        int dim = map->dims[map->rank - 1 - i];
        uint64_t step = i == 0 ? itemsize : tensor->shape[dim] == 1 ? 16 : (uint64_t)tensor->strides[dim] * itemsize;
        shape[i] = (uint64_t)tensor->shape[dim];
        box[i] = map->box[map->rank - 1 - i];
        steps[i] = 1;
        if (i > 0) strides[i - 1] = step;
        reach += (shape[i] - 1) * step;
    }
    AOT_TRY(status, cuTensorMapEncodeTiled,
            (made, map->type, (uint32_t)map->rank, (void *)(uintptr_t)tensor->address, shape, strides, box, steps,
             AOT_NOT_INTERLEAVED, map->swizzle, AOT_PROMOTED_TO_128_BYTES, map->fill));
    AOT_TRY(status, cuDriverGetVersion, (&version));
    if (version <= AOT_LAST_TO_MARK && reach < AOT_SMALL) {
        uint64_t word;
        memcpy(&word, made + 8, sizeof word);
        word &= ~(uint64_t)AOT_MARK;
        memcpy(made + 8, &word, sizeof word);
    }
    memcpy(at, made, AOT_MAP_BYTES);
    return true;
}
#endif

/* Put the maps of tensors into the kernargs. */
static bool aot_pack_maps(const aot_plan *p, aot_decision *d, aot_status *status)
{
    (void)p, (void)d, (void)status;
#if AOT_MAPS
    for (int i = 0; i < d->count; i++) {
        const aot_layout *layout = &p->op->layouts[d->launches[i].variant->layout];
        for (int n = 0; n < layout->count; n++) {
            const aot_kernarg *arg = &layout->kernargs[n];
            unsigned char *at = d->launches[i].kernargs + arg->offset;
            if (arg->map != NULL && !aot_encode_map(arg->map, p->tensors[arg->index], at, status)) return false;
        }
    }
#endif
    return true;
}
