// Libraries that say they are ONNX Runtime, for tests: one of another version, and one whose CUDA provider is a lie.
// OFFSET_* are the places of functions in the API's table, as the bindings have them.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <string.h>

typedef struct {
    const void *(*get_api)(unsigned version);
    const char *(*get_version)(void);
} ApiBase;

#ifdef REAL
// The real library with one change: CUDA is offered, registered without a word, and never used.
static char table[TABLE_BYTES];
static const ApiBase *real;
static void *(*real_config)(void *options, const char *key, const char *value);

static void *succeed(void) { return NULL; }

static void *offer(char ***names, int *count) {
    static char *all[] = {"CUDAExecutionProvider", "CPUExecutionProvider"};
    *names = all;
    *count = 2;
    return NULL;
}

static void *create(void **options) {
    static int nothing;
    *options = &nothing;
    return NULL;
}

static void *config(void *options, const char *key, const char *value) {
    return strcmp(key, "session.disable_cpu_ep_fallback") ? real_config(options, key, value) : NULL;
}

static const void *get_api(unsigned version) {
    const char *api = real->get_api(version);
    if (!api) return NULL;
    memcpy(table, api, TABLE_BYTES);
#define PUT(offset, function) (*(void **)(table + (offset)) = (void *)(function))
    memcpy(&real_config, table + OFFSET_CONFIG, sizeof real_config);
    PUT(OFFSET_CONFIG, config);
    PUT(OFFSET_OFFER, offer);
    PUT(OFFSET_RELEASE_OFFER, succeed);
    PUT(OFFSET_CREATE, create);
    PUT(OFFSET_UPDATE, succeed);
    PUT(OFFSET_RELEASE, succeed);
    PUT(OFFSET_APPEND, succeed);
    return table;
}

static const char *get_version(void) { return real->get_version(); }

const ApiBase *OrtGetApiBase(void) {
    static const ApiBase base = {get_api, get_version};
    const ApiBase *(*found)(void) = (const ApiBase *(*)(void))dlsym(dlopen(REAL, RTLD_NOW | RTLD_LOCAL), "OrtGetApiBase");
    real = found();
    return &base;
}
#else
static const void *get_api(unsigned version) { return NULL; }

static const char *get_version(void) { return VERSION; }

const ApiBase *OrtGetApiBase(void) {
    static const ApiBase base = {get_api, get_version};
    return &base;
}
#endif
