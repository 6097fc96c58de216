// Finds the object of a path, by descriptors. Only paths that need no rule are handled here: for a caller with the same
// view and permissions as the keeper, in the workspace, on its own mount, away from every border. Python's resolution
// finds all others (holdfast.supervisor.resolution).

#include "hot.h"
#include <linux/openat2.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>

// The result of statx(2), as the kernel describes it: not every C library supports mounts.
struct seen {
    uint32_t mask, block_size;
    uint64_t attributes;
    uint32_t links, owner, group;
    uint16_t mode, unused;
    uint64_t inode, size, blocks, known_attributes;
    uint8_t times[4][16];
    uint32_t its_major, its_minor, device_major, device_minor;
    uint64_t mount, later[13];
};

static bool see(int fd, struct seen *seen)
{
    const unsigned inode = 0x100, mount = 0x1000;   // STATX_INO, STATX_MNT_ID (Linux 5.8)
    return !syscall(SYS_statx, fd, "", AT_EMPTY_PATH | AT_SYMLINK_NOFOLLOW, inode | mount, seen) && seen->mask & mount;
}

static const int64_t FRESH_NS = 2000000;   // see holdfast.supervisor.resolution.directory_cache

int64_t monotonic_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

// See holdfast.files.linux.file_handle.
size_t identity_of(int dir, const char *name, uint8_t *found)
{
    enum { MOST = 128 };
    struct {
        uint32_t size, kind;
        uint8_t handle[MOST];
    } answer = {.size = MOST};          // a struct file_handle
    int mount, flags = *name ? 0 : AT_EMPTY_PATH;
    if (syscall(SYS_name_to_handle_at, dir, name, &answer, &mount, flags) || answer.size > MOST)
        return 0;
    found[0] = 'h';
    for (int byte = 0; byte < 4; byte++)
        found[1 + byte] = (uint8_t)(answer.kind >> 8 * byte);
    memcpy(found + 5, answer.handle, answer.size);
    return 5 + answer.size;
}

bool find_caller(struct call *call)
{
    struct caller *caller = &call->tree->callers[(unsigned)call->tid % CALLERS];
    call->caller = caller;
    // (A caller in a pid namespace invisible to the keeper has the number 0, as has a free entry.)
    return call->tid && caller->tid == call->tid && caller->epoch == atomic_load(&call->log->epoch);
}

void forget_caller(struct caller *caller)
{
    if (!caller->tid)
        return;
    close(caller->proc);
    step_drop(caller->step);
    memset(caller, 0, sizeof *caller);
}

static void forget_directory(struct directory *directory)
{
    if (directory->tid)
        close(directory->fd);
    directory->tid = 0;
}

void forget_directories(struct tree *tree)
{
    for (int at = 0; at < DIRECTORIES; at++)
        forget_directory(&tree->directories[at]);
}

void tree_begin(struct tree *tree)
{
    struct seen seen;
    pthread_mutex_init(&tree->receiving, NULL);
    // (Where objects have no handles, as on overlayfs, Python identifies them in another way.)
    uint8_t own[IDENTITY_ROOM];
    tree->mount = identity_of(tree->root, "", own) && see(tree->root, &seen) ? seen.mount : 0;
}

void tree_end(struct tree *tree)
{
    for (int at = 0; at < CALLERS; at++)
        forget_caller(&tree->callers[at]);
    forget_directories(tree);
    pthread_mutex_destroy(&tree->receiving);
}

static dev_t device_of(const struct seen *found)
{
    return makedev(found->device_major, found->device_minor);
}

static bool is_below(const char *path, const char *top, size_t size)
{
    return !strncmp(path, top, size) && (path[size] == '/' || !path[size]);
}

// Whether an absolute path is protected against changes.
bool is_at_border(const struct tree *tree, const char *path)
{
    const char *border = tree->borders;
    for (size_t at = 0; at < tree->border_count; at++, border += strlen(border) + 1)
        if (is_below(path, border, strlen(border)))
            return true;
    return false;
}

const char *path_of(int fd, char path[32])
{
    snprintf(path, 32, "/proc/self/fd/%d", fd);
    return path;
}

// The path of the object of `fd`, relative to the workspace's root. Null where a rule may apply to it: outside, beyond
// another mount, at a border, in an undo log, or without a name.
static const char *path_below(const struct tree *tree, int fd, char room[PATH_ROOM], struct seen *found)
{
    if (monotonic_ns() > tree->territory_until || !tree->mount)
        return NULL;
    if (!see(fd, found) || found->mount != tree->mount)
        return NULL;
    char link[32];
    ssize_t size = readlink(path_of(fd, link), room, PATH_ROOM - 1);
    if (size <= 0 || size >= PATH_ROOM - 1)
        return NULL;
    room[size] = 0;
    static const char deleted[] = " (deleted)";
    const size_t tail = sizeof deleted - 1;
    if ((size_t)size >= tail && !memcmp(room + (size_t)size - tail, deleted, tail))
        return NULL;
    if (!is_below(room, tree->top, tree->top_size) || strstr(room + tree->top_size, "/.holdfast"))
        return NULL;
    if (is_at_border(tree, room))
        return NULL;
    const char *path = room + tree->top_size;
    return *path ? path + 1 : path;
}

// Whether the object at this path, named `name`, may be made, changed or removed here.
static bool is_plain(const struct tree *tree, const char *path, const char *name)
{
    if (!*name || !strcmp(name, ".") || !strcmp(name, "..") || !strcmp(name, ".holdfast") || !strcmp(name, "undo"))
        return false;
    const char *border = tree->borders;
    for (size_t at = 0; at < tree->border_count; at++, border += strlen(border) + 1)
        // (A border below the name would move with it.)
        if (is_below(border, tree->top, tree->top_size) && border[tree->top_size] &&
            is_below(border + tree->top_size + 1, path, strlen(path)))
            return false;
    return true;
}

// The start of the caller's path, in its directory in /proc: its working directory, or one of its descriptors.
static int way_from(char *way, int from)
{
    return from == AT_FDCWD ? sprintf(way, "cwd") : sprintf(way, "fd/%d", from);
}

// The caller's way to a directory: from its own in /proc, unless it begins at the root. False if that is too long.
static bool way_to(char way[WAY_ROOM], int from, const char *head, size_t size)
{
    int begun = 0;
    if (*head != '/' || !size)
        begun = way_from(way, from);
    if ((size_t)begun + 1 + size >= WAY_ROOM)
        return false;
    if (begun && size)
        way[begun++] = '/';
    memcpy(way + begun, head, size);
    way[(size_t)begun + size] = 0;
    return true;
}

// Whether the thread still exists, so that its number cannot belong to another one.
bool is_alive(const struct caller *caller)
{
    return !faccessat(caller->proc, "comm", F_OK, 0);
}

static struct directory *recall(struct call *call, int from, const char *way)
{
    struct tree *tree = call->tree;
    size_t size = strlen(way);
    for (int at = 0; at < DIRECTORIES; at++) {
        struct directory *known = &tree->directories[at];
        if (known->tid != call->tid || known->from != from || known->way_size != size || memcmp(known->way, way, size))
            continue;
        if (known->user == call->id)
            return known;
        struct stat found;
        if (monotonic_ns() < known->until && known->arrangement == tree->log->arrangement &&
            known->entries == tree->log->gate->entries && !fstatat(call->caller->proc, way, &found, 0) &&
            found.st_ino == known->inode && found.st_dev == known->device && (*way != '/' || is_alive(call->caller))) {
            known->user = call->id;
            return known;
        }
        forget_directory(known);
        return NULL;
    }
    return NULL;
}

static int begin_at(const struct call *call, int from, int flags)
{
    char way[32];
    way_from(way, from);
    return openat(call->caller->proc, way, flags | O_PATH | O_CLOEXEC);
}

static int open_directory(const struct call *call, int from, const char *head, size_t size)
{
    char path[PATH_ROOM];
    int start = AT_FDCWD;
    if (*head != '/' || !size) {
        start = begin_at(call, from, O_DIRECTORY);
        if (start < 0 || !size)
            return start;
    } else if (!is_alive(call->caller)) {
        return -1;
    }
    memcpy(path, head, size);
    path[size] = 0;
    struct open_how how = {
        .flags = O_PATH | O_DIRECTORY | O_CLOEXEC, .resolve = RESOLVE_NO_MAGICLINKS};
    int fd = (int)syscall(SYS_openat2, start, path, &how, sizeof how);
    if (start >= 0)
        close(start);
    return fd;
}

static struct directory *look_up(struct call *call, int from, const char *path, size_t head, const char *way)
{
    struct tree *tree = call->tree;
    int fd = open_directory(call, from, path, head);
    if (fd < 0)
        return NULL;
    char room[PATH_ROOM];
    struct seen found;
    const char *below = path_below(tree, fd, room, &found);
    if (!below || device_of(&found) != tree->log->device) {
        close(fd);
        return NULL;
    }
    struct directory *known;
    do
        known = &tree->directories[tree->next_directory++ % DIRECTORIES];
    while (known->tid && known->user == call->id);  // (a rename has two)
    forget_directory(known);
    known->tid = call->tid;
    known->from = from;
    known->fd = fd;
    known->user = call->id;
    known->device = tree->log->device;
    known->inode = found.inode;
    known->until = monotonic_ns() + FRESH_NS;
    known->arrangement = tree->log->arrangement;
    known->entries = tree->log->gate->entries;
    known->way_size = strlen(way);
    strcpy(known->way, way);
    strcpy(known->path, below);
    return known;
}

bool find_place(struct call *call, int from, const char *path, struct place *place)
{
    struct tree *tree = call->tree;
    const char *slash = strrchr(path, '/');
    place->name = slash ? slash + 1 : path;
    size_t head = slash ? (size_t)(slash - path) : 0;
    if (slash == path || strlen(place->name) >= NAME_ROOM)
        return false;
    char way[WAY_ROOM];
    if (!way_to(way, from, path, head))
        return false;
    struct directory *known = recall(call, from, way);
    if (!known && !(known = look_up(call, from, path, head, way)))
        return false;
    int size = *known->path ? snprintf(place->room, sizeof place->room, "%s/%s", known->path, place->name)
                            : snprintf(place->room, sizeof place->room, "%s", place->name);
    place->dir = known->fd;
    place->parent = known->path;
    place->path = (struct bytes){(const uint8_t *)place->room, (size_t)size};
    return is_plain(tree, place->room, place->name);
}

// The object of a descriptor of the caller's, if that has a name in the workspace: `fd` is O_PATH, and must be closed
// by the calling function. The descriptor must be usable for the call, unless it `is_named` by its path in /proc.
bool find_object(struct call *call, int number, bool is_named, struct place *place, int *fd)
{
    char way[32];
    struct stat link;
    way_from(way, number);
    if (number < 0 || fstatat(call->caller->proc, way, &link, AT_SYMLINK_NOFOLLOW) ||
        !(is_named || link.st_mode & 0600))
        return false;
    *fd = begin_at(call, number, 0);
    if (*fd < 0)
        return false;
    char room[PATH_ROOM];
    struct seen found;
    const char *below = path_below(call->tree, *fd, room, &found);
    if (!below || !*below || device_of(&found) != call->log->device) {
        close(*fd);
        return false;
    }
    *place = (struct place){.dir = -1, .name = "", .parent = ""};
    strcpy(place->room, below);
    place->path = bytes_of(place->room);
    return true;
}
