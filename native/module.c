// What Python sees: holdfast._hot. Its stubs, in src/holdfast/_hot.pyi, say what each does.

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

// Gate -------------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD
    struct gate gate;
} Gate;

static void enter(struct gate *gate)
{
    if (!gate_try(gate)) {
        Py_BEGIN_ALLOW_THREADS
        gate_take(gate);
        Py_END_ALLOW_THREADS
    }
    if (gate->depth == 1)
        gate->entries++;
}

static PyObject *gate_new(PyTypeObject *type, PyObject *args, PyObject *named)
{
    (void)args, (void)named;
    Gate *self = (Gate *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
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
    struct gate *gate = &((Gate *)self)->gate;
    if (blocking) {
        enter(gate);
        Py_RETURN_TRUE;
    }
    if (!gate_try(gate))
        Py_RETURN_FALSE;
    if (gate->depth == 1)
        gate->entries++;
    Py_RETURN_TRUE;
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
    enter(&((Gate *)self)->gate);
    Py_RETURN_TRUE;
}

static PyObject *gate_exit(PyObject *self, PyObject *args)
{
    (void)args;
    return gate_release(self, NULL);
}

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
        enter(&((Gate *)self)->gate);
    Py_RETURN_NONE;
}

static PyMethodDef gate_methods[] = {
    {"acquire", (PyCFunction)(void (*)(void))gate_acquire, METH_VARARGS | METH_KEYWORDS, NULL},
    {"release", gate_release, METH_NOARGS, NULL},
    {"__enter__", gate_enter, METH_NOARGS, NULL},
    {"__exit__", gate_exit, METH_VARARGS, NULL},
    {"_is_owned", gate_owned, METH_NOARGS, NULL},
    {"_release_save", gate_release_save, METH_NOARGS, NULL},
    {"_acquire_restore", gate_acquire_restore, METH_O, NULL},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot gate_slots[] = {
    {Py_tp_new, gate_new}, {Py_tp_dealloc, gate_free}, {Py_tp_methods, gate_methods}, {0, NULL}};
static PyType_Spec gate_spec = {"holdfast._hot.Gate", sizeof(Gate), 0, Py_TPFLAGS_DEFAULT, gate_slots};

// Keys and Step ----------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD
    PyObject *log;
    struct step *step;
    struct gate *gate;
    PyObject *sets[5];
} Step;

typedef struct {
    PyObject_HEAD
    struct step *step;
    PyObject *gate_owner;
    struct gate *gate;
    struct keys *keys;
} Keys;

static PyObject *keys_new(PyObject *gate_owner, struct gate *gate, struct step *step, struct keys *keys)
{
    Keys *self = (Keys *)((allocfunc)PyType_GetSlot(keys_type, Py_tp_alloc))(keys_type, 0);
    if (self) {
        step_hold(step);
        Py_INCREF(gate_owner);
        self->step = step;
        self->gate_owner = gate_owner;
        self->gate = gate;
        self->keys = keys;
    }
    return (PyObject *)self;
}

static void keys_free(PyObject *self)
{
    step_drop(((Keys *)self)->step);
    Py_XDECREF(((Keys *)self)->gate_owner);
    free_self(self);
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

static PyObject *set_add(PyObject *object, PyObject *from)
{
    Keys *self = (Keys *)object;
    uint64_t pair[2];
    struct bytes key;
    if (!key_of(from, pair, &key))
        return NULL;
    enter(self->gate);
    bool has_room = keys_reserve(self->keys, key.size);
    if (has_room)
        keys_add(self->keys, key);
    gate_give(self->gate);
    if (!has_room)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *set_discard(PyObject *object, PyObject *from)
{
    Keys *self = (Keys *)object;
    uint64_t pair[2];
    struct bytes key;
    if (!key_of(from, pair, &key))
        return NULL;
    enter(self->gate);
    keys_drop(self->keys, key);
    gate_give(self->gate);
    Py_RETURN_NONE;
}

static int set_contains(PyObject *object, PyObject *from)
{
    Keys *self = (Keys *)object;
    uint64_t pair[2];
    struct bytes key;
    if (!key_of(from, pair, &key))
        return -1;
    enter(self->gate);
    bool has = keys_has(self->keys, key);
    gate_give(self->gate);
    return has;
}

static Py_ssize_t set_length(PyObject *object)
{
    Keys *self = (Keys *)object;
    enter(self->gate);
    size_t live = self->keys->live;
    gate_give(self->gate);
    return (Py_ssize_t)live;
}

static PyObject *set_iterate(PyObject *object)
{
    Keys *self = (Keys *)object;
    PyObject *all = PyList_New(0);
    enter(self->gate);
    struct bytes key;
    for (size_t at = 0; all && (at = keys_next(self->keys, at, &key));) {
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

static void step_free(PyObject *object)
{
    Step *self = (Step *)object;
    for (size_t at = 0; at < 5; at++)
        Py_XDECREF(self->sets[at]);
    step_drop(self->step);
    Py_XDECREF(self->log);
    free_self(object);
}

static PyObject *step_set(PyObject *object, void *which)
{
    PyObject *set = ((Step *)object)->sets[(intptr_t)which];
    Py_INCREF(set);
    return set;
}

// What has grown, as one MessagePack array; None if nothing has. It is empty afterwards.
static PyObject *take(Step *self, struct grown *grown)
{
    enter(self->gate);
    PyObject *all = NULL;
    uint32_t count = grown->count;
    if (count) {
        all = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)grown->size + 5);
        if (all) {
            uint8_t *at = (uint8_t *)PyBytes_AsString(all);
            const uint8_t head[5] = {0xdd, (uint8_t)(count >> 24), (uint8_t)(count >> 16), (uint8_t)(count >> 8),
                                     (uint8_t)count};
            memcpy(at, head, sizeof head);
            memcpy(at + sizeof head, grown->at, grown->size);
            grown->size = grown->count = 0;
        }
    }
    gate_give(self->gate);
    if (count)
        return all;
    Py_RETURN_NONE;
}

static PyObject *step_take_records(PyObject *object, PyObject *unused)
{
    (void)unused;
    return take((Step *)object, &((Step *)object)->step->records);
}

static PyObject *step_take_before(PyObject *object, PyObject *unused)
{
    (void)unused;
    return take((Step *)object, &((Step *)object)->step->before);
}

enum { COPIED, LAST, IS_OPEN };

static PyObject *step_get(PyObject *object, void *which)
{
    Step *self = (Step *)object;
    enter(self->gate);
    struct step now = *self->step;
    gate_give(self->gate);
    switch ((intptr_t)which) {
    case COPIED: return PyLong_FromLongLong(now.copied);
    case LAST: return PyFloat_FromDouble(now.last);
    default: return PyBool_FromLong(now.is_open);
    }
}

static int step_put(PyObject *object, PyObject *value, void *which)
{
    Step *self = (Step *)object;
    if (!value)
        return PyErr_SetString(PyExc_AttributeError, "it cannot be deleted"), -1;
    double last = (intptr_t)which == LAST ? PyFloat_AsDouble(value) : 0;
    long long number = (intptr_t)which == LAST ? 0 : PyLong_AsLongLong(value);
    if (PyErr_Occurred())
        return -1;
    enter(self->gate);
    switch ((intptr_t)which) {
    case COPIED: self->step->copied = number; break;
    case LAST: self->step->last = last; break;
    default: self->step->is_open = number;
    }
    gate_give(self->gate);
    return 0;
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
    {"copied", step_get, step_put, NULL, (void *)COPIED},
    {"last", step_get, step_put, NULL, (void *)LAST},
    {"is_open", step_get, step_put, NULL, (void *)IS_OPEN},
    {NULL, NULL, NULL, NULL, NULL},
};
static PyType_Slot step_slots[] = {
    {Py_tp_dealloc, step_free}, {Py_tp_methods, step_methods}, {Py_tp_getset, step_fields}, {0, NULL}};
static PyType_Spec step_spec = {
    "holdfast._hot.Step", sizeof(Step), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, step_slots};

// Log --------------------------------------------------------------------------------------------------------------

typedef struct {
    PyObject_HEAD
    PyObject *gate;
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
    Log *self = (Log *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (self) {
        Py_INCREF(gate);
        self->gate = gate;
        self->log.gate = &((Gate *)gate)->gate;
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
    numbers_clear(&self->log.objects);
    keys_clear(&self->log.places);
    Py_XDECREF(self->gate);
    free_self(object);
}

static PyObject *log_new_step(PyObject *object, PyObject *args)
{
    Log *self = (Log *)object;
    long long id;
    int reverses;
    if (!PyArg_ParseTuple(args, "Lp", &id, &reverses))
        return NULL;
    Step *step = (Step *)((allocfunc)PyType_GetSlot(step_type, Py_tp_alloc))(step_type, 0);
    if (!step)
        return NULL;
    Py_INCREF(object);
    step->log = object;
    step->gate = self->log.gate;
    step->step = step_new(id, reverses);
    if (!step->step) {
        Py_DECREF(step);
        return PyErr_NoMemory();
    }
    struct keys *sets[] = {&step->step->created, &step->step->captured, &step->step->described, &step->step->touched,
                           &step->step->contacts};
    for (size_t at = 0; at < 5; at++)
        if (!(step->sets[at] = keys_new(self->gate, step->gate, step->step, sets[at]))) {
            Py_DECREF(step);
            return NULL;
        }
    return (PyObject *)step;
}

static PyObject *log_set_journal(PyObject *object, PyObject *args)
{
    struct log *log = &((Log *)object)->log;
    int fd;
    unsigned long long written;
    if (!PyArg_ParseTuple(args, "iK", &fd, &written))
        return NULL;
    enter(log->gate);
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
    enter(log->gate);
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
    enter(log->gate);
    bool has_room = numbers_put(&log->objects, inode, changed);
    gate_give(log->gate);
    if (!has_room)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *log_drop_object(PyObject *object, PyObject *inode)
{
    struct log *log = &((Log *)object)->log;
    unsigned long long number = PyLong_AsUnsignedLongLong(inode);
    if (PyErr_Occurred())
        return NULL;
    enter(log->gate);
    numbers_drop(&log->objects, number);
    gate_give(log->gate);
    Py_RETURN_NONE;
}

static PyObject *change_place(PyObject *object, PyObject *path, bool is_known)
{
    struct log *log = &((Log *)object)->log;
    char *at;
    Py_ssize_t size;
    if (PyBytes_AsStringAndSize(path, &at, &size))
        return NULL;
    uint64_t hash = hash_of((struct bytes){(const uint8_t *)at, (size_t)size});
    struct bytes key = {(const uint8_t *)&hash, sizeof hash};
    enter(log->gate);
    bool has_room = !is_known || keys_reserve(&log->places, sizeof hash);
    if (!is_known)
        keys_drop(&log->places, key);
    else if (has_room)
        keys_add(&log->places, key);
    gate_give(log->gate);
    if (!has_room)
        return PyErr_NoMemory();
    Py_RETURN_NONE;
}

static PyObject *log_note_place(PyObject *object, PyObject *path)
{
    return change_place(object, path, true);
}

static PyObject *log_drop_place(PyObject *object, PyObject *path)
{
    return change_place(object, path, false);
}

static PyObject *log_take_number(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct log *log = &((Log *)object)->log;
    enter(log->gate);
    long long number = ++log->journal.seq;
    gate_give(log->gate);
    return PyLong_FromLongLong(number);
}

static PyObject *log_forget_callers(PyObject *object, PyObject *unused)
{
    (void)unused;
    // (Without any lock: the caller may have the gate, for which the thread that has the turn may wait.)
    atomic_fetch_add(&((Log *)object)->log.epoch, 1);
    Py_RETURN_NONE;
}

enum { SEQ, WRITTEN, OFF, COUNTS_NAMES, MOST_COPIED, COPYING, READ_AT, ARRANGEMENT, MOVES, EPOCH };

static PyObject *log_get(PyObject *object, void *which)
{
    struct log *log = &((Log *)object)->log;
    long long found;
    enter(log->gate);
    switch ((intptr_t)which) {
    case SEQ: found = log->journal.seq; break;
    case WRITTEN: found = (long long)log->journal.written; break;
    case OFF: found = log->is_off; break;
    case COUNTS_NAMES: found = log->counts_names; break;
    case MOST_COPIED: found = log->most_copied; break;
    case COPYING: found = log->copying; break;
    case READ_AT: found = log->read_at; break;
    case ARRANGEMENT: found = (long long)log->arrangement; break;
    case MOVES: found = (long long)log->moves; break;
    default: found = (long long)atomic_load(&log->epoch);
    }
    gate_give(log->gate);
    return PyLong_FromLongLong(found);
}

static int log_put(PyObject *object, PyObject *value, void *which)
{
    struct log *log = &((Log *)object)->log;
    long long number = value ? PyLong_AsLongLong(value) : 0;
    if (!value)
        PyErr_SetString(PyExc_AttributeError, "it cannot be deleted");
    if (PyErr_Occurred())
        return -1;
    enter(log->gate);
    switch ((intptr_t)which) {
    case SEQ: log->journal.seq = number; break;
    case OFF: log->is_off = number; break;
    case COUNTS_NAMES: log->counts_names = number; break;
    case MOST_COPIED: log->most_copied = number; break;
    case COPYING: log->copying = number; break;
    case READ_AT: log->read_at = number; break;
    case ARRANGEMENT: log->arrangement = (uint64_t)number; break;
    }
    gate_give(log->gate);
    return 0;
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
    {"seq", log_get, log_put, NULL, (void *)SEQ},
    {"written", log_get, NULL, NULL, (void *)WRITTEN},
    {"is_off", log_get, log_put, NULL, (void *)OFF},
    {"counts_names", log_get, log_put, NULL, (void *)COUNTS_NAMES},
    {"most_copied", log_get, log_put, NULL, (void *)MOST_COPIED},
    {"copying", log_get, log_put, NULL, (void *)COPYING},
    {"read_at", log_get, log_put, NULL, (void *)READ_AT},
    {"arrangement", log_get, log_put, NULL, (void *)ARRANGEMENT},
    {"moves", log_get, NULL, NULL, (void *)MOVES},
    {"epoch", log_get, NULL, NULL, (void *)EPOCH},
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
    Tree *self = (Tree *)((allocfunc)PyType_GetSlot(type, Py_tp_alloc))(type, 0);
    if (!self)
        return NULL;
    self->tree = calloc(1, sizeof *self->tree);
    if (!self->tree) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    Py_INCREF(log);
    Py_INCREF(turn);
    self->log = log;
    self->turn = turn;
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
    enter(tree->turn);
    tree->territory_until = 0;
    tree->border_count = 0;
    size_t filled = 0;
    bool fits = top_size > 1 && top_size < PATH_ROOM;     // (a workspace that is the root of all has rules of its own)
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
    enter(tree->turn);
    struct caller *caller = &tree->callers[(unsigned)tid % CALLERS];
    // (Mostly it is known: only this one call was left to Python.)
    if (caller->tid != tid || caller->epoch != epoch || caller->step != ((Step *)step)->step || !is_alive(caller)) {
        forget_caller(caller);
        int own = fcntl(proc, F_DUPFD_CLOEXEC, 0);
        if (own >= 0) {
            *caller = (struct caller){tid, own, mask, epoch, ((Step *)step)->step};
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

// The directories that callers were led to are closed: what is open keeps a file system from being unmounted. Threads
// that have ended are forgotten.
static PyObject *tree_release(PyObject *object, PyObject *unused)
{
    (void)unused;
    struct tree *tree = ((Tree *)object)->tree;
    enter(tree->turn);
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
