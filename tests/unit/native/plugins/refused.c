/* A plugin in C, wrong in the way that the compiler is told: -DMAJOR=0, -DPLATFORM=0, -DNAME=..., -DCRASHES, -DPRINTS,
   -DBLOCKS, -DTWICE. */
#define _POSIX_C_SOURCE 200809L
#include <hpcckpt/plugin.h>

#ifdef CRASHES
#include <stdlib.h>
__attribute__((constructor)) static void crash(void) { abort(); }
#endif

#ifdef PRINTS
#include <stdio.h>
__attribute__((constructor)) static void print(void) {
    puts("{\"file\": \"mine\"}\n{");
    fflush(stdout);
}
#endif

#ifdef BLOCKS
#include <unistd.h>
__attribute__((constructor)) static void block(void) {
    for (;;) pause();
}
#endif

#ifndef MAJOR
#define MAJOR HPCCKPT_ABI_MAJOR
#endif
#ifndef MINOR
#define MINOR HPCCKPT_ABI_MINOR
#endif
#ifndef PLATFORM
#define PLATFORM HPCCKPT_PLATFORM
#endif
#ifndef NAME
#define NAME "refused"
#endif

#ifdef MISSING
int missing_function(void);
#else
static int missing_function(void) { return 0; }
#endif

static int create(const char* config, void** instance, char* error, uint64_t error_bytes) {
    (void)config, (void)instance, (void)error, (void)error_bytes;
    return missing_function(); /* success, but no instance */
}
static int call(void* instance, const hpcckpt_context* context, char* error, uint64_t error_bytes) {
    (void)instance, (void)context, (void)error, (void)error_bytes;
    return 0;
}
static void destroy(void* instance) { (void)instance; }

static const hpcckpt_backend_table backend = {
    .struct_size = sizeof(hpcckpt_backend_table),
    .name = NAME,
    .create = create,
    .save = call,
    .load = call,
    .destroy = destroy,
};
#ifdef TWICE
static const hpcckpt_backend_table* const backends[] = {&backend, &backend};
#else
static const hpcckpt_backend_table* const backends[] = {&backend};
#endif
static const hpcckpt_plugin_table table = {
    .struct_size = sizeof(hpcckpt_plugin_table),
    .platform = PLATFORM,
    .magic = HPCCKPT_ABI_MAGIC,
    .abi_major = MAJOR,
    .abi_minor = MINOR,
    .n_backends = sizeof(backends) / sizeof(backends[0]),
    .backends = backends,
};

const hpcckpt_plugin_table* hpcckpt_plugin_abi(void) { return &table; }
