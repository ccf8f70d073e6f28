/* null: takes everything, stores nothing. For measuring what a save costs without storage, and as a plugin in C. */
#include <hpcckpt/plugin.h>

#include <stdio.h>

static int instance_of_all;

static int create(const char* config, void** instance, char* error, uint64_t error_bytes) {
    (void)config, (void)error, (void)error_bytes;
    *instance = &instance_of_all;
    return 0;
}

static int save(void* instance, const hpcckpt_context* context, char* error, uint64_t error_bytes) {
    (void)instance, (void)context, (void)error, (void)error_bytes;
    return 0;
}

static int load(void* instance, const hpcckpt_context* context, char* error, uint64_t error_bytes) {
    (void)instance;
    snprintf(error, error_bytes, "null stores nothing, so it has none of the %llu tensors",
             (unsigned long long)context->n_tensors);
    return HPCCKPT_ERROR_DAMAGED;
}

static void destroy(void* instance) { (void)instance; }

static const hpcckpt_backend_table null_backend = {
    .struct_size = sizeof(hpcckpt_backend_table),
    .features = HPCCKPT_FEATURE_CONCURRENT,
    .name = "null",
    .create = create,
    .save = save,
    .load = load,
    .destroy = destroy,
};

HPCCKPT_EXPORT_BACKENDS(&null_backend);
