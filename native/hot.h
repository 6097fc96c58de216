// The native part of the keeper: declarations shared by its files. docs/internals/native-loop.md explains it.
//
// Only module.c holds the interpreter's lock. Functions return true if the call has been answered, and false if
// Python's handler must perform it: then nothing has happened yet.

#ifndef HOLDFAST_HOT_H
#define HOLDFAST_HOT_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum {
    PATH_ROOM = 4096,           // a path with its final zero byte
    NAME_ROOM = 256,            // a name with its final zero byte
    WAY_ROOM = 512,             // the way to a cached directory
    IDENTITY_ROOM = 1 + 4 + 128,
    INLINE_ROOM = 16 << 10,     // content that fits in its record
    FRAME_ROOM = 8 + INLINE_ROOM + 2 * PATH_ROOM + 2048,
    CALLERS = 256,
    DIRECTORIES = 64,
    BORDERS_ROOM = 64 << 10,
};

#define MOST_WRITTEN ((uint64_t)2 << 30)   // bytes of a segment, before it accepts no more records of steps

struct bytes {
    const uint8_t *at;
    size_t size;
};

static inline struct bytes bytes_of(const char *text)
{
    return (struct bytes){(const uint8_t *)text, strlen(text)};
}

// gate.c: a lock that one thread may take several times, given to threads in the order of their arrival.

struct gate {
    pthread_mutex_t lock;
    pthread_cond_t turn;
    uint64_t next, serving;     // the number of the next thread, and of the one whose turn it is
    pthread_t owner;
    unsigned depth;             // how often its owner has taken it; 0 if it is free
    uint64_t entries;           // how often a thread of the interpreter has taken it
};

bool gate_begin(struct gate *);
void gate_end(struct gate *);
void gate_take(struct gate *);
bool gate_try(struct gate *);
void gate_give(struct gate *);
bool gate_is_mine(struct gate *);

// keys.c: a set of byte strings, each with a number.

struct key {
    uint64_t hash;
    uint32_t at, size;          // its place in `store`; `at` is KEY_FREE or KEY_GONE for no key
    int64_t value;              // 0, until it is changed
};

struct keys {
    struct key *slots;
    size_t room, used, live;    // `used` includes removed ones
    uint8_t *store;
    size_t stored, store_room;
};

bool keys_reserve(struct keys *, size_t bytes);   // room for one more key of this size; false without memory
bool keys_has(const struct keys *, struct bytes);
int64_t *keys_find(const struct keys *, struct bytes);  // its value, until the set changes; null if it is missing
void keys_add(struct keys *, struct bytes);       // after keys_reserve
bool keys_drop(struct keys *, struct bytes);
size_t keys_next(const struct keys *, size_t from, struct bytes *found);  // the index after the key; 0 at the end
void keys_clear(struct keys *);

bool hash_begin(void);
uint64_t hash_of(struct bytes);

// journal.c: records as in docs/formats/undo-log.md, and the file to which they are appended.

struct frame {
    size_t size;                // 0 once a record did not fit, which makes it invalid
    uint8_t bytes[FRAME_ROOM];
};

enum { FRAME_HEAD = 8 };

void frame_begin(struct frame *);
void put_array(struct frame *, unsigned count);
void put_int(struct frame *, int64_t);
void put_time(struct frame *, struct timespec);
void put_bytes(struct frame *, struct bytes);
void put_text(struct frame *, const char *);
void put_nil(struct frame *);
void put_bool(struct frame *, bool);

struct journal {
    int fd;
    uint64_t written;           // bytes of the segment
    int64_t seq;                // the last sequence number that was given out
    bool is_broken;             // a part of a record could not be removed
};

int journal_append(struct journal *, struct frame *);  // 0, or the error number
int journal_write(struct journal *, const uint8_t *, size_t);

// A step, and the log. `gate` protects both.

struct grown {
    uint8_t *at;
    size_t size, room;
    uint32_t count;
};

struct step {
    atomic_int holders;
    int64_t id;
    bool is_open, reverses;
    struct keys created, captured, described, touched, contacts;
    struct keys emptied;        // inode numbers of directories: their ctime after the step took a name from them
    struct grown records;       // bodies of records that Python has not taken over yet
    struct grown before;        // the state of objects before the step changed them
    int64_t copied, inlined;
    double last;                // its last activity (CLOCK_MONOTONIC)
};

struct step *step_new(int64_t id, bool reverses);
void step_hold(struct step *);
void step_drop(struct step *);
bool grown_add(struct grown *, struct bytes);

struct log {
    struct gate *gate;
    struct journal journal;
    int kept;                   // the directory of preimages
    dev_t device;               // the device of the workspace's root
    bool is_off;                // every change is left to Python, which delays it, or asks a person first
    bool counts_names;          // the names in the directory of preimages are counted
    atomic_uint_fast64_t epoch; // changes whenever a process's changes may belong to another step
    int64_t most_copied;        // limit of a step, above which it is unprotected
    int64_t copying;            // files that Python copies without the gate: meanwhile only Python preserves content
    int64_t read_at;            // earlier changes, as file systems count, were reported (ns)
    struct keys objects;        // by inode number, the ctime of the object after a finished step
    struct keys places;         // the hashes of paths of objects left by a finished step
    uint64_t arrangement;       // changes whenever a directory may have been moved
    uint64_t moves;             // number of names removed or moved here
};

// receive.c

struct caller {
    pid_t tid;                  // 0: none
    int proc;                   // its directory in /proc, O_PATH
    mode_t umask;
    uint64_t epoch;
    struct step *step;
};

struct directory {
    pid_t tid;
    int from, fd;
    uint64_t user;              // the last call that used it
    size_t way_size;
    dev_t device;
    ino_t inode;
    int64_t until;
    uint64_t arrangement, entries;
    char way[WAY_ROOM];         // from the caller's directory in /proc, or from the root
    char path[PATH_ROOM];       // below the root, without a final slash
};

struct tree {
    struct log *log;
    struct gate *turn;          // its owner performs calls
    pthread_mutex_t receiving;  // one thread at a time waits for calls; the next takes over when it goes to Python
    int listener, selector;
    atomic_bool is_on;
    int root;
    uint64_t mount;             // that of the root; 0: no calls are performed here
    int64_t territory_until;    // CLOCK_MONOTONIC (ns)
    size_t top_size, border_count;
    char top[PATH_ROOM];        // the path of the root
    char borders[BORDERS_ROOM]; // paths at or below which nothing may be changed, each with a final zero byte
    struct caller callers[CALLERS];
    struct directory directories[DIRECTORIES];
    unsigned next_directory;
    uint64_t handled, passed;   // number of calls performed here, and left to Python
};

struct call {
    struct tree *tree;
    struct log *log;
    struct caller *caller;
    uint64_t id, args[6];
    pid_t tid;
    int number;
    char first[PATH_ROOM], second[PATH_ROOM];  // its path arguments
    struct frame frame;
    size_t marks[2];            // the size and number of the step's records before the last one
};

bool receive(struct tree *, struct call *, void *notification, bool *is_gone);
bool is_waiting(const struct call *);
bool answer(const struct call *, int64_t value, int error);
bool answer_with(const struct call *, int fd, bool is_cloexec);
bool read_path(const struct call *, uint64_t address, char *path);
bool read_memory(const struct call *, uint64_t address, void *found, size_t size);

// resolve.c

struct place {
    int dir;                    // borrowed until the end of the call
    const char *name;
    const char *parent;         // the path of the directory below the root
    struct bytes path;          // of the name; in `room`
    char room[PATH_ROOM + NAME_ROOM];
};

bool find_caller(struct call *);
bool find_place(struct call *, int from, const char *path, struct place *);
bool find_object(struct call *, int number, bool is_named, struct place *, int *fd);
bool is_at_border(const struct tree *, const char *path);
bool is_alive(const struct caller *);
void forget_caller(struct caller *);
void forget_directories(struct tree *);
void tree_begin(struct tree *);
void tree_end(struct tree *);

// operate.c

bool operate(struct call *);

// Small things

int64_t monotonic_ns(void);
size_t identity_of(int dir, const char *name, uint8_t *found);  // 0 if there is none
const char *path_of(int fd, char path[32]);     // for opening our own descriptor again

#endif
