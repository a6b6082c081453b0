/* XLA's calls: a handler of its foreign function interface that launches a module's kernels on XLA's own stream.

   A call's attributes are a question, as text, and its digest. A plan (the kernels with their packed arguments, whose
   tensors are the call's buffers) is known by the digest and the CUDA context of the call's stream. What is not known,
   Python prepares from the question: so an executable that XLA kept on disk, or that runs on another device, finds its
   kernels as well. A call has all its memory from XLA, scratch too, and launches the same kernels each time: it may be
   captured in a command buffer. A call without a stream is the host's, whose context is 0.

   XLA's structures are declared here, after xla/ffi/api/c_api.h, versions 0.1 and later: a build needs none of its
   headers. XLA asks a handler for its version when it is registered; there we look at XLA's version and at the sizes of
   its structures, whose later members these declarations leave out. */

#include "launch.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

enum {
    BUCKETS = 1024,
    MOST_BUFFERS = 40, /* of a call */
    MOST_CHARS = 900   /* of an error */
};

/* ---- XLA ---- */

typedef struct XlaExtension {
    size_t size;
    int type;
    struct XlaExtension *next;
} XlaExtension;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int major, minor;
} XlaVersion;

typedef struct XlaError XlaError;
typedef struct XlaContext XlaContext;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    const char *message;
    int code;
} XlaErrorCreate;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    XlaError *error;
} XlaErrorDestroy;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    XlaContext *context;
    void *stream;
} XlaStreamGet;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    XlaVersion version;
    const void *internal;
    XlaError *(*error_create)(XlaErrorCreate *);
    void *error_message;
    void (*error_destroy)(XlaErrorDestroy *);
    void *handler_register;
    XlaError *(*stream_get)(XlaStreamGet *);
} XlaApi;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int dtype;
    void *data;
    int64_t rank;
    int64_t *sizes;
} XlaBuffer;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    XlaBuffer **buffers;
} XlaBuffers;

typedef struct {
    const char *text;
    size_t length;
} XlaText;

typedef struct {
    int dtype;
    const void *value;
} XlaScalar;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    int64_t count;
    int *types;
    XlaText **names;
    void **values;
} XlaAttributes;

typedef struct {
    size_t size;
    XlaExtension *extensions;
    const XlaApi *api;
    XlaContext *context;
    int stage;
    XlaBuffers arguments, results;
    XlaAttributes attributes;
} XlaCall;

typedef struct {
    size_t size;
    XlaVersion version;
    uint32_t traits;
} XlaMetadata;

typedef struct {
    XlaExtension base;
    XlaMetadata *metadata;
} XlaMetadataExtension;

enum { METADATA = 1, BUFFER = 1, SCALAR = 3, STRING = 4, S64 = 5, EXECUTE = 3 };
enum { INVALID_ARGUMENT = 3, FAILED_PRECONDITION = 9, INTERNAL = 13 };
enum { COMMAND_BUFFER_COMPATIBLE = 1 };

#define SIZE_TO(type, last) (offsetof(type, last) + sizeof((type *)0)->last)

static int bytes_of(int dtype) {
    switch (dtype) {
        case 1: case 2: case 6: case 19: case 20: case 33: return 1; /* PRED, S8, U8, F8E5M2, F8E4M3FN, F8E8M0FNU */
        case 3: case 7: case 10: case 16: return 2;                  /* S16, U16, F16, BF16 */
        case 4: case 8: case 11: return 4;                           /* S32, U32, F32 */
        case 5: case 9: case 12: return 8;                           /* S64, U64, F64 */
    }
    return 0;
}

/* ---- Plans ---- */

/* Buffers are the call's arguments, then its results, the last of which is the scratch memory if there is any. */
typedef struct Plan {
    const struct Plan *next;
    uint64_t digest;
    void *context;
    const Program *program;
    int arguments, results, has_scratch;
    int64_t zeroed; /* bytes of the scratch memory that a call finds zeroed */
    int64_t *bytes, *alignments, *grids;
    uint64_t *cells; /* a cell of a tensor is 0, a cell of the scratch memory an offset in it */
} Plan;

static const Plan *plans[BUCKETS]; /* read without a lock; plans are never freed */
static Driver driver;
static PyObject *prepare;
static int seen[3] = {-1, -1, 0}; /* XLA's version, whether we know its structures */

static const Plan *plan_of(uint64_t digest, const void *context) {
    const Plan *plan = __atomic_load_n(&plans[digest % BUCKETS], __ATOMIC_ACQUIRE);
    while (plan && (plan->digest != digest || plan->context != context)) plan = plan->next;
    return plan;
}

static XlaError *refused(const XlaCall *call, int code, const char *message) {
    XlaErrorCreate made = {SIZE_TO(XlaErrorCreate, code), NULL, message, code};
    return call->api->error_create(&made);
}

/* ---- The handler ---- */

static XlaError *describe(XlaCall *call) {
    const XlaApi *api = call->api;
    XlaMetadata *metadata = ((XlaMetadataExtension *)call->extensions)->metadata;
    int major = api ? api->version.major : 0, minor = api ? api->version.minor : 1;
    int is_known = major == 0 && minor >= 1 && call->size >= SIZE_TO(XlaCall, attributes) &&
                   metadata->size >= SIZE_TO(XlaMetadata, traits) && (!api || api->size >= SIZE_TO(XlaApi, stream_get));
    __atomic_store_n(&seen[0], major, __ATOMIC_RELAXED);
    __atomic_store_n(&seen[1], minor, __ATOMIC_RELAXED);
    __atomic_store_n(&seen[2], is_known, __ATOMIC_RELAXED);
    if (is_known) { /* else XLA is told version 0.0, and refuses us */
        metadata->version.major = major;
        metadata->version.minor = minor;
        metadata->traits = COMMAND_BUFFER_COMPATIBLE;
    }
    return NULL;
}

/* The plan that Python makes of a question; NULL, and why, if there is none. */
static const Plan *prepared(uint64_t digest, void *context, const XlaText *question, char *why) {
    snprintf(why, MOST_CHARS, "normgen: import normgen.jax before a kernel of it runs");
    if (!Py_IsInitialized()) return NULL;
    PyGILState_STATE state = PyGILState_Ensure();
    if (prepare) {
        PyObject *found = PyObject_CallFunction(prepare, "s#K", question->text, (Py_ssize_t)question->length,
                                                (unsigned long long)(uintptr_t)context);
        if (found) {
            snprintf(why, MOST_CHARS, "normgen: a kernel was prepared, but not for this call");
            Py_DECREF(found);
        } else {
            PyObject *type, *value, *trace, *text;
            PyErr_Fetch(&type, &value, &trace);
            text = value ? PyObject_Str(value) : NULL;
            const char *said = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
            snprintf(why, MOST_CHARS, "normgen: %s", said ? said : "a kernel could not be prepared");
            PyErr_Clear();
            Py_XDECREF(text);
            Py_XDECREF(type);
            Py_XDECREF(value);
            Py_XDECREF(trace);
        }
    }
    PyGILState_Release(state);
    return plan_of(digest, context);
}

/* Put the call's addresses into the cells; 0, and why, if a buffer is not what the plan was made for. */
static int placed(const Plan *plan, const XlaCall *call, uint64_t *cells, void **scratch, char *why) {
    void *pointers[MOST_BUFFERS];
    if (call->arguments.count != plan->arguments || call->results.count != plan->results) {
        snprintf(why, MOST_CHARS, "normgen: a call has %d arguments and %d results, not %d and %d", plan->arguments,
                 plan->results, (int)call->arguments.count, (int)call->results.count);
        return 0;
    }
    int count = plan->arguments + plan->results;
    for (int i = 0; i < count; i++) {
        const XlaBuffers *side = i < plan->arguments ? &call->arguments : &call->results;
        int at = i < plan->arguments ? i : i - plan->arguments, is_scratch = plan->has_scratch && i == count - 1;
        const XlaBuffer *buffer = side->buffers[at];
        int64_t bytes = side->types[at] == BUFFER ? bytes_of(buffer->dtype) : 0;
        for (int64_t axis = 0; bytes && axis < buffer->rank; axis++) bytes *= buffer->sizes[axis];
        if (is_scratch ? bytes < plan->bytes[i] : bytes != plan->bytes[i]) {
            snprintf(why, MOST_CHARS, "normgen: buffer %d of a call has %lld bytes, not %lld%s", i, (long long)bytes,
                     (long long)plan->bytes[i], is_scratch ? ": compile it again, without XLA's cache" : "");
            return 0;
        }
        if ((uintptr_t)buffer->data % (uintptr_t)plan->alignments[i]) {
            snprintf(why, MOST_CHARS, "normgen: buffer %d of a call does not start at a multiple of %lld bytes", i,
                     (long long)plan->alignments[i]);
            return 0;
        }
        pointers[i] = buffer->data;
    }
    memcpy(cells, plan->cells, (size_t)plan->program->cells * sizeof *cells);
    for (Py_ssize_t i = 0; i < plan->program->cells; i++)
        if (plan->program->patch[i] >= 0) cells[i] += (uint64_t)(uintptr_t)pointers[plan->program->patch[i]];
    *scratch = plan->has_scratch ? pointers[count - 1] : NULL;
    return 1;
}

static XlaError *handle(XlaCall *call) {
    char why[MOST_CHARS];
    uint64_t digest, cells[MAX_CELLS];
    void *context = NULL, *current = NULL, *scratch, *popped;
    if (call->extensions && call->extensions->type == METADATA) return describe(call);
    if (call->stage != EXECUTE) return NULL;
    const XlaAttributes *given = &call->attributes; /* sorted by name */
    if (given->count != 2 || given->types[0] != SCALAR || given->types[1] != STRING ||
        given->names[0]->length != 6 || memcmp(given->names[0]->text, "digest", 6) ||
        ((const XlaScalar *)given->values[0])->dtype != S64)
        return refused(call, INVALID_ARGUMENT, "normgen: a call's attributes are a digest and a question");
    memcpy(&digest, ((const XlaScalar *)given->values[0])->value, sizeof digest);

    XlaStreamGet got = {SIZE_TO(XlaStreamGet, stream), NULL, call->context, NULL};
    XlaError *none = call->api->stream_get(&got);
    if (none) {
        XlaErrorDestroy gone = {SIZE_TO(XlaErrorDestroy, error), NULL, none};
        call->api->error_destroy(&gone);
    } else if (!driver.context_of || driver.context_of(got.stream, &context)) {
        return refused(call, FAILED_PRECONDITION, "normgen: the CUDA driver does not tell the context of XLA's stream");
    }
    const Plan *plan = plan_of(digest, context);
    if (!plan) plan = prepared(digest, context, (const XlaText *)given->values[1], why);
    if (!plan) return refused(call, FAILED_PRECONDITION, why);
    if (!placed(plan, call, cells, &scratch, why)) return refused(call, INVALID_ARGUMENT, why);

    if (!driver.context) return refused(call, FAILED_PRECONDITION, "normgen: the CUDA driver was not loaded");
    int which = 0, code = driver.context(&current), is_elsewhere = context && current != context;
    if (!code && is_elsewhere) code = driver.push(context);
    if (code) return refused(call, INTERNAL, "normgen: the CUDA driver does not make XLA's context current");
    if (plan->zeroed) code = driver.fill(scratch, 0, (size_t)plan->zeroed, got.stream);
    if (!code) code = queue(&driver, plan->program, cells, plan->grids, got.stream, &which);
    if (is_elsewhere) driver.pop(&popped);
    if (!code) return NULL;
    snprintf(why, sizeof why, "normgen: the CUDA driver refused kernel %d of a call with code %d", which, code);
    return refused(call, INTERNAL, why);
}

/* ---- For Python ---- */

PyDoc_STRVAR(start_doc, "xla_start(library, prepare): the handler, as a capsule for jax.ffi.register_ffi_target.\n\n"
                        "library: the CUDA driver, or None for the host alone; prepare(question, context) calls xla_plan.");

static PyObject *xla_start(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *library;
    PyObject *given, *old = prepare;
    if (!PyArg_ParseTuple(args, "zO", &library, &given)) return NULL;
    if (library && !load_driver(&driver, library)) return PyErr_Format(PyExc_OSError, NO_DRIVER, library);
    prepare = Py_NewRef(given);
    Py_XDECREF(old);
    return PyCapsule_New((void *)(uintptr_t)handle, NULL, NULL);
}

PyDoc_STRVAR(plan_doc, "xla_plan(digest, context, program, cells, grids, bytes, alignments, arguments, zeroed): know a question.\n\n"
                       "program: as of a launcher, a patch names a buffer: arguments, then results; cells: 8 bytes each;\n"
                       "grids, bytes and alignments of the buffers: int64; zeroed: bytes of the scratch memory, which is then\n"
                       "the last result, that a call finds zeroed, -1 where there is none.");

static PyObject *xla_plan(PyObject *Py_UNUSED(module), PyObject *args) {
    long long digest, zeroed;
    unsigned long long context;
    const char *words, *cells, *grids, *bytes, *alignments;
    Py_ssize_t word_bytes, cell_bytes, grid_bytes, size, alignment_bytes;
    int arguments;
    if (!PyArg_ParseTuple(args, "LKy#y#y#y#y#iL", &digest, &context, &words, &word_bytes, &cells, &cell_bytes, &grids,
                          &grid_bytes, &bytes, &size, &alignments, &alignment_bytes, &arguments, &zeroed))
        return NULL;
    if (plan_of((uint64_t)digest, (void *)(uintptr_t)context)) return Py_NewRef(Py_None);
    Py_ssize_t buffers = size / 8;
    Program *program = buffers <= MOST_BUFFERS ? read_program(words, word_bytes, (int)buffers, 0) : NULL;
    if (!program || size % 8 || alignment_bytes != size || cell_bytes != program->cells * 8 ||
        grid_bytes != program->kernels * 8 || arguments < 0 || arguments > buffers - (zeroed >= 0)) {
        PyMem_Free(program);
        PyErr_SetString(PyExc_ValueError, "a plan has its program's cells and kernels, and as many buffers as there is room");
        return NULL;
    }
    Plan *plan = (Plan *)PyMem_Malloc(sizeof *plan + (size_t)(2 * size + cell_bytes + grid_bytes));
    if (!plan) {
        PyMem_Free(program);
        return PyErr_NoMemory();
    }
    plan->digest = (uint64_t)digest;
    plan->context = (void *)(uintptr_t)context;
    plan->program = program;
    plan->arguments = arguments;
    plan->results = (int)buffers - arguments;
    plan->has_scratch = zeroed >= 0;
    plan->zeroed = zeroed >= 0 ? zeroed : 0;
    plan->bytes = (int64_t *)(plan + 1);
    plan->alignments = plan->bytes + buffers;
    plan->grids = plan->alignments + buffers;
    plan->cells = (uint64_t *)(plan->grids + program->kernels);
    memcpy(plan->bytes, bytes, (size_t)size);
    memcpy(plan->alignments, alignments, (size_t)size);
    memcpy(plan->grids, grids, (size_t)grid_bytes);
    memcpy(plan->cells, cells, (size_t)cell_bytes);
    for (Py_ssize_t i = 0; i < buffers; i++)
        if (plan->alignments[i] < 1) plan->alignments[i] = 1;
    const Plan **bucket = &plans[plan->digest % BUCKETS]; /* written under the GIL alone */
    plan->next = *bucket;
    __atomic_store_n(bucket, plan, __ATOMIC_RELEASE);
    return Py_NewRef(Py_None);
}

PyDoc_STRVAR(version_doc, "xla_version(): (major, minor, whether its structures are known) of the XLA that asked last; -1: none did.");

static PyObject *xla_version(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    return Py_BuildValue("iiN", seen[0], seen[1], PyBool_FromLong(seen[2]));
}

PyMethodDef xla_methods[] = {
    {"xla_start", xla_start, METH_VARARGS, start_doc},
    {"xla_plan", xla_plan, METH_VARARGS, plan_doc},
    {"xla_version", xla_version, METH_NOARGS, version_doc},
    {NULL, NULL, 0, NULL},
};
