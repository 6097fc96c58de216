// The interface for Python: holdfast._hot. Its stubs, in src/holdfast/_hot.pyi, document each function.

#define Py_LIMITED_API 0x030b0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include "hot.h"
#include <linux/seccomp.h>

static PyTypeObject *gate_type, *keys_type, *step_type, *log_type, *tree_type;

static void free_self(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    freefunc release = (freefunc)PyType_GetSlot(type, Py_tp_free);
    release(self);
    Py_DECREF(type);
}

// The data of an object, and the gate under which it is read and changed.
struct shared {
    PyObject_HEAD
    PyObject *owner;            // must live as long
    struct gate *gate;
    void *base;
};

static PyObject *new_object(PyTypeObject *type)
{
    return ((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
}

// Gate -------------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD
    struct gate gate;
} Gate;

static bool enter(struct gate *gate, bool waits)
{
    if (!gate_try(gate)) {
        if (!waits)
            return false;
        Py_BEGIN_ALLOW_THREADS
        gate_take(gate);
        Py_END_ALLOW_THREADS
    }
    if (gate->depth == 1)
        gate->entries++;
    return true;
}

static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    Gate *self = (Gate *)new_object(type);
    if (self && !gate_begin(&self->gate)) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void gate_free(PyObject *self)
{
    gate_end(&((Gate *)self)->gate);
    free_self(self);
}

static PyObject *gate_acquire(PyObject *self, PyObject *args, PyObject *named)
{
    static char *names[] = {"blocking", NULL};
    int blocking = 1;
    if (!PyArg_ParseTupleAndKeywords(args, named, "|p", names, &blocking))
        return NULL;
    return PyBool_FromLong(enter(&((Gate *)self)->gate, blocking));
}

static PyObject *gate_release(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct gate *gate = &((Gate *)self)->gate;
    if (!gate_is_mine(gate)) {
        PyErr_SetString(PyExc_RuntimeError, "this thread does not have the gate");
        return NULL;
    }
    gate_give(gate);
    Py_RETURN_NONE;
}

static PyObject *gate_enter(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(enter(&((Gate *)self)->gate, true));
}

// The methods that threading.Condition needs of a reentrant lock.

static PyObject *gate_owned(PyObject *self, PyObject *unused)
{
    (void)unused;
    return PyBool_FromLong(gate_is_mine(&((Gate *)self)->gate));
}

static PyObject *gate_release_save(PyObject *self, PyObject *unused)
{
    (void)unused;
    struct gate *gate = &((Gate *)self)->gate;
    unsigned depth = gate_is_mine(gate) ? gate->depth : 0;
    for (unsigned left = depth; left; left--)
        gate_give(gate);
    return PyLong_FromUnsignedLong(depth);
}

static PyObject *gate_acquire_restore(PyObject *self, PyObject *depth)
{
    unsigned long left = PyLong_AsUnsignedLong(depth);
    if (PyErr_Occurred())
        return NULL;
    while (left--)
        enter(&((Gate *)self)->gate, true);
    Py_RETURN_NONE;
}

static PyMethodDef gate_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))gate_acquire, METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", gate_release, METH_NOARGS, NULL},
    {"__enter__", gate_enter, METH_NOARGS, NULL},
    {"__exit__", gate_release, METH_VARARGS, NULL},
    {"_is_owned", gate_owned, METH_NOARGS, NULL},
    {"_release_save", gate_release_save, METH_NOARGS, NULL},
    {"_acquire_restore", gate_acquire_restore, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_new, gate_new}, {Py_tp_dealloc, gate_free}, {Py_tp_methods, gate_methods}, {0, NULL}};
static PyType_Spec gate_spec = {"holdfast._hot.Gate", sizeof(Gate), 0, Py_TPFLAGS_DEFAULT, gate_slots};

// Fields -----------------------------------------------------------------------------------------------------------

struct field {
    size_t at;
    enum { NUMBER, FLAG, SECONDS } kind;
};

#define FIELD(type, name, kind) ((void *)&(const struct field){offsetof(type, name), kind})

static PyObject *get_field(PyObject *object, void *which)
{
    const struct shared *self = (struct shared *)object;
    const struct field *field = which;
    const void *at = (const char *)self->base + field->at;
    enter(self->gate, true);
    double seconds = field->kind == SECONDS ? *(const double *)at : 0;
    int64_t number = field->kind == NUMBER ? *(const int64_t *)at : field->kind == FLAG ? *(const bool *)at : 0;
    gate_give(self->gate);
    return field->kind == SECONDS ? PyFloat_FromDouble(seconds)
           : field->kind == FLAG  ? PyBool_FromLong(number)
                                  : PyLong_FromLongLong(number);
}

static int put_field(PyObject *object, PyObject *value, void *which)
{
    const struct shared *self = (struct shared *)object;
    const struct field *field = which;
    void *at = (char *)self->base + field->at;
    if (!value)
        return PyErr_SetString(PyExc_AttributeError, "it cannot be deleted"), -1;
    int64_t number = PyLong_AsLongLong(value);
    if (PyErr_Occurred())
        return -1;
    enter(self->gate, true);
    if (field->kind == FLAG)
        *(bool *)at = number;
    else
        *(int64_t *)at = number;
    gate_give(self->gate);
    return 0;
}

// Keys and Step ----------------------------------------------------------------------------------------------------

enum { SETS = 5 };

typedef struct {
    struct shared shared;       // owned by the log; a struct step
    PyObject *sets[SETS];
} Step;

typedef struct {
    struct shared shared;       // owned by the gate; a struct keys of the step
    struct step *step;
} Keys;

static PyObject *keys_new(PyObject *owner, struct gate *gate, struct step *step, struct keys *keys)
{
    Keys *self = (Keys *)new_object(keys_type);
    if (self) {
        step_hold(step);
        self->step = step;
        self->shared.owner = Py_NewRef(owner);
        self->shared.gate = gate;
        self->shared.base = keys;
    }
    return (PyObject *)self;
}

static void keys_free(PyObject *object)
{
    Keys *self = (Keys *)object;
    step_drop(self->step);
    Py_XDECREF(self->shared.owner);
    free_self(object);
}

// A key is bytes, or a device and an inode number. Returns false with an exception.
static bool key_of(PyObject *from, uint64_t pair[2], struct bytes *key)
{
    if (PyTuple_Check(from) && PyTuple_Size(from) == 2) {
        for (Py_ssize_t at = 0; at < 2; at++)
            pair[at] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(from, at));
        *key = (struct bytes){(const uint8_t *)pair, 2 * sizeof *pair};
        return !PyErr_Occurred();
    }
    char *at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(from, &at, &size))
        return false;
    *key = (struct bytes){(const uint8_t *)at, (size_t)size};
    return true;
}

// Adds a key with its value, or drops it if there is none.
static PyObject *change_set(struct gate *gate, struct keys *keys, struct bytes key, const long long *value)
{
    enter(gate, true);
    bool has_memory = !value || keys_reserve(keys, key.size);
    if (!value) {
        keys_drop(keys, key);
    } else if (has_memory) {
        keys_add(keys, key);
        *keys_find(keys, key) = *value;
    }
    gate_give(gate);
    return has_memory ? Py_NewRef(Py_None) : PyErr_NoMemory();
}

static const long long NO_VALUE = 0;

static PyObject *change_keys(PyObject *object, PyObject *from, const long long *value)
{
    const struct shared *self = (struct shared *)object;
    uint64_t pair[2];
    struct bytes key;
    return key_of(from, pair, &key) ? change_set(self->gate, self->base, key, value) : NULL;
}

static PyObject *set_add(PyObject *object, PyObject *from)
{
    return change_keys(object, from, &NO_VALUE);
}

static PyObject *set_discard(PyObject *object, PyObject *from)
{
    return change_keys(object, from, NULL);
}

static int set_contains(PyObject *object, PyObject *from)
{
    const struct shared *self = (struct shared *)object;
    uint64_t pair[2];
    struct bytes key;
    if (!key_of(from, pair, &key))
        return -1;
    enter(self->gate, true);
    bool has = keys_has(self->base, key);
    gate_give(self->gate);
    return has;
}

static Py_ssize_t set_length(PyObject *object)
{
    const struct shared *self = (struct shared *)object;
    enter(self->gate, true);
    size_t live = ((struct keys *)self->base)->live;
    gate_give(self->gate);
    return (Py_ssize_t)live;
}

static PyObject *set_iterate(PyObject *object)
{
    const struct shared *self = (struct shared *)object;
    PyObject *all = PyList_New(0);
    enter(self->gate, true);
    struct bytes key;
    for (size_t at = 0; all && (at = keys_next(self->base, at, &key));) {
        PyObject *one = PyBytes_FromStringAndSize((const char *)key.at, (Py_ssize_t)key.size);
        if (!one || PyList_Append(all, one))
            Py_CLEAR(all);
        Py_XDECREF(one);
    }
    gate_give(self->gate);
    PyObject *iterator = all ? PyObject_GetIter(all) : NULL;
    Py_XDECREF(all);
    return iterator;
}

static PyMethodDef keys_methods[] = {
    {"add", set_add, METH_O, NULL}, {"discard", set_discard, METH_O, NULL}, {NULL, NULL, 0, NULL}};
static PyType_Slot keys_slots[] = {
    {Py_tp_dealloc, keys_free}, {Py_tp_methods, keys_methods}, {Py_sq_contains, set_contains},
    {Py_sq_length, set_length}, {Py_tp_iter, set_iterate}, {0, NULL}};
static PyType_Spec keys_spec = {
    "holdfast._hot.Keys", sizeof(Keys), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, keys_slots};

static PyObject *step_of(PyObject *log, PyObject *gate, struct gate *its, struct step *from)
{
    Step *self = from ? (Step *)new_object(step_type) : NULL;
    if (!self) {
        step_drop(from);
        return from ? NULL : PyErr_NoMemory();
    }
    self->shared.owner = Py_NewRef(log);
    self->shared.gate = its;
    self->shared.base = from;
    struct keys *sets[SETS] = {&from->created, &from->captured, &from->described, &from->touched, &from->contacts};
    for (size_t at = 0; at < SETS; at++)
        if (!(self->sets[at] = keys_new(gate, its, from, sets[at]))) {
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static void step_free(PyObject *object)
{
    Step *self = (Step *)object;
    for (size_t at = 0; at < SETS; at++)
        Py_XDECREF(self->sets[at]);
    step_drop(self->shared.base);
    Py_XDECREF(self->shared.owner);
    free_self(object);
}

static PyObject *step_set(PyObject *object, void *which)
{
    return Py_NewRef(((Step *)object)->sets[(intptr_t)which]);
}

// Returns the collected data as one MessagePack array; None if there is none. It is empty afterwards.
static PyObject *take(struct gate *gate, struct grown *grown)
{
    enter(gate, true);
    const uint32_t count = grown->count;
    PyObject *all = count ? PyBytes_FromStringAndSize(NULL, (Py_ssize_t)grown->size + 5) : Py_NewRef(Py_None);
    if (count && all) {
        uint8_t *at = (uint8_t *)PyBytes_AsString(all);
        *at = 0xdd;
        for (int byte = 0; byte < 4; byte++)
            at[1 + byte] = (uint8_t)(count >> (24 - 8 * byte));
        memcpy(at + 5, grown->at, grown->size);
        grown->size = grown->count = 0;
    }
    gate_give(gate);
    return all;
}

static PyObject *step_take_records(PyObject *object, PyObject *unused)
{
    (void)unused;
    const struct shared *self = (struct shared *)object;
    return take(self->gate, &((struct step *)self->base)->records);
}

static PyObject *step_take_before(PyObject *object, PyObject *unused)
{
    (void)unused;
    const struct shared *self = (struct shared *)object;
    return take(self->gate, &((struct step *)self->base)->before);
}

static PyMethodDef step_methods[] = {
    {"take_records", step_take_records, METH_NOARGS, NULL},
    {"take_before", step_take_before, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef step_fields[] = {
    {"created", step_set, NULL, NULL, (void *)0},
    {"captured", step_set, NULL, NULL, (void *)1},
    {"described", step_set, NULL, NULL, (void *)2},
    {"touched", step_set, NULL, NULL, (void *)3},
    {"contacts", step_set, NULL, NULL, (void *)4},
    {"copied", get_field, put_field, NULL, FIELD(struct step, copied, NUMBER)},
    {"last", get_field, NULL, NULL, FIELD(struct step, last, SECONDS)},
    {"is_open", get_field, put_field, NULL, FIELD(struct step, is_open, FLAG)},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot step_slots[] = {
    {Py_tp_dealloc, step_free}, {Py_tp_methods, step_methods}, {Py_tp_getset, step_fields}, {0, NULL}};
static PyType_Spec step_spec = {
    "holdfast._hot.Step", sizeof(Step), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, step_slots};

// Log --------------------------------------------------------------------------------------------------------------

typedef struct {
    struct shared shared;       // owned by the gate; the log
    struct log log;
} Log;

static PyObject *log_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)named;
    PyObject *gate;
    int kept;
    unsigned long long device;
    if (!PyArg_ParseTuple(args, "O!iK", gate_type, &gate, &kept, &device))
        return NULL;
    Log *self = (Log *)new_object(type);
    if (self) {
        self->shared.owner = Py_NewRef(gate);
        self->shared.gate = self->log.gate = &((Gate *)gate)->gate;
        self->shared.base = &self->log;
        self->log.kept = kept;
        self->log.device = device;
        self->log.journal.fd = -1;
        self->log.read_at = INT64_MAX;
    }
    return (PyObject *)self;
}

static void log_free(PyObject *object)
{
    Log *self = (Log *)object;
    keys_clear(&self->log.objects);
    keys_clear(&self->log.places);
    Py_XDECREF(self->shared.owner);
    free_self(object);
}

static PyObject *log_new_step(PyObject *object, PyObject *args)
{
    const Log *self = (Log *)object;
    long long id;
    int reverses;
    if (!PyArg_ParseTuple(args, "Lp", &id, &reverses))
        return NULL;
    return step_of(object, self->shared.owner, self->shared.gate, step_new(id, reverses));
}

static PyObject *log_set_journal(PyObject *object, PyObject *args)
{
    struct log *log = &((Log *)object)->log;
    int fd;
    unsigned long long written;
    if (!PyArg_ParseTuple(args, "iK", &fd, &written))
        return NULL;
    enter(log->gate, true);
    log->journal.fd = fd;
    log->journal.written = written;
    log->journal.is_broken = false;
    gate_give(log->gate);
    Py_RETURN_NONE;
}

static PyObject *log_append(PyObject *object, PyObject *frame)
{
    struct log *log = &((Log *)object)->log;
    char *at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(frame, &at, &size))
        return NULL;
    enter(log->gate, true);
    int error = journal_write(&log->journal, (const uint8_t *)at, (size_t)size);
    gate_give(log->gate);
    return PyLong_FromLong(error);
}

static PyObject *log_note_object(PyObject *object, PyObject *args)
{
    struct log *log = &((Log *)object)->log;
    unsigned long long inode;
    long long changed;
    if (!PyArg_ParseTuple(args, "KL", &inode, &changed))
        return NULL;
    return change_set(log->gate, &log->objects, (struct bytes){(const uint8_t *)&inode, sizeof inode}, &changed);
}

static PyObject *log_drop_object(PyObject *object, PyObject *inode)
{
    struct log *log = &((Log *)object)->log;
    const unsigned long long number = PyLong_AsUnsignedLongLong(inode);
    if (PyErr_Occurred())
        return NULL;
    return change_set(log->gate, &log->objects, (struct bytes){(const uint8_t *)&number, sizeof number}, NULL);
}

static PyObject *change_place(PyObject *object, PyObject *path, const long long *value)
{
    struct log *log = &((Log *)object)->log;
    char *at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(path, &at, &size))
        return NULL;
    uint64_t hash = hash_of((struct bytes){(const uint8_t *)at, (size_t)size});
    return change_set(log->gate, &log->places, (struct bytes){(const uint8_t *)&hash, sizeof hash}, value);
}

static PyObject *log_note_place(PyObject *object, PyObject *path)
{
    return change_place(object, path, &NO_VALUE);
}

static PyObject *log_drop_place(PyObject *object, PyObject *path)
{
    return change_place(object, path, NULL);
}

static PyObject *log_take_number(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct log *log = &((Log *)object)->log;
    enter(log->gate, true);
    long long number = ++log->journal.seq;
    gate_give(log->gate);
    return PyLong_FromLongLong(number);
}

// (Without any lock: the caller may have the gate, for which the thread with the turn may be waiting.)
static PyObject *log_forget_callers(PyObject *object, PyObject *unused)
{
    (void)unused;
    atomic_fetch_add(&((Log *)object)->log.epoch, 1);
    Py_RETURN_NONE;
}

static PyObject *log_epoch(PyObject *object, void *unused)
{
    (void)unused;
    return PyLong_FromUnsignedLongLong(atomic_load(&((Log *)object)->log.epoch));
}

static PyMethodDef log_methods[] = {
    {"new_step", log_new_step, METH_VARARGS, NULL},
    {"take_number", log_take_number, METH_NOARGS, NULL},
    {"set_journal", log_set_journal, METH_VARARGS, NULL},
    {"append", log_append, METH_O, NULL},
    {"note_object", log_note_object, METH_VARARGS, NULL},
    {"drop_object", log_drop_object, METH_O, NULL},
    {"note_place", log_note_place, METH_O, NULL},
    {"drop_place", log_drop_place, METH_O, NULL},
    {"forget_callers", log_forget_callers, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef log_fields[] = {
    {"seq", get_field, put_field, NULL, FIELD(struct log, journal.seq, NUMBER)},
    {"written", get_field, NULL, NULL, FIELD(struct log, journal.written, NUMBER)},
    {"is_off", get_field, put_field, NULL, FIELD(struct log, is_off, FLAG)},
    {"counts_names", get_field, put_field, NULL, FIELD(struct log, counts_names, FLAG)},
    {"most_copied", get_field, put_field, NULL, FIELD(struct log, most_copied, NUMBER)},
    {"copying", get_field, put_field, NULL, FIELD(struct log, copying, NUMBER)},
    {"read_at", get_field, put_field, NULL, FIELD(struct log, read_at, NUMBER)},
    {"arrangement", get_field, put_field, NULL, FIELD(struct log, arrangement, NUMBER)},
    {"moves", get_field, NULL, NULL, FIELD(struct log, moves, NUMBER)},
    {"epoch", log_epoch, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot log_slots[] = {
    {Py_tp_new, log_new}, {Py_tp_dealloc, log_free}, {Py_tp_methods, log_methods}, {Py_tp_getset, log_fields}, {0, NULL}};
static PyType_Spec log_spec = {"holdfast._hot.Log", sizeof(Log), 0, Py_TPFLAGS_DEFAULT, log_slots};

// Tree -------------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD
    PyObject *log, *turn;
    struct tree *tree;
} Tree;

static PyObject *tree_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)named;
    PyObject *log, *turn;
    int listener, selector, root;
    if (!PyArg_ParseTuple(args, "O!O!iii", log_type, &log, gate_type, &turn, &listener, &selector, &root))
        return NULL;
    Tree *self = (Tree *)new_object(type);
    if (!self)
        return NULL;
    self->tree = calloc(1, sizeof *self->tree);
    if (!self->tree) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    self->log = Py_NewRef(log);
    self->turn = Py_NewRef(turn);
    self->tree->log = &((Log *)log)->log;
    self->tree->turn = &((Gate *)turn)->gate;
    self->tree->listener = listener;
    self->tree->selector = selector;
    self->tree->root = root;
    atomic_init(&self->tree->is_on, true);
    tree_begin(self->tree);
    return (PyObject *)self;
}

static void tree_free(PyObject *object)
{
    Tree *self = (Tree *)object;
    if (self->tree) {
        tree_end(self->tree);
        free(self->tree);
    }
    Py_XDECREF(self->log);
    Py_XDECREF(self->turn);
    free_self(object);
}

static PyObject *tree_receive(PyObject *object, PyObject *unused)
{
    (void)unused;
    Tree *self = (Tree *)object;
    struct seccomp_notif notification;
    struct call *call = malloc(sizeof *call);
    if (!call)
        return PyErr_NoMemory();
    bool is_one, is_gone;
    int error;
    Py_BEGIN_ALLOW_THREADS
    is_one = receive(self->tree, call, &notification, &is_gone);
    error = errno;
    free(call);
    Py_END_ALLOW_THREADS
    if (is_one)
        return PyBytes_FromStringAndSize((const char *)&notification, sizeof notification);
    if (is_gone) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *tree_set_territory(PyObject *object, PyObject *args)
{
    struct tree *tree = ((Tree *)object)->tree;
    const char *top;
    Py_ssize_t top_size;
    PyObject *borders;
    long long until;
    if (!PyArg_ParseTuple(args, "y#O!L", &top, &top_size, &PyTuple_Type, &borders, &until))
        return NULL;
    enter(tree->turn, true);
    tree->territory_until = 0;
    tree->border_count = 0;
    size_t filled = 0;
    bool fits = top_size > 1 && top_size < PATH_ROOM;     // (a workspace that is the root directory has its own rules)
    for (Py_ssize_t at = 0; fits && at < PyTuple_Size(borders); at++) {
        char *border;
        Py_ssize_t size;
        if (PyBytes_AsStringAndSize(PyTuple_GetItem(borders, at), &border, &size)) {
            gate_give(tree->turn);
            return NULL;
        }
        fits = filled + (size_t)size + 1 <= BORDERS_ROOM;
        if (fits) {
            memcpy(tree->borders + filled, border, (size_t)size);
            filled += (size_t)size;
            tree->borders[filled++] = 0;
            tree->border_count++;
        }
    }
    if (fits) {
        memcpy(tree->top, top, (size_t)top_size);
        tree->top[top_size] = 0;
        tree->top_size = (size_t)top_size;
        tree->territory_until = until;
    }
    gate_give(tree->turn);
    Py_RETURN_NONE;
}

static PyObject *tree_learn(PyObject *object, PyObject *args)
{
    struct tree *tree = ((Tree *)object)->tree;
    int tid, proc;
    unsigned int mask;
    PyObject *step;
    unsigned long long epoch;
    if (!PyArg_ParseTuple(args, "iiIO!K", &tid, &proc, &mask, step_type, &step, &epoch))
        return NULL;
    struct step *its = ((Step *)step)->shared.base;
    enter(tree->turn, true);
    struct caller *caller = &tree->callers[(unsigned)tid % CALLERS];
    // (Usually it is known: only this one call was left to Python.)
    if (caller->tid != tid || caller->epoch != epoch || caller->step != its || !is_alive(caller)) {
        forget_caller(caller);
        int own = fcntl(proc, F_DUPFD_CLOEXEC, 0);
        if (own >= 0) {
            *caller = (struct caller){tid, own, mask, epoch, its};
            step_hold(caller->step);
        }
    }
    gate_give(tree->turn);
    Py_RETURN_NONE;
}

static PyObject *tree_close(PyObject *object, PyObject *unused)
{
    (void)unused;
    Tree *self = (Tree *)object;
    atomic_store(&self->tree->is_on, false);
    Py_RETURN_NONE;
}

// Closes the cached directories of callers, as open descriptors keep a file system from being unmounted. Forgets
// threads that have ended.
static PyObject *tree_release(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct tree *tree = ((Tree *)object)->tree;
    enter(tree->turn, true);
    forget_directories(tree);
    for (int at = 0; at < CALLERS; at++)
        if (tree->callers[at].tid && !is_alive(&tree->callers[at]))
            forget_caller(&tree->callers[at]);
    gate_give(tree->turn);
    Py_RETURN_NONE;
}

static PyObject *tree_counts(PyObject *object, void *which)
{
    (void)which;
    const struct tree *tree = ((Tree *)object)->tree;
    return Py_BuildValue("KK", (unsigned long long)tree->handled, (unsigned long long)tree->passed);
}

static PyMethodDef tree_methods[] = {
    {"receive", tree_receive, METH_NOARGS, NULL},
    {"set_territory", tree_set_territory, METH_VARARGS, NULL},
    {"learn", tree_learn, METH_VARARGS, NULL},
    {"release", tree_release, METH_NOARGS, NULL},
    {"close", tree_close, METH_NOARGS, NULL},
    {NULL, NULL, 0, NULL},
};
static PyGetSetDef tree_fields[] = {{"counts", tree_counts, NULL, NULL, NULL}, {NULL, NULL, NULL, NULL, NULL}};
static PyType_Slot tree_slots[] = {
    {Py_tp_new, tree_new}, {Py_tp_dealloc, tree_free}, {Py_tp_methods, tree_methods}, {Py_tp_getset, tree_fields},
    {0, NULL}};
static PyType_Spec tree_spec = {"holdfast._hot.Tree", sizeof(Tree), 0, Py_TPFLAGS_DEFAULT, tree_slots};

// The module -------------------------------------------------------------------------------------------------------

static int fill(PyObject *module)
{
    const struct {
        const char *name;
        PyTypeObject **type;
        PyType_Spec *spec;
    } types[] = {{"Gate", &gate_type, &gate_spec}, {"Keys", &keys_type, &keys_spec}, {"Step", &step_type, &step_spec},
                 {"Log", &log_type, &log_spec}, {"Tree", &tree_type, &tree_spec}};
    if (!hash_begin())
        return PyErr_SetFromErrno(PyExc_OSError), -1;
    for (size_t at = 0; at < sizeof types / sizeof *types; at++) {
        *types[at].type = (PyTypeObject *)PyType_FromSpec(types[at].spec);
        if (!*types[at].type || PyModule_AddObjectRef(module, types[at].name, (PyObject *)*types[at].type))
            return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {{Py_mod_exec, fill}, {0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "_hot", "The native part of the keeper.", 0, NULL, module_slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__hot(void)
{
    return PyModuleDef_Init(&module);
}
