// The calls performed here: they are journalled first, lost content is preserved, and then they are done, exactly as in
// holdfast.undo.recorder and holdfast.supervisor.operations. Unusual cases are left to these.
//
// Under the gate, in this order: all checks that may leave the call to Python; that the caller still waits; the records
// are written; that it still waits; the operation. No change can happen before it can be reversed.

#include "hot.h"
#include <linux/fs.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/xattr.h>
#include <time.h>

enum { SLOW_SIZE = 1 << 20, INLINED_MOST = 32 << 20, REST_NS = 20000000, KEEP_MOVED = 1, KEEP_LINKED = 2, KEEP_COPIED = 3,
       KEEP_NOT = 4, KEEP_INLINE = 5 };

enum { TOUCH = 3, MAKE = 4, MADE = 5, REMOVE = 6, MOVE = 7, CONTENT = 8, META = 9, FAILED = 11, LINK = 16 };  // their tags

struct object {
    struct stat about;
    uint8_t identity[IDENTITY_ROOM];
    size_t identity_size;
    bool is_created;
};

static int64_t ns_of(struct timespec time)
{
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return ns_of(now) / 1000 * 1000;    // (the clock of the journal counts microseconds)
}

static struct bytes identity(const struct object *object)
{
    return (struct bytes){object->identity, object->identity_size};
}

static const char *type_of(mode_t mode)
{
    return S_ISDIR(mode) ? "d" : S_ISLNK(mode) ? "l" : "f";
}

// Records ----------------------------------------------------------------------------------------------------------

static void begin_record(struct call *call, int kind, int fields, int64_t seq)
{
    frame_begin(&call->frame);
    put_array(&call->frame, (unsigned)fields + 3);
    put_int(&call->frame, kind);
    put_int(&call->frame, seq);
    put_int(&call->frame, call->caller->step->id);
}

static int64_t take_number(struct call *call)
{
    return ++call->log->journal.seq;
}

// Adds the content of the frame.
static bool grow(struct call *call, struct grown *grown)
{
    struct bytes body = {call->frame.bytes + FRAME_HEAD, call->frame.size - FRAME_HEAD};
    return call->frame.size && grown_add(grown, body);
}

static void forget_last(struct call *call)
{
    struct grown *records = &call->caller->step->records;
    records->size = call->marks[0];
    records->count = (uint32_t)call->marks[1];
}

// Journals the record in the frame, as one of the step's. Returns 0, or the error: then its change must not happen.
static int append(struct call *call)
{
    struct grown *records = &call->caller->step->records;
    call->marks[0] = records->size;
    call->marks[1] = records->count;
    if (!grow(call, records))
        return ENOMEM;
    int error = journal_append(&call->log->journal, &call->frame);
    if (error)
        forget_last(call);
    return error;
}

// The change of the last record did not happen.
static void retract(struct call *call, int64_t seq)
{
    forget_last(call);
    begin_record(call, FAILED, 1, take_number(call));
    put_int(&call->frame, seq);
    journal_append(&call->log->journal, &call->frame);  // (a reversal checks this itself)
}

// Journals the record in the frame, and checks again whether the caller waits. Returns 0, or the error for the call.
static int announce(struct call *call, int64_t seq)
{
    int error = append(call);
    if (error || is_waiting(call))
        return error;
    retract(call, seq);
    return EINTR;
}

static void put_keeping(struct call *call, int how, int64_t number, struct bytes content)
{
    put_array(&call->frame, 4);
    put_int(&call->frame, how);
    put_int(&call->frame, number);
    put_bytes(&call->frame, content);
    put_bool(&call->frame, false);
}

static void put_metadata(struct call *call, const struct stat *about)
{
    put_array(&call->frame, 5);
    put_int(&call->frame, about->st_mode & 07777);
    put_int(&call->frame, about->st_uid);
    put_int(&call->frame, about->st_gid);
    put_time(&call->frame, about->st_mtim);
    put_array(&call->frame, 0);
}

static const struct bytes NOTHING = {(const uint8_t *)"", 0};

// The names in a directory will change, and with them its mtime: recorded once for a step.
static int touch_parent(struct call *call, const struct place *place)
{
    struct step *step = call->caller->step;
    struct bytes parent = bytes_of(place->parent);
    if (keys_has(&step->touched, parent))
        return 0;
    struct object directory;
    directory.identity_size = identity_of(place->dir, "", directory.identity);
    if (!directory.identity_size || fstat(place->dir, &directory.about))
        return EIO;
    begin_record(call, TOUCH, 3, take_number(call));
    put_bytes(&call->frame, parent);
    put_bytes(&call->frame, identity(&directory));
    put_time(&call->frame, directory.about.st_mtim);
    int error = append(call);
    if (!error)
        keys_add(&step->touched, parent);
    return error;
}

// Questions --------------------------------------------------------------------------------------------------------

struct contact {
    uint64_t device, inode;     // (0: the root's device)
};

// Whether the step may make changes now, and there is memory for the notes of one call.
static bool is_ready(struct call *call)
{
    struct log *log = call->log;
    struct step *step = call->caller->step;
    if (log->is_off || !step->is_open || step->reverses || log->journal.fd < 0 ||
        log->journal.is_broken || log->journal.written > MOST_WRITTEN)
        return false;
    struct keys *noted[] = {&step->created, &step->captured, &step->described};
    for (size_t at = 0; at < sizeof noted / sizeof *noted; at++)
        if (!keys_reserve(noted[at], IDENTITY_ROOM))
            return false;
    if (!keys_reserve(&step->contacts, sizeof(struct contact)) || !keys_reserve(&step->emptied, sizeof(uint64_t)) || !keys_reserve(&step->touched, 2 * PATH_ROOM))
        return false;
    step->last = (double)monotonic_ns() / 1e9;
    return true;
}

// Finds the place of the path at an address of the caller's, which is read into `path`; the step may change it.
static bool find(struct call *call, int from, uint64_t address, char *path, struct place *place)
{
    return read_path(call, address, path) && find_place(call, from, path, place) && is_ready(call);
}

static struct contact contact_of(const struct object *object)
{
    return (struct contact){0, object->about.st_ino};
}

static bool look_at(struct call *call, const struct place *place, struct object *object)
{
    object->identity_size = identity_of(place->dir, place->name, object->identity);
    object->is_created = object->identity_size && keys_has(&call->caller->step->created, identity(object));
    return object->identity_size && object->about.st_dev == call->log->device;
}

static struct bytes number_of(const uint64_t *number)
{
    return (struct bytes){(const uint8_t *)number, sizeof *number};
}

static bool is_known_place(const struct call *call, const struct place *place)
{
    uint64_t hash = hash_of(place->path);
    return keys_has(&call->log->places, number_of(&hash));
}

// Whether an object has no extended attributes except those of the kernel's policy. `fd` may be O_PATH.
static bool is_without_attributes(int fd)
{
    char path[32], names[512];
    ssize_t size = listxattr(path_of(fd, path), names, sizeof names);
    if (size < 0)
        return errno == ENOTSUP || errno == ENODATA;
    for (const char *name = names; name < names + size; name += strlen(name) + 1)
        if (strcmp(name, "security.selinux") && strcmp(name, "security.ima") && strcmp(name, "security.evm"))
            return false;
    return true;
}

// See _state in holdfast.undo.recorder.last_state: 1, which no object is left with, if there is more to compare.
static int64_t directory_state(const struct place *place, const struct stat *about)
{
    if (about->st_uid >> 24 || about->st_gid >> 22 || place->dir < 0)
        return 1;
    int fd = openat(place->dir, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool is_plain = fd >= 0 && is_without_attributes(fd);
    if (fd >= 0)
        close(fd);
    uint64_t state = (uint64_t)about->st_mode | (uint64_t)about->st_uid << 16 | (uint64_t)about->st_gid << 40;
    return is_plain ? -1 - (int64_t)state : 1;
}

// Whether others have changed the object since their changes were last reported, as far as its ctime shows. The ctime
// of a directory also changes with each name that the step itself has taken from it.
static bool is_news(const struct call *call, const struct stat *about)
{
    const uint64_t inode = about->st_ino;
    const int64_t *own = S_ISDIR(about->st_mode) ? keys_find(&call->caller->step->emptied, number_of(&inode)) : NULL;
    int64_t changed = ns_of(about->st_ctim);
    return changed >= call->log->read_at && !(own && *own == changed);
}

// A name was taken from a directory, whose status `before` was no news.
static void note_emptied(struct call *call, int dir, const struct stat *before)
{
    struct stat now;
    const uint64_t inode = before->st_ino;
    if (is_news(call, before) || fstat(dir, &now))
        return;
    keys_add(&call->caller->step->emptied, number_of(&inode));
    *keys_find(&call->caller->step->emptied, number_of(&inode)) = ns_of(now.st_ctim);
}

// Whether a step that finds an object for the first time finds it as the last step left it, as far as its ctime shows,
// and whether no edit by others must be looked for first.
static bool is_as_left(struct call *call, const struct place *place, const struct object *object)
{
    const struct contact contact = contact_of(object);
    if (keys_has(&call->caller->step->contacts, (struct bytes){(const uint8_t *)&contact, sizeof contact}))
        return true;
    if (!object->is_created && is_news(call, &object->about))
        return false;
    const uint64_t inode = object->about.st_ino;
    const int64_t *left = keys_find(&call->log->objects, number_of(&inode));
    if (!left)
        return !is_known_place(call, place);
    return *left == (S_ISDIR(object->about.st_mode) ? directory_state(place, &object->about) : ns_of(object->about.st_ctim));
}

static void note_contact(struct call *call, const struct object *object)
{
    const struct contact contact = contact_of(object);
    keys_add(&call->caller->step->contacts, (struct bytes){(const uint8_t *)&contact, sizeof contact});
}

// The state of an object before the step changes it for the first time: see note_seen in
// holdfast.undo.recorder._content_changes. In a separate frame, as it is no record.
static bool note_before(struct call *call, const struct object *object)
{
    const struct stat *about = &object->about;
    frame_begin(&call->frame);
    put_array(&call->frame, 2);
    put_bytes(&call->frame, identity(object));
    if (now_ns() - ns_of(about->st_ctim) > REST_NS) {
        put_array(&call->frame, 3);
        put_int(&call->frame, about->st_size);
        put_time(&call->frame, about->st_mtim);
        put_time(&call->frame, about->st_ctim);
    } else {
        put_nil(&call->frame);
    }
    return grow(call, &call->caller->step->before);
}

// Making names -----------------------------------------------------------------------------------------------------

static int make(struct call *call, const struct place *place, const char *type, int flags, mode_t mode)
{
    if (*type == 'l')
        return symlinkat(call->first, place->dir, place->name) ? -errno : 0;
    mode_t before = umask(call->caller->umask);
    int result = *type == 'd' ? mkdirat(place->dir, place->name, mode)
                              : openat(place->dir, place->name, flags | O_EXCL | O_CLOEXEC, mode);
    int error = errno;
    umask(before);
    return result < 0 ? -error : result;
}

// All threads share umask and working directory until one of them unshares.
static bool is_apart(void)
{
    static __thread bool done;
    if (!done)
        done = !unshare(CLONE_FS);
    return done;
}

// Makes a missing object; a file is opened, too.
static bool create(struct call *call, const struct place *place, const char *type, int flags, mode_t mode)
{
    struct step *step = call->caller->step;
    struct log *log = call->log;
    bool opens = *type == 'f';
    if (is_known_place(call, place) || !is_apart())
        return false;
    if (!is_waiting(call))
        return true;
    int error = touch_parent(call, place);
    if (error)
        return answer(call, 0, error);
    int64_t seq = take_number(call);
    // (If an outside process was quicker, and that is no error, Python tries again.)
    const bool may_exist = opens && !(flags & O_EXCL);
    if (!faccessat(place->dir, place->name, F_OK, AT_SYMLINK_NOFOLLOW))
        return !may_exist && answer(call, 0, EEXIST);
    begin_record(call, MAKE, 3, seq);
    put_bytes(&call->frame, place->path);
    put_text(&call->frame, type);
    put_int(&call->frame, now_ns());
    error = announce(call, seq);
    if (error)
        return answer(call, 0, error);
    int made = make(call, place, type, flags, mode);
    if (made < 0) {
        retract(call, seq);
        return made == -EEXIST && may_exist ? false : answer(call, 0, -made);
    }
    // (A file by its descriptor: an outside process may have removed its name, or given it to another one.)
    struct object object;
    object.identity_size = opens ? identity_of(made, "", object.identity)
                                 : identity_of(place->dir, place->name, object.identity);
    if (!object.identity_size) {
        error = errno;
        if (opens)
            close(made);
        return answer(call, 0, error);
    }
    keys_add(&step->created, identity(&object));
    begin_record(call, MADE, 2, take_number(call));
    put_int(&call->frame, seq);
    put_bytes(&call->frame, identity(&object));
    // It exists by now. If this cannot be written, its creator is unknown after a crash.
    if (grow(call, &step->records))
        journal_append(&log->journal, &call->frame);
    return opens ? answer_with(call, made, flags & O_CLOEXEC) : answer(call, 0, 0);
}

static bool make_directory(struct call *call, int from, uint64_t path, uint64_t mode)
{
    struct place place;
    return find(call, from, path, call->first, &place) && create(call, &place, "d", 0, (mode_t)(mode & 0xffff));
}

static bool make_link(struct call *call, uint64_t target, int from, uint64_t path)
{
    struct place place;
    return read_path(call, target, call->first) && *call->first && find(call, from, path, call->second, &place) &&
           create(call, &place, "l", 0, 0);
}

// Taking names away ------------------------------------------------------------------------------------------------

// (Some C libraries lack it.)
static int rename_at(int from, const char *name, int to, const char *new_name, unsigned flags)
{
    return (int)syscall(SYS_renameat2, from, name, to, new_name, flags);
}

static void kept_name(char name[24], int64_t number)
{
    snprintf(name, 24, "%02x/%016llx", (unsigned)(number % 256), (unsigned long long)number);
}

struct entry {  // the format of getdents64(2)
    uint64_t inode;
    int64_t offset;
    uint16_t size;
    uint8_t type;
    char name[];
};

// 1 if the directory is empty, 0 if it is not, -1 if it is unreadable.
static int is_empty(int dir, const char *name)
{
    int fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return -1;
    _Alignas(8) char entries[512];
    long size;
    int found = 0;
    while (!found && (size = syscall(SYS_getdents64, fd, entries, sizeof entries)) > 0)
        for (long at = 0; at < size;) {
            const struct entry *entry = (const struct entry *)(const void *)(entries + at);
            if (strcmp(entry->name, ".") && strcmp(entry->name, ".."))
                found = 1;
            at += entry->size;
        }
    close(fd);
    return size < 0 ? -1 : !found;
}

// Renames the object at the place into the log. Returns 0 or the error.
static int take_in(struct call *call, const struct place *place, int64_t seq, bool is_directory)
{
    char kept[24];
    kept_name(kept, seq);
    if (rename_at(place->dir, place->name, call->log->kept, kept, RENAME_NOREPLACE))
        return errno;
    if (is_directory && is_empty(call->log->kept, kept) != 1) {
        // Another process was quicker: its new entry must not end in the log.
        if (rename_at(call->log->kept, kept, place->dir, place->name, RENAME_NOREPLACE))
            return errno;
        return ENOTEMPTY;
    }
    return 0;
}

static bool remove_name(struct call *call, const struct place *place, bool is_directory)
{
    struct log *log = call->log;
    struct object object;
    struct stat parent;
    if (fstatat(place->dir, place->name, &object.about, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT && answer(call, 0, ENOENT);
    mode_t mode = object.about.st_mode;
    if (S_ISDIR(mode) != is_directory || !(S_ISDIR(mode) || S_ISREG(mode) || S_ISLNK(mode)) ||
        !look_at(call, place, &object))
        return false;
    bool is_kept = is_directory || !object.is_created;
    if (is_kept && (log->counts_names || (object.about.st_nlink > 1 && !is_directory)))
        return false;
    if (object.is_created ? is_known_place(call, place) : !is_as_left(call, place, &object))
        return false;
    if (is_directory && is_empty(place->dir, place->name) != 1)
        return false;
    if (!is_waiting(call))
        return true;
    if (!object.is_created)
        note_contact(call, &object);
    int error = touch_parent(call, place);
    if (error)
        return answer(call, 0, error);
    int64_t seq = take_number(call);
    begin_record(call, REMOVE, 5, seq);
    put_bytes(&call->frame, place->path);
    put_text(&call->frame, type_of(mode));
    put_bytes(&call->frame, identity(&object));
    put_keeping(call, is_kept ? KEEP_MOVED : KEEP_NOT, is_kept ? seq : 0, NOTHING);
    put_metadata(call, &object.about);
    error = announce(call, seq);
    if (error)
        return answer(call, 0, error);
    bool is_seen = !fstat(place->dir, &parent);
    error = is_kept ? take_in(call, place, seq, is_directory) : unlinkat(place->dir, place->name, 0) ? errno : 0;
    if (is_seen && !error)
        note_emptied(call, place->dir, &parent);
    log->arrangement += is_directory;
    log->moves++;
    if (error)
        retract(call, seq);
    // (Where no file can be renamed into the log, Python preserves it in another way.)
    return error && is_kept ? false : answer(call, 0, error);
}

static bool take_away(struct call *call, int from, uint64_t path, bool is_directory)
{
    struct place place;
    return find(call, from, path, call->first, &place) && remove_name(call, &place, is_directory);
}

// Moving names -----------------------------------------------------------------------------------------------------

static bool is_movable(mode_t mode)
{
    return S_ISREG(mode) || S_ISLNK(mode);
}

static bool is_changeable(const struct place *place)
{
    return !faccessat(place->dir, ".", W_OK | X_OK, AT_EACCESS);
}

static bool move(struct call *call, const struct place *source, const struct place *target, unsigned flags)
{
    struct log *log = call->log;
    struct object moved, victim;
    if (fstatat(source->dir, source->name, &moved.about, AT_SYMLINK_NOFOLLOW))
        return errno == ENOENT && answer(call, 0, ENOENT);
    bool has_victim = !fstatat(target->dir, target->name, &victim.about, AT_SYMLINK_NOFOLLOW);
    if ((!has_victim && errno != ENOENT) || !is_movable(moved.about.st_mode) || !look_at(call, source, &moved) ||
        !is_as_left(call, source, &moved))
        return false;
    bool is_kept = false;
    if (has_victim) {
        if (flags || !is_movable(victim.about.st_mode) || !look_at(call, target, &victim) ||
            victim.about.st_ino == moved.about.st_ino || !is_as_left(call, target, &victim))
            return false;
        is_kept = !victim.is_created;
        // (Where the rename is going to fail, no name in the log may have changed the victim's ctime.)
        if (is_kept && (log->counts_names || victim.about.st_nlink > 1 || !is_changeable(source) || !is_changeable(target)))
            return false;
    } else if (is_known_place(call, target)) {
        return false;
    }
    if (!is_waiting(call))
        return true;
    char kept[24];
    note_contact(call, &moved);
    if (has_victim)
        note_contact(call, &victim);
    int error = touch_parent(call, source);
    error = error ? error : touch_parent(call, target);
    if (error)
        return answer(call, 0, error);
    int64_t seq = take_number(call);
    if (is_kept) {
        kept_name(kept, seq);
        if (linkat(target->dir, target->name, log->kept, kept, 0))
            return false;
    }
    begin_record(call, MOVE, 6, seq);
    put_bytes(&call->frame, source->path);
    put_bytes(&call->frame, target->path);
    put_text(&call->frame, type_of(moved.about.st_mode));
    put_bytes(&call->frame, identity(&moved));
    if (has_victim) {
        put_array(&call->frame, 4);
        put_text(&call->frame, type_of(victim.about.st_mode));
        put_bytes(&call->frame, identity(&victim));
        put_keeping(call, is_kept ? KEEP_LINKED : KEEP_NOT, is_kept ? seq : 0, NOTHING);
        put_metadata(call, &victim.about);
    } else {
        put_nil(&call->frame);
    }
    put_bool(&call->frame, false);
    error = announce(call, seq);
    if (!error) {
        log->moves++;
        if (rename_at(source->dir, source->name, target->dir, target->name, flags)) {
            error = errno;
            retract(call, seq);
        }
    }
    if (error && is_kept)
        unlinkat(log->kept, kept, 0);
    return answer(call, 0, error);
}

static bool rename_name(struct call *call, int from, uint64_t path, int to, uint64_t new_path, unsigned flags)
{
    struct place source, target;
    return !(flags & ~(unsigned)RENAME_NOREPLACE) && find(call, from, path, call->first, &source) &&
           find(call, to, new_path, call->second, &target) && move(call, &source, &target, flags);
}

// Further names ----------------------------------------------------------------------------------------------------

// Gives a file another name. (By its descriptor: another process may replace it.)
static bool name_again(struct call *call, int fd, const struct place *source, const struct place *target)
{
    const struct place itself = {.dir = fd, .name = ""};
    struct object object;
    if (fstat(fd, &object.about) || !S_ISREG(object.about.st_mode) || !object.about.st_nlink ||
        !look_at(call, &itself, &object) || !is_as_left(call, source, &object) || is_known_place(call, target) ||
        !faccessat(target->dir, target->name, F_OK, AT_SYMLINK_NOFOLLOW))
        return false;
    if (!is_waiting(call))
        return true;
    note_contact(call, &object);
    int error = touch_parent(call, target);
    if (error)
        return answer(call, 0, error);
    int64_t seq = take_number(call);
    begin_record(call, LINK, 4, seq);
    put_bytes(&call->frame, target->path);
    put_text(&call->frame, "f");
    put_bytes(&call->frame, identity(&object));
    put_bytes(&call->frame, source->path);
    error = announce(call, seq);
    char path[32];
    if (!error && linkat(AT_FDCWD, path_of(fd, path), target->dir, target->name, AT_SYMLINK_FOLLOW)) {
        error = errno;
        retract(call, seq);
    }
    return answer(call, 0, error);
}

static bool link_name(struct call *call, int from, uint64_t path, int to, uint64_t new_path, int flags)
{
    struct place source, target;
    if (flags & ~AT_SYMLINK_FOLLOW || !find(call, from, path, call->first, &source) ||
        !find(call, to, new_path, call->second, &target))
        return false;
    int fd = openat(source.dir, source.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    bool is_done = fd >= 0 && name_again(call, fd, &source, &target);
    if (fd >= 0)
        close(fd);
    return is_done;
}

// Opening ----------------------------------------------------------------------------------------------------------

static int reopen(int fd, int flags)
{
    char path[32];
    return open(path_of(fd, path), flags | O_CLOEXEC);
}

// Copies the whole file into the log under this number: by its blocks, where the file system shares them. Returns the
// number of copied bytes, or -1 without leaving a file.
static int64_t copy_in(struct call *call, int source, int64_t number)
{
    char kept[24], unfinished[32];
    kept_name(kept, number);
    snprintf(unfinished, sizeof unfinished, "%s.new", kept);
    int fd = openat(call->log->kept, unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0)
        return -1;
    int64_t copied = 0;
    if (syscall(SYS_ioctl, fd, FICLONE, source)) {
        ssize_t size;
        do {
            loff_t from = copied, to = copied;
            size = syscall(SYS_copy_file_range, source, &from, fd, &to, (size_t)SLOW_SIZE, 0);
            copied += size > 0 ? size : 0;
        } while (size > 0 && copied <= 2 * SLOW_SIZE);
        if (size)
            copied = -1;
    }
    close(fd);
    if (copied < 0 || rename_at(call->log->kept, unfinished, call->log->kept, kept, RENAME_NOREPLACE)) {
        unlinkat(call->log->kept, unfinished, 0);
        return -1;
    }
    return copied;
}

// Whether it has no holes, which a copy would fill.
static bool is_dense(const struct stat *about)
{
    return about->st_blocks * 512 >= about->st_size;
}

// Preserves the content of a file before it is written to: a small one in the record, another one as a copy. False if
// Python must do it.
static bool capture(struct call *call, const struct place *place, int fd, struct object *object, int *error)
{
    struct step *step = call->caller->step;
    struct stat there;
    static __thread uint8_t content[INLINE_ROOM + 1];
    *error = 0;
    if (object->is_created || keys_has(&step->captured, identity(object)))
        return true;
    bool is_inline = object->about.st_size <= INLINE_ROOM && step->inlined < INLINED_MOST;
    if (call->log->copying || !object->about.st_nlink || fstatat(place->dir, place->name, &there, AT_SYMLINK_NOFOLLOW) ||
        there.st_ino != object->about.st_ino || there.st_dev != object->about.st_dev ||
        (!is_inline && (call->log->counts_names || !is_dense(&object->about))) ||
        // (Python warns when a step comes near its limit.)
        (step->copied + object->about.st_size) * 10 >= call->log->most_copied * 9 ||
        !is_as_left(call, place, object) || !is_without_attributes(fd))
        return false;
    int source = reopen(fd, O_RDONLY | O_NONBLOCK);
    if (source < 0)
        return false;
    ssize_t size = is_inline ? pread(source, content, sizeof content, 0) : 0;
    bool fits = size >= 0 && size <= INLINE_ROOM;
    bool waits = is_waiting(call);
    if (!fits || !waits || !note_before(call, object)) {
        close(source);
        *error = fits && !waits ? EINTR : 0;
        return *error;
    }
    note_contact(call, object);
    int64_t seq = take_number(call), copied = 0;
    begin_record(call, CONTENT, 4, seq);
    put_bytes(&call->frame, place->path);
    put_bytes(&call->frame, identity(object));
    put_keeping(call, is_inline ? KEEP_INLINE : KEEP_COPIED, is_inline ? 0 : seq,
                is_inline ? (struct bytes){content, (size_t)size} : NOTHING);
    put_metadata(call, &object->about);
    *error = append(call);
    // (The record comes before the copy: changes by others to the path meanwhile are reversed before.)
    if (!*error && !is_inline && (copied = copy_in(call, source, seq)) < 0) {
        retract(call, seq);
        close(source);
        return false;
    }
    close(source);
    if (!*error) {
        step->inlined += size;
        step->copied += copied;
        keys_add(&step->captured, identity(object));
        keys_add(&step->described, identity(object));
    }
    return true;
}

// Opens an existing file. It is truncated only after its content was captured.
static bool open_file(struct call *call, const struct place *place, int flags)
{
    struct object object;
    int fd = openat(place->dir, place->name, O_PATH | O_NOFOLLOW | O_CLOEXEC), opened = -1, error = 0;
    if (fd < 0)
        return false;
    bool is_here = !fstat(fd, &object.about) && S_ISREG(object.about.st_mode) && object.about.st_size <= SLOW_SIZE &&
                   // (For another user's file in a directory open to all, more checks are needed.)
                   (object.about.st_uid == geteuid() ? object.about.st_mode & S_IRUSR : !(flags & O_CREAT)) &&
                   look_at(call, place, &object) && is_waiting(call);
    if (is_here)
        opened = reopen(fd, (flags & ~(O_CREAT | O_EXCL | O_NOFOLLOW | O_TRUNC)) | O_NONBLOCK);
    is_here = opened >= 0 && (flags & O_NONBLOCK || !fcntl(opened, F_SETFL, flags & ~(O_NONBLOCK | O_CLOEXEC))) &&
              capture(call, place, fd, &object, &error);
    close(fd);
    if (is_here && !error && flags & O_TRUNC)
        error = !is_waiting(call) ? EINTR : ftruncate(opened, 0) ? errno : 0;
    if (is_here && !error)
        return answer_with(call, opened, flags & O_CLOEXEC);
    if (opened >= 0)
        close(opened);
    return is_here && answer(call, 0, error);
}

static bool open_null(struct call *call, int flags)
{
    struct stat about;
    if (flags & O_EXCL || monotonic_ns() > call->tree->territory_until || is_at_border(call->tree, call->first) ||
        !is_alive(call->caller))
        return false;
    // (It may be any object, such as a pipe, which would make us wait for a reader.)
    int found = open(call->first, O_PATH | O_NOFOLLOW | O_CLOEXEC), fd = -1;
    if (found >= 0 && !fstat(found, &about) && S_ISCHR(about.st_mode) && about.st_rdev == makedev(1, 3))
        fd = reopen(found, (flags & ~(O_CREAT | O_TRUNC | O_NOFOLLOW)) | O_NOCTTY);
    if (found >= 0)
        close(found);
    return fd >= 0 && answer_with(call, fd, flags & O_CLOEXEC);
}

// Whether the caller can get one more descriptor, as its highest number is free: otherwise no file may be made or
// truncated for it. (Python counts.)
static bool has_room(const struct call *call)
{
    struct rlimit limit;
    char last[32];
    if (prlimit(call->tid, RLIMIT_NOFILE, NULL, &limit))
        return true;    // (only administrators may read the limits of another user's process)
    snprintf(last, sizeof last, "fd/%llu", (unsigned long long)limit.rlim_cur - 1);
    struct stat about;
    return limit.rlim_cur && fstatat(call->caller->proc, last, &about, AT_SYMLINK_NOFOLLOW);
}

static bool open_path(struct call *call, int from, uint64_t path, uint64_t given, uint64_t mode)
{
    const int usual = O_ACCMODE | O_CREAT | O_EXCL | O_NOCTTY | O_TRUNC | O_APPEND | O_NONBLOCK | O_NOFOLLOW | O_CLOEXEC;
    const int large_file = 0100000 | 0400000, known = usual | O_SYNC | O_DSYNC | large_file;
    struct place place;
    int flags = (int)given;
    if (flags & ~known || flags & (O_PATH | O_DIRECTORY | (O_TMPFILE & ~O_DIRECTORY)) ||
        ((flags & O_ACCMODE) != O_WRONLY && (flags & O_ACCMODE) != O_RDWR))
        return false;
    if (!read_path(call, path, call->first))
        return false;
    if (!strcmp(call->first, "/dev/null"))
        return open_null(call, flags);
    if (!find_place(call, from, call->first, &place) || !is_ready(call) ||
        (flags & (O_CREAT | O_TRUNC) && !has_room(call)))
        return false;
    if (!(flags & O_CREAT))
        return open_file(call, &place, flags);
    if (flags & O_EXCL || faccessat(place.dir, place.name, F_OK, AT_SYMLINK_NOFOLLOW))
        return create(call, &place, "f", flags, (mode_t)(mode & 07777));
    return open_file(call, &place, flags);
}

// What an object is like -------------------------------------------------------------------------------------------

struct change {
    enum { MODE, OWNER, TIMES } what;
    mode_t mode;
    uid_t owner;
    gid_t group;
    struct timespec times[2];
    bool is_now;
};

static int perform(int fd, const struct change *change)
{
    switch (change->what) {
    case MODE:
#ifdef SYS_fchmodat2
        return (int)syscall(SYS_fchmodat2, fd, "", change->mode, AT_EMPTY_PATH);
#else
        return (int)syscall(452, fd, "", change->mode, AT_EMPTY_PATH);
#endif
    case OWNER:
        return fchownat(fd, "", change->owner, change->group, AT_EMPTY_PATH);
    default:
        return (int)syscall(SYS_utimensat, fd, "", change->is_now ? NULL : change->times, AT_EMPTY_PATH);
    }
}

// Changes the object of `fd`, which is closed.
static bool describe(struct call *call, const struct place *place, int fd, const struct change *change)
{
    struct step *step = call->caller->step;
    struct object object;
    const struct place itself = {.dir = fd, .name = ""};
    bool is_here = !fstat(fd, &object.about) && look_at(call, &itself, &object), is_done = true;
    int error = 0;
    if (is_here && !object.is_created && !keys_has(&step->described, identity(&object))) {
        is_here = object.about.st_nlink && is_as_left(call, place, &object) && is_without_attributes(fd);
        if (is_here && is_waiting(call) && (is_here = note_before(call, &object))) {
            note_contact(call, &object);
            begin_record(call, META, 3, take_number(call));
            put_bytes(&call->frame, place->path);
            put_bytes(&call->frame, identity(&object));
            put_metadata(call, &object.about);
            error = append(call);
            if (!error)
                keys_add(&step->described, identity(&object));
        }
    }
    if (is_here && !error && is_waiting(call) && perform(fd, change)) {
        error = errno;
        is_done = error != ENOSYS;      // (before Linux 6.6 the mode is changed in another way)
    }
    close(fd);
    return is_here && is_done && answer(call, 0, error);
}

// The number in a path /proc/self/fd/NUMBER, by which C libraries change a mode without following a link. Otherwise -1.
static int number_in(const struct call *call, const char *path)
{
    static const char head[] = "/proc/self/fd/";
    const char *digits = path + sizeof head - 1;
    if (strncmp(path, head, sizeof head - 1) || !*digits || strlen(digits) > 6 ||
        digits[strspn(digits, "0123456789")] || (*digits == '0' && digits[1]))
        return -1;
    // (The descriptors are those of the process, which another of its threads need not share.)
    int leader = (int)syscall(SYS_pidfd_open, call->tid, 0);
    if (leader < 0)
        return -1;
    close(leader);
    return atoi(digits);
}

static bool describe_open(struct call *call, int number, bool is_named, const struct change *change)
{
    struct place place;
    int fd;
    if (!find_object(call, number, is_named, &place, &fd))
        return false;
    if (!is_ready(call)) {
        close(fd);
        return false;
    }
    return describe(call, &place, fd, change);
}

static bool describe_at(struct call *call, int from, uint64_t path, int flags, const struct change *change)
{
    struct place place;
    struct stat about;
    if (flags & ~AT_SYMLINK_NOFOLLOW || !read_path(call, path, call->first))
        return false;
    int number = flags ? -1 : number_in(call, call->first);
    if (number >= 0)
        return describe_open(call, number, true, change);
    if (!find_place(call, from, call->first, &place) || !is_ready(call))
        return false;
    int fd = openat(place.dir, place.name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return false;
    if (fstat(fd, &about) || (S_ISLNK(about.st_mode) && !flags)) {
        close(fd);
        return false;
    }
    return describe(call, &place, fd, change);
}

static bool set_times(struct call *call)
{
    int from = (int)call->args[0], flags = (int)call->args[3];
    struct change change = {.what = TIMES, .is_now = !call->args[2]};
    if (!change.is_now) {
        int64_t found[4];
        if (!read_memory(call, call->args[2], found, sizeof found))
            return false;
        if (found[1] == UTIME_OMIT && found[3] == UTIME_OMIT)
            return false;
        for (int at = 0; at < 2; at++)
            change.times[at] = (struct timespec){(time_t)found[2 * at], (long)found[2 * at + 1]};
    }
    if (call->args[1])
        return describe_at(call, from, call->args[1], flags, &change);
    return from != AT_FDCWD && !flags && describe_open(call, from, false, &change);
}

static bool set_mode(struct call *call, int from, uint64_t path, uint64_t mode)
{
    const struct change change = {.what = MODE, .mode = (mode_t)(mode & 07777)};
    return path ? describe_at(call, from, path, 0, &change) : describe_open(call, from, false, &change);
}

static bool set_owner(struct call *call, int from, uint64_t path, uint64_t owner, uint64_t group, int flags)
{
    const struct change change = {.what = OWNER, .owner = (uid_t)owner, .group = (gid_t)group};
    return path ? describe_at(call, from, path, flags, &change) : describe_open(call, from, false, &change);
}

// All of them ------------------------------------------------------------------------------------------------------

static bool operate_under_gate(struct call *call)
{
    const uint64_t *args = call->args;
    const int at = (int)args[0];
    switch (call->number) {
#ifdef SYS_open
    case SYS_open: return open_path(call, AT_FDCWD, args[0], args[1], args[2]);
    case SYS_creat: return open_path(call, AT_FDCWD, args[0], O_CREAT | O_WRONLY | O_TRUNC, args[1]);
    case SYS_mkdir: return make_directory(call, AT_FDCWD, args[0], args[1]);
    case SYS_symlink: return make_link(call, args[0], AT_FDCWD, args[1]);
    case SYS_unlink: return take_away(call, AT_FDCWD, args[0], false);
    case SYS_rmdir: return take_away(call, AT_FDCWD, args[0], true);
    case SYS_rename: return rename_name(call, AT_FDCWD, args[0], AT_FDCWD, args[1], 0);
    case SYS_link: return link_name(call, AT_FDCWD, args[0], AT_FDCWD, args[1], 0);
    case SYS_chmod: return args[0] && set_mode(call, AT_FDCWD, args[0], args[1]);
    case SYS_chown: return args[0] && set_owner(call, AT_FDCWD, args[0], args[1], args[2], 0);
    case SYS_lchown: return args[0] && set_owner(call, AT_FDCWD, args[0], args[1], args[2], AT_SYMLINK_NOFOLLOW);
#endif
    case SYS_openat: return open_path(call, at, args[1], args[2], args[3]);
    case SYS_mkdirat: return make_directory(call, at, args[1], args[2]);
    case SYS_symlinkat: return make_link(call, args[0], (int)args[1], args[2]);
    case SYS_unlinkat:
        return !((int)args[2] & ~AT_REMOVEDIR) && take_away(call, at, args[1], (int)args[2] & AT_REMOVEDIR);
#ifdef SYS_renameat
    case SYS_renameat: return rename_name(call, at, args[1], (int)args[2], args[3], 0);
#endif
    case SYS_renameat2: return rename_name(call, at, args[1], (int)args[2], args[3], (unsigned)args[4]);
    case SYS_linkat: return link_name(call, at, args[1], (int)args[2], args[3], (int)args[4]);
    case SYS_fchmod: return set_mode(call, at, 0, args[1]);
    case SYS_fchmodat: return args[1] && set_mode(call, at, args[1], args[2]);
    case SYS_fchown: return set_owner(call, at, 0, args[1], args[2], 0);
    case SYS_fchownat: return args[1] && set_owner(call, at, args[1], args[2], args[3], (int)args[4]);
    case SYS_utimensat: return set_times(call);
    default: return false;
    }
}

bool operate(struct call *call)
{
    gate_take(call->log->gate);
    bool is_done = operate_under_gate(call);
    gate_give(call->log->gate);
    return is_done;
}
