/* The C interface between hpcckpt and storage plugins. C11 and C++17.
 *
 * A plugin is a shared library that exports one function, hpcckpt_plugin_abi(), and links to nothing of hpcckpt's:
 *
 *     static int save(void *self, const hpcckpt_context *context, char *error, uint64_t error_bytes) { ... }
 *     static const hpcckpt_backend_table mine = {
 *         .struct_size = sizeof mine, .features = HPCCKPT_FEATURE_STORES, .name = "mine",
 *         .create = create, .save = save, .load = load, .destroy = destroy};
 *     HPCCKPT_EXPORT_BACKENDS(&mine);
 *
 * The host calls these functions; the plugin never calls the host. Ownership, lifetimes and threads are described in
 * ABI.md beside this folder. In short:
 *
 *   - Everything that a function is given belongs to the host and is valid until that function returns.
 *   - Everything that hpcckpt_plugin_abi() returns belongs to the plugin and stays as it is until the process ends.
 *   - No memory is allocated on one side and freed on the other; no exception leaves a function.
 *   - 0 is success. Anything else is failure, and its reason goes as text into `error`.
 *   - A struct begins with its size. Fields are appended, never moved: look at struct_size before you read a field that
 *     is younger than version 1.0.
 */
#ifndef HPCCKPT_PLUGIN_H
#define HPCCKPT_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#define HPCCKPT_STATIC_ASSERT(condition, text) static_assert(condition, text)
#else
#define HPCCKPT_STATIC_ASSERT(condition, text) _Static_assert(condition, text)
#endif

#if defined(__GNUC__)
#define HPCCKPT_EXPORT __attribute__((visibility("default")))
#else
#define HPCCKPT_EXPORT
#endif

/* -- version and platform ------------------------------------------------------------------------------------------ */

/* A plugin of another major version is refused; one that was made for a later minor version too. */
#define HPCCKPT_ABI_MAJOR 1
#define HPCCKPT_ABI_MINOR 0
/* The bytes "hpcckpt" and the letter 'A', as a little-endian number. */
#define HPCCKPT_ABI_MAGIC UINT64_C(0x4174706b63637068)
#define HPCCKPT_ABI_SYMBOL "hpcckpt_plugin_abi"

#if defined(__x86_64__)
#define HPCCKPT_ARCH 1u
#elif defined(__aarch64__)
#define HPCCKPT_ARCH 2u
#elif defined(__powerpc64__)
#define HPCCKPT_ARCH 3u
#elif defined(__riscv) && __riscv_xlen == 64
#define HPCCKPT_ARCH 4u
#elif defined(__s390x__)
#define HPCCKPT_ARCH 5u
#elif defined(__loongarch64)
#define HPCCKPT_ARCH 6u
#elif defined(__i386__)
#define HPCCKPT_ARCH 7u
#elif defined(__arm__)
#define HPCCKPT_ARCH 8u
#else
#define HPCCKPT_ARCH 0u
#endif

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
#define HPCCKPT_BIG_ENDIAN 1u
#else
#define HPCCKPT_BIG_ENDIAN 0u
#endif

/* Bytes of a pointer, byte order, instruction set. */
#define HPCCKPT_PLATFORM ((uint32_t)sizeof(void*) | HPCCKPT_BIG_ENDIAN << 8 | HPCCKPT_ARCH << 16)

/* -- tensors ------------------------------------------------------------------------------------------------------- */

/* What the elements are. Numbers stay as they are; new ones are appended. */
enum {
    HPCCKPT_DTYPE_OTHER = 0, /* see dtype_name: text ("<U5", "|S3"), times ("<M8[ns]"), long doubles, plain bytes */
    HPCCKPT_DTYPE_BOOL = 1,
    HPCCKPT_DTYPE_INT8 = 2,
    HPCCKPT_DTYPE_INT16 = 3,
    HPCCKPT_DTYPE_INT32 = 4,
    HPCCKPT_DTYPE_INT64 = 5,
    HPCCKPT_DTYPE_UINT8 = 6,
    HPCCKPT_DTYPE_UINT16 = 7,
    HPCCKPT_DTYPE_UINT32 = 8,
    HPCCKPT_DTYPE_UINT64 = 9,
    HPCCKPT_DTYPE_FLOAT16 = 10,
    HPCCKPT_DTYPE_FLOAT32 = 11,
    HPCCKPT_DTYPE_FLOAT64 = 12,
    HPCCKPT_DTYPE_COMPLEX64 = 13,
    HPCCKPT_DTYPE_COMPLEX128 = 14,
    HPCCKPT_DTYPE_BFLOAT16 = 15,
    HPCCKPT_DTYPE_FLOAT8_E4M3FN = 16,
    HPCCKPT_DTYPE_FLOAT8_E5M2 = 17,
    HPCCKPT_DTYPE_FLOAT8_E4M3 = 18,
    HPCCKPT_DTYPE_FLOAT8_E3M4 = 19,
    HPCCKPT_DTYPE_FLOAT8_E8M0FNU = 20,
    HPCCKPT_DTYPE_FLOAT8_E4M3B11 = 21,
    HPCCKPT_DTYPE_FLOAT8_E4M3B11FNUZ = 22,
    HPCCKPT_DTYPE_FLOAT8_E4M3FNUZ = 23,
    HPCCKPT_DTYPE_FLOAT8_E5M2FNUZ = 24
};

/* How the ranks share a tensor. */
enum {
    HPCCKPT_KIND_REPLICATED = 0, /* equal on all ranks; one rank saves each part */
    HPCCKPT_KIND_ROOT = 1,       /* may differ; the value of rank 0 counts */
    HPCCKPT_KIND_SHARDED = 2,    /* each rank holds a box of it */
    HPCCKPT_KIND_PER_RANK = 3    /* each rank has its own, under the same name */
};

/* An entry: elements `first_element` to `first_element + n_elements`, in C order, of the box of a tensor that begins at
 * `offset` and has `shape`. Mostly that is the whole box. What an entry is called is (rank of the context, name,
 * offset, shape, first_element, n_elements). */
typedef struct hpcckpt_tensor {
    uint32_t struct_size;
    uint32_t dtype;              /* HPCCKPT_DTYPE_... */
    const char* name;            /* UTF-8: "model/dense/kernel" */
    const char* dtype_name;      /* NumPy's and ml_dtypes' names: "float32", "bfloat16", "<U5" */
    uint32_t itemsize;           /* bytes of an element */
    uint32_t ndim;               /* axes; 0 is a scalar, whose three lists are empty but not NULL */
    uint32_t kind;               /* HPCCKPT_KIND_... */
    uint32_t reserved_flags;     /* 0 */
    const int64_t* global_shape; /* of the whole tensor, `ndim` numbers */
    const int64_t* offset;       /* where the box begins in it, `ndim` numbers */
    const int64_t* shape;        /* of the box, `ndim` numbers */
    uint64_t first_element;
    uint64_t n_elements;
    void* data;      /* the tensor's own memory, C order, this machine's byte order; NULL only if nbytes is 0 */
    uint64_t nbytes; /* n_elements * itemsize */
    const void* reserved[4];
} hpcckpt_tensor;

/* What one call is about. */
typedef struct hpcckpt_context {
    uint32_t struct_size;
    uint32_t reserved_flags; /* 0 */
    const char* directory; /* absolute path of an existing directory for the files of this save; "" if there is none */
    const char* save_id;   /* identity of the save, the same on all ranks; "" if it has none */
    int64_t step;          /* -1 if it has none */
    uint32_t rank;         /* which rank saves; in load: which rank saved what is asked for */
    uint32_t n_ranks;      /* how many ranks save; in load: how many saved */
    uint64_t n_tensors;
    const hpcckpt_tensor* const* tensors;
    const void* reserved[4];
} hpcckpt_context;

/* -- what a plugin offers ------------------------------------------------------------------------------------------ */

/* Features, all positive. */
#define HPCCKPT_FEATURE_STORES 1u     /* load gives back what save was given */
#define HPCCKPT_FEATURE_CONCURRENT 2u /* several threads may be in one instance at a time */
#define HPCCKPT_FEATURE_DURABLE 4u    /* what save returned from survives the loss of power */
#define HPCCKPT_FEATURE_PARTIAL 8u    /* load is also given parts of what was saved: first_element, n_elements */

/* What a function may return beside codes of the plugin's own. */
#define HPCCKPT_ERROR_EXCEPTION (-1) /* a C++ exception, with its text */
#define HPCCKPT_ERROR_UNKNOWN (-2)   /* something else was thrown */
#define HPCCKPT_ERROR_NO_SPACE (-3)  /* storage or quota is full */
#define HPCCKPT_ERROR_DAMAGED (-4)   /* what was stored is damaged or gone: an older checkpoint may do */

/* In the functions, `error` is room for `error_bytes` bytes, at least 256, that belongs to the host and begins as an
 * empty string: write a zero-terminated UTF-8 text there, snprintf(error, error_bytes, ...), before you return
 * non-zero. */
typedef struct hpcckpt_backend_table {
    uint32_t struct_size;
    uint32_t features; /* HPCCKPT_FEATURE_... */
    const char* name;  /* a C identifier of at most 64 characters */

    /* Make an instance from a configuration string, whose form is the plugin's own; never NULL, may be "". */
    int (*create)(const char* config, void** instance, char* error, uint64_t error_bytes);
    /* Store the tensors. Their data must not be written to, and is not yours once you have returned. */
    int (*save)(void* instance, const hpcckpt_context* context, char* error, uint64_t error_bytes);
    /* Fill the data of every tensor, whole, with what was saved as (rank, name, offset, shape, elements); or fail. */
    int (*load)(void* instance, const hpcckpt_context* context, char* error, uint64_t error_bytes);
    /* End an instance; called once, with no other call in it. */
    void (*destroy)(void* instance);

    const void* reserved[4]; /* NULL */
} hpcckpt_backend_table;

/* The first 24 bytes are the same in every version that there will be. */
typedef struct hpcckpt_plugin_table {
    uint32_t struct_size;
    uint32_t platform;  /* HPCCKPT_PLATFORM */
    uint64_t magic;     /* HPCCKPT_ABI_MAGIC */
    uint32_t abi_major; /* HPCCKPT_ABI_MAJOR */
    uint32_t abi_minor; /* the lowest that the host must have: HPCCKPT_ABI_MINOR, or less */
    uint64_t n_backends;
    const hpcckpt_backend_table* const* backends;
    const void* reserved[4]; /* NULL */
} hpcckpt_plugin_table;

/* The one symbol. May be called more than once, from any thread, and answers the same. */
HPCCKPT_EXPORT const hpcckpt_plugin_table* hpcckpt_plugin_abi(void);

/* For plugins in C, once in a library: HPCCKPT_EXPORT_BACKENDS(&one, &other); */
#define HPCCKPT_EXPORT_BACKENDS(...)                                                       \
    const hpcckpt_plugin_table* hpcckpt_plugin_abi(void) {                                 \
        static const hpcckpt_backend_table* const backends[] = {__VA_ARGS__};              \
        static const hpcckpt_plugin_table table = {sizeof(hpcckpt_plugin_table),           \
                                                   HPCCKPT_PLATFORM,                       \
                                                   HPCCKPT_ABI_MAGIC,                      \
                                                   HPCCKPT_ABI_MAJOR,                      \
                                                   HPCCKPT_ABI_MINOR,                      \
                                                   sizeof(backends) / sizeof(backends[0]), \
                                                   backends,                               \
                                                   {NULL, NULL, NULL, NULL}};              \
        return &table;                                                                     \
    }                                                                                      \
    HPCCKPT_EXPORT const hpcckpt_plugin_table* hpcckpt_plugin_abi(void)

/* -- the layout, frozen -------------------------------------------------------------------------------------------- */

#if UINTPTR_MAX == UINT64_MAX
#define HPCCKPT_AT(type, field, place) \
    HPCCKPT_STATIC_ASSERT(offsetof(type, field) == (place), #type "." #field " must not move")

HPCCKPT_AT(hpcckpt_tensor, struct_size, 0);
HPCCKPT_AT(hpcckpt_tensor, dtype, 4);
HPCCKPT_AT(hpcckpt_tensor, name, 8);
HPCCKPT_AT(hpcckpt_tensor, dtype_name, 16);
HPCCKPT_AT(hpcckpt_tensor, itemsize, 24);
HPCCKPT_AT(hpcckpt_tensor, ndim, 28);
HPCCKPT_AT(hpcckpt_tensor, kind, 32);
HPCCKPT_AT(hpcckpt_tensor, reserved_flags, 36);
HPCCKPT_AT(hpcckpt_tensor, global_shape, 40);
HPCCKPT_AT(hpcckpt_tensor, offset, 48);
HPCCKPT_AT(hpcckpt_tensor, shape, 56);
HPCCKPT_AT(hpcckpt_tensor, first_element, 64);
HPCCKPT_AT(hpcckpt_tensor, n_elements, 72);
HPCCKPT_AT(hpcckpt_tensor, data, 80);
HPCCKPT_AT(hpcckpt_tensor, nbytes, 88);
HPCCKPT_AT(hpcckpt_tensor, reserved, 96);
HPCCKPT_STATIC_ASSERT(sizeof(hpcckpt_tensor) == 128, "hpcckpt_tensor has 128 bytes in version 1.0");

HPCCKPT_AT(hpcckpt_context, struct_size, 0);
HPCCKPT_AT(hpcckpt_context, reserved_flags, 4);
HPCCKPT_AT(hpcckpt_context, directory, 8);
HPCCKPT_AT(hpcckpt_context, save_id, 16);
HPCCKPT_AT(hpcckpt_context, step, 24);
HPCCKPT_AT(hpcckpt_context, rank, 32);
HPCCKPT_AT(hpcckpt_context, n_ranks, 36);
HPCCKPT_AT(hpcckpt_context, n_tensors, 40);
HPCCKPT_AT(hpcckpt_context, tensors, 48);
HPCCKPT_AT(hpcckpt_context, reserved, 56);
HPCCKPT_STATIC_ASSERT(sizeof(hpcckpt_context) == 88, "hpcckpt_context has 88 bytes in version 1.0");

HPCCKPT_AT(hpcckpt_backend_table, struct_size, 0);
HPCCKPT_AT(hpcckpt_backend_table, features, 4);
HPCCKPT_AT(hpcckpt_backend_table, name, 8);
HPCCKPT_AT(hpcckpt_backend_table, create, 16);
HPCCKPT_AT(hpcckpt_backend_table, save, 24);
HPCCKPT_AT(hpcckpt_backend_table, load, 32);
HPCCKPT_AT(hpcckpt_backend_table, destroy, 40);
HPCCKPT_AT(hpcckpt_backend_table, reserved, 48);
HPCCKPT_STATIC_ASSERT(sizeof(hpcckpt_backend_table) == 80, "hpcckpt_backend_table has 80 bytes in version 1.0");

HPCCKPT_AT(hpcckpt_plugin_table, struct_size, 0);
HPCCKPT_AT(hpcckpt_plugin_table, platform, 4);
HPCCKPT_AT(hpcckpt_plugin_table, magic, 8);
HPCCKPT_AT(hpcckpt_plugin_table, abi_major, 16);
HPCCKPT_AT(hpcckpt_plugin_table, abi_minor, 20);
HPCCKPT_AT(hpcckpt_plugin_table, n_backends, 24);
HPCCKPT_AT(hpcckpt_plugin_table, backends, 32);
HPCCKPT_AT(hpcckpt_plugin_table, reserved, 40);
HPCCKPT_STATIC_ASSERT(sizeof(hpcckpt_plugin_table) == 72, "hpcckpt_plugin_table has 72 bytes in version 1.0");
#undef HPCCKPT_AT
#endif

#ifdef __cplusplus
}
#endif
#endif
