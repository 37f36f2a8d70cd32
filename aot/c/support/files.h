/* ---- A bundle's files: read whole, and held to the SHA-256 that the index says ----------------------------------- */

static uint32_t aot_rotated(uint32_t word, int by) { return word >> by | word << (32 - by); }

static void aot_sha256_block(uint32_t *state, const unsigned char *block)
{
    static const uint32_t k[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2
    };
    uint32_t w[64], s[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)block[4 * i] << 24 | (uint32_t)block[4 * i + 1] << 16 | (uint32_t)block[4 * i + 2] << 8 |
               block[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = aot_rotated(w[i - 15], 7) ^ aot_rotated(w[i - 15], 18) ^ w[i - 15] >> 3;
        uint32_t b = aot_rotated(w[i - 2], 17) ^ aot_rotated(w[i - 2], 19) ^ w[i - 2] >> 10;
        w[i] = w[i - 16] + a + w[i - 7] + b;
    }
    memcpy(s, state, sizeof s);
    for (int i = 0; i < 64; i++) {
        uint32_t a = aot_rotated(s[4], 6) ^ aot_rotated(s[4], 11) ^ aot_rotated(s[4], 25);
        uint32_t one = s[7] + a + ((s[4] & s[5]) ^ (~s[4] & s[6])) + k[i] + w[i];
        uint32_t b = aot_rotated(s[0], 2) ^ aot_rotated(s[0], 13) ^ aot_rotated(s[0], 22);
        uint32_t two = b + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
        for (int n = 7; n > 0; n--) s[n] = s[n - 1];
        s[4] += one;
        s[0] = one + two;
    }
    for (int i = 0; i < 8; i++) state[i] += s[i];
}

/* The digest in hex, 64 digits and a zero. */
static void aot_sha256(const unsigned char *bytes, size_t size, char *hex)
{
    uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    unsigned char tail[128];
    size_t rest = size % 64, end = rest < 56 ? 64 : 128;
    for (size_t at = 0; at + 64 <= size; at += 64) aot_sha256_block(state, bytes + at);
    memset(tail, 0, sizeof tail);
    if (rest > 0) memcpy(tail, bytes + size - rest, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[end - 1 - (size_t)i] = (unsigned char)((uint64_t)size * 8 >> 8 * i & 0xff);
    for (size_t at = 0; at < end; at += 64) aot_sha256_block(state, tail + at);
    for (int i = 0; i < 8; i++) (void)snprintf(hex + 8 * i, 9, "%08" PRIx32, state[i]);
}

/* Up to `limit` bytes of a file below a folder, and a zero; NULL where it cannot be read. */
static unsigned char *aot_read(const char *folder, const char *name, size_t limit, size_t *size, aot_status *status)
{
    size_t length = strlen(folder) + strlen(name) + 2;
    char *path = (char *)malloc(length);
    unsigned char *content = (unsigned char *)malloc(limit + 1);
    FILE *file = NULL;
    if (path != NULL) (void)snprintf(path, length, "%s/%s", folder, name);
    if (path == NULL || content == NULL)
        (void)aot_fail(status, AOT_MEMORY, "no memory to read %s", name);
    else if ((file = fopen(path, "rb")) == NULL)
        (void)aot_fail(status, AOT_BUNDLE, "%s cannot be read: %s", path, strerror(errno));
    free(path);
    if (file == NULL) {
        free(content);
        return NULL;
    }
    *size = fread(content, 1, limit, file);
    content[*size] = 0;
    (void)fclose(file);
    return content;
}

/* A code object, as it was when the program's source was made. */
static unsigned char *aot_read_code(const char *folder, const aot_code_object *code, aot_status *status)
{
    char found[65];
    size_t size = 0;
    unsigned char *content = aot_read(folder, code->file, (size_t)code->size + 1, &size, status);
    if (content == NULL) return NULL;
    aot_sha256(content, size, found);
    if (size == code->size && strcmp(found, code->sha256) == 0) return content;
    free(content);
    (void)aot_fail(status, AOT_BUNDLE, "%s/%s was altered: its size or sha256 is not what the index says", folder,
                   code->file);
    return NULL;
}

/* Whether a folder has the bundle that the program was compiled for; its id is near the start of the index. */
static bool aot_check_folder(const char *folder, const char *id, aot_status *status)
{
    size_t size = 0;
    unsigned char *content = aot_read(folder, "bundle.json", 1024, &size, status);
    if (content == NULL) return false;
    bool is_it = strstr((const char *)content, id) != NULL;
    free(content);
    return is_it || aot_fail(status, AOT_BUNDLE, "%s has another bundle than the one that the program's %s.c belongs "
                             "to, whose id begins with %.12s", folder, aot_bundle_name, id);
}
