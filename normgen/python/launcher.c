/* The launcher: repeats a call of a handle that was checked before, on other addresses.

   The Python path of a handle (normgen/python/handle.py) checks a call, launches it and then teaches it to the launcher:
   the layouts of its arrays are the key of an entry, the packed arguments and the grids are its value. The next call
   with equal layouts costs a comparison, a copy of the arguments with the new addresses in them, and the launch. Whatever
   is not known here, wrong arguments among it, is answered with NotImplemented, and the Python path runs.

   Arrays come through the C exchange API of DLPack, whose structures are declared here: its header is not needed. Only
   the stable ABI of Python 3.11 is used. */

#include "launch.h"

#include <float.h>
#include <math.h>
#include <string.h>

enum {
    MAX_SLOTS = 32,     /* arrays of a call */
    MAX_SCALARS = 16,
    MAX_PROGRAMS = 64,
    MAX_DIMS = 8,
    MAX_TYPES = 8,
    TABLE = 512,        /* entries of a launcher */
    WAYS = 8,           /* an entry has one of so many places; a ninth takes the place of one of them */
    SLOT_WORDS = 4 + 2 * MAX_DIMS,
    MAX_WORDS = 1 + MAX_SLOTS * SLOT_WORDS, /* the stream, and what is said of each array */
    WHOLE = 1 << 24,    /* float32 holds all whole numbers up to it */
    ALIGNMENT = 64      /* no kernel asks for more: vectors of 16 elements of 4 bytes */
};

/* ---- DLPack ---- */

typedef struct {
    void *data;
    int32_t device_type, device_id, ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape, *strides;
    uint64_t byte_offset;
} DLTensor;

typedef struct Exchange {
    uint32_t major, minor;
    struct Exchange *previous;
    void *allocator, *managed_from_object, *managed_to_object;
    int (*tensor_from_object)(void *object, DLTensor *out);
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} Exchange;

/* Types whose arrays are read; the Python side decides which (`admit`). Their references are kept for ever. */
static struct { PyTypeObject *type; const Exchange *api; } admitted[MAX_TYPES];
static int admitted_count;

/* ---- A launcher ---- */

typedef struct {
    int refs; /* under the GIL */
    uint64_t hash;
    Py_ssize_t words, fresh_words;
    const Program *program;
    PyObject *fresh; /* NULL, or for each slot behind the inputs None, or a recipe: (function, its first argument or
                        None for the first input, what follows it, what it gets by name) */
    int64_t *key, *fresh_key, *extents, *grids;
    uint64_t *cells;
} Entry;

typedef struct {
    PyObject_HEAD
    PyObject *names, *out, *fail;
    int slots, inputs, out_slot, scalars, results, programs;
    int is_written[MAX_SLOTS], result[MAX_SLOTS], is_label[MAX_SCALARS];
    double defaults[MAX_SCALARS];
    void *context;
    Driver driver;
    Program *program[MAX_PROGRAMS];
    Entry *table[TABLE + WAYS];
    uint32_t victim;
} Launcher;

/* The arguments of one call. */
typedef struct {
    PyObject *array[MAX_SLOTS]; /* borrowed; NULL: not given */
    uintptr_t pointer[MAX_SLOTS];
    double scalar[MAX_SCALARS];
    void *stream;
    int64_t key[MAX_WORDS];
    Py_ssize_t words;
    int is_allocating;
} Call;

static void release(Entry *entry) {
    if (entry && --entry->refs == 0) {
        Py_XDECREF(entry->fresh);
        PyMem_Free(entry);
    }
}

static uint64_t hash_of(const int64_t *key, Py_ssize_t words) {
    uint64_t hash = 1469598103934665603u; /* FNV-1a, a word at a time, folded */
    for (Py_ssize_t i = 0; i < words; i++) hash = (hash ^ (uint64_t)key[i]) * 1099511628211u;
    return hash ^ hash >> 32;
}

static const Exchange *exchange_of(PyObject *array) {
    for (int i = 0; i < admitted_count; i++)
        if (Py_TYPE(array) == admitted[i].type) return admitted[i].api;
    return NULL;
}

/* Append the layout of an array to a key; 0 if it cannot be told. */
static int describe(PyObject *array, uintptr_t *pointer, int64_t *key, Py_ssize_t *words) {
    const Exchange *api = exchange_of(array);
    DLTensor facts;
    if (!api) return 0;
    if (api->tensor_from_object(array, &facts)) {
        PyErr_Clear();
        return 0;
    }
    if (facts.ndim < 0 || facts.ndim > MAX_DIMS || (facts.ndim && !facts.strides)) return 0;
    *pointer = (uintptr_t)facts.data + (uintptr_t)facts.byte_offset;
    int64_t *word = key + *words;
    *word++ = facts.ndim;
    *word++ = (int64_t)((uint64_t)(uint32_t)facts.device_type << 32 | (uint32_t)facts.device_id);
    *word++ = (int64_t)facts.code << 32 | (int64_t)facts.bits << 16 | facts.lanes;
    *word++ = (int64_t)(*pointer % ALIGNMENT);
    for (int i = 0; i < facts.ndim; i++) *word++ = facts.shape[i];
    for (int i = 0; i < facts.ndim; i++) *word++ = facts.strides[i];
    *words = word - key;
    return 1;
}

/* The place of a name: a slot, -2 - i of scalar i, -1 if there is none; `out` is the first output. */
static int place_of(Launcher *self, PyObject *name) {
    int count = self->slots + self->scalars;
    for (int pass = 0; pass < 2; pass++) { /* names are mostly interned: one object */
        for (int i = 0; i < count; i++) {
            PyObject *known = PyTuple_GetItem(self->names, i);
            if (pass ? PyUnicode_Compare(known, name) == 0 : known == name)
                return i < self->slots ? i : -2 - (i - self->slots);
        }
        if (pass ? PyUnicode_Compare(self->out, name) == 0 : self->out == name) return self->out_slot;
    }
    return -1;
}

/* Sort the arguments into slots and describe them; 0 if the Python path must see them. */
static int gather(Launcher *self, Call *call, PyObject *const *args, Py_ssize_t count) {
    if (count < 3 || !PyTuple_Check(args[0]) || !PyDict_Check(args[1])) return 0;
    PyObject *inputs = args[0], *stream = args[2], *key, *value;
    Py_ssize_t given = PyTuple_Size(inputs), at = 0;
    if (given > self->inputs) return 0;
    memset(call->array, 0, sizeof call->array);
    memcpy(call->scalar, self->defaults, sizeof call->scalar);
    for (Py_ssize_t i = 0; i < given; i++) call->array[i] = PyTuple_GetItem(inputs, i);
    while (PyDict_Next(args[1], &at, &key, &value)) {
        int place = PyUnicode_Check(key) ? place_of(self, key) : -1;
        if (place == -1) return 0;
        if (place < -1) {
            if (!PyFloat_Check(value) && !PyLong_Check(value)) return 0; /* its conversion may run Python code */
            call->scalar[-2 - place] = PyFloat_AsDouble(value);
            if (PyErr_Occurred()) {
                PyErr_Clear();
                return 0;
            }
            double number = call->scalar[-2 - place], size = fabs(number);
            if (size > WHOLE && size <= DBL_MAX) return 0; /* float32 may make another number of it */
            if (self->is_label[-2 - place] && (PyBool_Check(value) || !(size <= WHOLE) || number != (int64_t)number))
                return 0; /* it is no label */
        } else if (call->array[place]) {
            return 0;
        } else if (value != Py_None) {
            call->array[place] = value;
        }
    }
    call->words = 1;
    call->is_allocating = 1;
    for (int slot = 0; slot < self->slots; slot++) {
        PyObject *array = call->array[slot];
        call->pointer[slot] = 0;
        if (!array) {
            if (slot < self->inputs) return 0;
            call->key[call->words++] = -1;
        } else {
            if (slot >= self->inputs) call->is_allocating = 0;
            if (!describe(array, &call->pointer[slot], call->key, &call->words)) return 0;
        }
    }
    if (stream == Py_None) {
        uint64_t device = (uint64_t)call->key[2]; /* of the first input */
        call->stream = NULL;
        const Exchange *api = exchange_of(call->array[0]);
        if (api->current_stream((int32_t)(device >> 32), (int32_t)device, &call->stream)) {
            PyErr_Clear();
            return 0;
        }
    } else {
        if (!PyLong_Check(stream)) return 0;
        call->stream = PyLong_AsVoidPtr(stream);
        if (PyErr_Occurred()) {
            PyErr_Clear();
            return 0;
        }
    }
    call->key[0] = (int64_t)(intptr_t)call->stream;
    return 1;
}

/* Where the entry of a call stands; if it stands nowhere, a free place for it, or that of another: NULL if not `new_too`. */
static Entry **place_for(Launcher *self, const Call *call, int new_too) {
    uint64_t hash = hash_of(call->key, call->words);
    Entry **ways = &self->table[hash % TABLE], **vacant = NULL;
    size_t bytes = (size_t)call->words * sizeof *call->key;
    for (int i = 0; i < WAYS; i++) {
        Entry *entry = ways[i];
        if (!entry)
            vacant = &ways[i];
        else if (entry->hash == hash && entry->words == call->words && !memcmp(entry->key, call->key, bytes))
            return &ways[i];
    }
    if (!new_too) return NULL;
    return vacant ? vacant : &ways[self->victim++ % WAYS];
}

/* New arrays for an entry's outputs, into `made`; 0 if one is not as it was when the call was learnt, -1 if it failed. */
static int allocate(Launcher *self, Entry *entry, Call *call, PyObject **made) {
    int64_t key[MAX_WORDS];
    Py_ssize_t words = 0;
    for (int slot = self->inputs; slot < self->slots; slot++) {
        PyObject *how = PyTuple_GetItem(entry->fresh, slot - self->inputs);
        if (how == Py_None) continue;
        PyObject *pattern = PyTuple_GetItem(how, 1), *rest = PyTuple_GetItem(how, 2);
        PyObject *args = PyTuple_New(1 + PyTuple_Size(rest));
        if (!args) return -1;
        PyTuple_SetItem(args, 0, Py_NewRef(pattern == Py_None ? call->array[0] : pattern));
        for (Py_ssize_t i = 0; i < PyTuple_Size(rest); i++)
            PyTuple_SetItem(args, i + 1, Py_NewRef(PyTuple_GetItem(rest, i)));
        made[slot] = PyObject_Call(PyTuple_GetItem(how, 0), args, PyTuple_GetItem(how, 3));
        Py_DECREF(args);
        if (!made[slot]) return -1;
        if (!describe(made[slot], &call->pointer[slot], key, &words)) return 0;
        call->array[slot] = made[slot];
    }
    return words == entry->fresh_words && !memcmp(key, entry->fresh_key, (size_t)words * sizeof *key);
}

/* Whether an array that is written shares a byte with another; rows that interleave are for the Python path. */
static int overlaps(const Launcher *self, const Entry *entry, const Call *call) {
    for (int a = 0; a < self->slots; a++) {
        if (!self->is_written[a] || !call->array[a] || !entry->extents[a]) continue;
        uintptr_t from = call->pointer[a], to = from + (uintptr_t)entry->extents[a];
        for (int b = 0; b < self->slots; b++) {
            if (a == b || !call->array[b] || !entry->extents[b]) continue;
            if (call->pointer[b] < to && from < call->pointer[b] + (uintptr_t)entry->extents[b]) return 1;
        }
    }
    return 0;
}

/* Queue an entry's kernels; the driver's code, and the kernel that it is about. */
static int launch(const Driver *driver, const Entry *entry, const Call *call, int *which) {
    const Program *program = entry->program;
    uint64_t cells[MAX_CELLS];
    memcpy(cells, entry->cells, (size_t)program->cells * sizeof *cells);
    for (Py_ssize_t i = 0; i < program->cells; i++) {
        int patch = program->patch[i];
        if (patch >= 0) {
            void *pointer = (void *)call->pointer[patch];
            memcpy(&cells[i], &pointer, sizeof pointer);
        } else if (patch < -1) {
            float value = (float)call->scalar[-2 - patch];
            memcpy(&cells[i], &value, sizeof value);
        }
    }
    PyThreadState *state = PyEval_SaveThread(); /* a full queue blocks, and what it waits for may need the GIL */
    int code = queue(driver, program, cells, entry->grids, call->stream, which);
    PyEval_RestoreThread(state);
    return code;
}

static PyObject *results_of(const Launcher *self, const Call *call) {
    PyObject *results = self->results == 1 ? NULL : PyTuple_New(self->results);
    if (self->results != 1 && !results) return NULL;
    for (int i = 0; i < self->results; i++) {
        PyObject *array = self->result[i] >= 0 ? call->array[self->result[i]] : NULL;
        if (!array) array = Py_None;
        Py_INCREF(array);
        if (self->results == 1) return array;
        PyTuple_SetItem(results, i, array);
    }
    return results;
}

static int is_here(const Launcher *self, const Entry *entry, const Call *call) {
    void *context = NULL;
    int capturing = 0;
    if (self->driver.context(&context) || context != self->context) return 0;
    if (!entry->program->is_serial || !call->stream) return 1;
    return !self->driver.is_capturing(call->stream, &capturing) && !capturing; /* a graph has a workspace of its own */
}

PyDoc_STRVAR(call_doc, "call(inputs, named, stream): the outputs of a call that is known, else NotImplemented.");

static PyObject *launcher_call(PyObject *object, PyObject *const *args, Py_ssize_t count) {
    Launcher *self = (Launcher *)object;
    Call call;
    PyObject *made[MAX_SLOTS] = {NULL}, *answer = NULL;
    int which = 0, code, is_known = 1;
    Entry **place = gather(self, &call, args, count) ? place_for(self, &call, 0) : NULL, *entry = place ? *place : NULL;
    if (!entry || !is_here(self, entry, &call)) return Py_NewRef(Py_NotImplemented);
    entry->refs++; /* Python code that runs from here on may teach another call in its place */
    if (call.is_allocating) is_known = entry->fresh ? allocate(self, entry, &call, made) : 0;
    if (is_known > 0 && !overlaps(self, entry, &call)) {
        code = launch(&self->driver, entry, &call, &which);
        answer = code ? PyObject_CallFunction(self->fail, "ii", code, which) : results_of(self, &call);
    } else if (is_known >= 0) {
        answer = Py_NewRef(Py_NotImplemented);
    }
    release(entry);
    for (int slot = 0; slot < self->slots; slot++) Py_XDECREF(made[slot]);
    return answer;
}

PyDoc_STRVAR(learn_doc,
             "learn(inputs, named, stream, outputs, fresh, program, cells, grids, extents): know a call that was checked.\n\n"
             "outputs and fresh are None where the caller gave outputs, else by output the new array or None, and how one\n"
             "is made: (function, its first argument or None for the first input, what follows it, what it gets by name)\n"
             "or None. Says whether the call is known now.");

static PyObject *launcher_learn(PyObject *object, PyObject *args) {
    Launcher *self = (Launcher *)object;
    PyObject *inputs, *named, *stream, *outputs, *fresh;
    const char *cells, *grids, *extents;
    Py_ssize_t cell_bytes, grid_bytes, extent_bytes;
    int number;
    if (!PyArg_ParseTuple(args, "O!O!OOOiy#y#y#", &PyTuple_Type, &inputs, &PyDict_Type, &named, &stream, &outputs,
                          &fresh, &number, &cells, &cell_bytes, &grids, &grid_bytes, &extents, &extent_bytes))
        return NULL;
    const Program *program = number >= 0 && number < self->programs ? self->program[number] : NULL;
    if (!program || cell_bytes != program->cells * 8 || grid_bytes != program->kernels * 8 ||
        extent_bytes != self->slots * 8) {
        PyErr_SetString(PyExc_ValueError, "a learnt call has its program's cells and kernels, and the launcher's slots");
        return NULL;
    }
    Call call;
    PyObject *const gathered[] = {inputs, named, stream};
    if (!gather(self, &call, gathered, 3)) return Py_NewRef(Py_False);
    int64_t fresh_key[MAX_WORDS];
    Py_ssize_t fresh_words = 0, writes = self->slots - self->inputs;
    if (call.is_allocating) {
        if (!PyTuple_Check(outputs) || !PyTuple_Check(fresh) || PyTuple_Size(outputs) != writes ||
            PyTuple_Size(fresh) != writes)
            return Py_NewRef(Py_False);
        for (Py_ssize_t i = 0; i < writes; i++) {
            PyObject *how = PyTuple_GetItem(fresh, i), *array = PyTuple_GetItem(outputs, i);
            uintptr_t pointer;
            if (how == Py_None) continue;
            if (!PyTuple_Check(how) || PyTuple_Size(how) != 4 || !PyTuple_Check(PyTuple_GetItem(how, 2)) ||
                !PyDict_Check(PyTuple_GetItem(how, 3)) || !describe(array, &pointer, fresh_key, &fresh_words))
                return Py_NewRef(Py_False);
        }
    }
    size_t words = (size_t)(call.words + fresh_words + self->slots + program->kernels + program->cells);
    Entry *entry = (Entry *)PyMem_Malloc(sizeof *entry + words * sizeof(int64_t));
    if (!entry) return PyErr_NoMemory();
    entry->refs = 1;
    entry->program = program;
    entry->hash = hash_of(call.key, call.words);
    entry->words = call.words;
    entry->fresh_words = fresh_words;
    entry->fresh = call.is_allocating ? Py_NewRef(fresh) : NULL;
    entry->key = (int64_t *)(entry + 1);
    entry->fresh_key = entry->key + call.words;
    entry->extents = entry->fresh_key + fresh_words;
    entry->grids = entry->extents + self->slots;
    entry->cells = (uint64_t *)(entry->grids + program->kernels);
    memcpy(entry->key, call.key, (size_t)call.words * sizeof(int64_t));
    memcpy(entry->fresh_key, fresh_key, (size_t)fresh_words * sizeof(int64_t));
    memcpy(entry->extents, extents, (size_t)extent_bytes);
    memcpy(entry->grids, grids, (size_t)grid_bytes);
    memcpy(entry->cells, cells, (size_t)cell_bytes);
    Entry **place = place_for(self, &call, 1), *old = *place;
    *place = entry;
    release(old);
    return Py_NewRef(Py_True);
}

PyDoc_STRVAR(forget_doc, "forget(): know no call any more.");

static PyObject *launcher_forget(PyObject *object, PyObject *Py_UNUSED(none)) {
    Launcher *self = (Launcher *)object;
    for (int i = 0; i < TABLE + WAYS; i++) {
        Entry *entry = self->table[i];
        self->table[i] = NULL;
        release(entry);
    }
    return Py_NewRef(Py_None);
}

PyDoc_STRVAR(program_doc,
             "program(is_serial, words): the number of a new program.\n\n"
             "words (int64) of each kernel: function, threads, cluster, shared bytes, how it starts (1: early, 2: all blocks\n"
             "together), how many arguments, and what each of these gets: the number of a slot, -2 - i of scalar i, -1 where it stays as it was learnt.");

static PyObject *launcher_program(PyObject *object, PyObject *args) {
    Launcher *self = (Launcher *)object;
    const char *bytes;
    Py_ssize_t size;
    int is_serial;
    if (!PyArg_ParseTuple(args, "py#", &is_serial, &bytes, &size)) return NULL;
    Program *program = self->programs < MAX_PROGRAMS ? read_program(bytes, size, self->slots, self->scalars) : NULL;
    if (!program) {
        PyErr_SetString(PyExc_ValueError, "a launcher has no room for such a program");
        return NULL;
    }
    program->is_serial = is_serial;
    self->program[self->programs] = program;
    return PyLong_FromLong(self->programs++);
}

PyDoc_STRVAR(launcher_doc,
             "Launcher(names, inputs, out, written, results, defaults, labels, context, library, fail)\n\n"
             "names of the slots, inputs first, then of the scalars, whose defaults (float64) stand in their order; out: the\n"
             "slot of the first output, -1 if `out` is no name; written: a byte for each slot; results: slots (int64), -1\n"
             "for None; labels: a byte for each scalar, 1 of one that is a whole number; context: the CUcontext of the calls;\n"
             "fail(code, kernel) raises what a refused launch is.");

static PyObject *launcher_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *names, *fail;
    int inputs, out;
    const char *written, *results, *defaults, *labels, *library;
    Py_ssize_t written_bytes, result_bytes, default_bytes, label_bytes;
    unsigned long long context;
    if (named && PyDict_Size(named)) {
        PyErr_SetString(PyExc_TypeError, "a launcher takes its arguments by position");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!iiy#y#y#y#KsO", &PyTuple_Type, &names, &inputs, &out, &written, &written_bytes,
                          &results, &result_bytes, &defaults, &default_bytes, &labels, &label_bytes, &context, &library,
                          &fail))
        return NULL;
    allocfunc alloc = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Launcher *self = (Launcher *)alloc(type, 0);
    if (!self) return NULL;
    self->names = Py_NewRef(names);
    self->fail = Py_NewRef(fail);
    self->out = PyUnicode_InternFromString("out");
    self->inputs = inputs;
    self->out_slot = out;
    self->context = (void *)(uintptr_t)context;
    int is_sound = self->out && written_bytes <= MAX_SLOTS && default_bytes % 8 == 0 &&
                   default_bytes / 8 <= MAX_SCALARS && label_bytes == default_bytes / 8 && result_bytes % 8 == 0 &&
                   result_bytes / 8 <= MAX_SLOTS &&
                   PyTuple_Size(names) == written_bytes + default_bytes / 8;
    for (Py_ssize_t i = 0; is_sound && i < PyTuple_Size(names); i++) is_sound = PyUnicode_Check(PyTuple_GetItem(names, i));
    if (is_sound) {
        self->slots = (int)written_bytes;
        self->scalars = (int)(default_bytes / 8);
        self->results = (int)(result_bytes / 8);
        is_sound = inputs > 0 && inputs <= self->slots && out >= -1 && out < self->slots;
        for (int i = 0; i < self->slots; i++) self->is_written[i] = written[i] != 0;
        for (int i = 0; i < self->scalars; i++) self->is_label[i] = labels[i] != 0;
        memcpy(self->defaults, defaults, (size_t)default_bytes);
    }
    for (int i = 0; is_sound && i < self->results; i++) {
        int64_t slot;
        memcpy(&slot, results + 8 * i, sizeof slot);
        self->result[i] = (int)slot;
        is_sound = slot >= -1 && slot < self->slots;
    }
    if (!is_sound) {
        if (!PyErr_Occurred()) PyErr_SetString(PyExc_ValueError, "a launcher has no room for such a call");
    } else if (load_driver(&self->driver, library)) {
        return (PyObject *)self;
    } else {
        PyErr_Format(PyExc_OSError, NO_DRIVER, library);
    }
    Py_DECREF(self);
    return NULL;
}

static void launcher_dealloc(PyObject *object) {
    Launcher *self = (Launcher *)object;
    PyTypeObject *type = Py_TYPE(object);
    for (int i = 0; i < TABLE + WAYS; i++) release(self->table[i]);
    for (int i = 0; i < self->programs; i++) PyMem_Free(self->program[i]);
    Py_XDECREF(self->names);
    Py_XDECREF(self->out);
    Py_XDECREF(self->fail);
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

PyDoc_STRVAR(admit_doc, "admit(type, capsule): read arrays of exactly that type by its exchange API; whether it can be.");

static PyObject *admit(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *type, *capsule;
    if (!PyArg_ParseTuple(args, "O!O", &PyType_Type, &type, &capsule)) return NULL;
    if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) return Py_NewRef(Py_False);
    const Exchange *api = (const Exchange *)PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (api && api->major != 1) api = api->previous;
    for (int i = 0; i < admitted_count; i++)
        if (admitted[i].type == (PyTypeObject *)type) return Py_NewRef(Py_True);
    if (!api || !api->tensor_from_object || !api->current_stream || admitted_count == MAX_TYPES)
        return Py_NewRef(Py_False);
    admitted[admitted_count].type = (PyTypeObject *)Py_NewRef(type);
    admitted[admitted_count++].api = api;
    return Py_NewRef(Py_True);
}

static PyMethodDef launcher_methods[] = {
    {"call", (PyCFunction)(void (*)(void))launcher_call, METH_FASTCALL, call_doc},
    {"program", launcher_program, METH_VARARGS, program_doc},
    {"learn", launcher_learn, METH_VARARGS, learn_doc},
    {"forget", launcher_forget, METH_NOARGS, forget_doc},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot launcher_slots[] = {
    {Py_tp_new, (void *)launcher_new},       {Py_tp_dealloc, (void *)launcher_dealloc},
    {Py_tp_methods, (void *)launcher_methods}, {Py_tp_doc, (void *)launcher_doc},
    {0, NULL},
};

static PyType_Spec launcher_spec = {"normgen.python._launcher.Launcher", sizeof(Launcher), 0, Py_TPFLAGS_DEFAULT,
                                    launcher_slots};

static PyMethodDef module_methods[] = {{"admit", admit, METH_VARARGS, admit_doc}, {NULL, NULL, 0, NULL}};

static struct PyModuleDef module = {PyModuleDef_HEAD_INIT, "normgen.python._launcher",
                                    "Launches natively: repeats checked calls of handles, and answers XLA.", -1, module_methods,
                                    NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__launcher(void) {
    PyObject *made = PyModule_Create(&module), *type = made ? PyType_FromSpec(&launcher_spec) : NULL;
    if (type && PyModule_AddObjectRef(made, "Launcher", type) == 0 && PyModule_AddFunctions(made, xla_methods) == 0) {
        Py_DECREF(type);
        return made;
    }
    Py_XDECREF(type);
    Py_XDECREF(made);
    return NULL;
}
