// Fuzzes what reads a caller's arguments, resolves paths, encodes records and operates: by calls at random that this
// process itself seems to make, in a directory of its own. With libFuzzer; `native/build.py` says how it is compiled.
// Whatever is asked, no memory may be touched that should not be, and the journal must hold whole frames alone.

#include "../hot.h"
#include <dirent.h>
#include <ftw.h>
#include <limits.h>
#include <linux/seccomp.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

int LLVMFuzzerTestOneInput(const uint8_t *, size_t);

static struct gate gate, turn;
static struct log the_log;
static struct tree tree;
static struct call call;
static char top[PATH_ROOM];
static bool is_answered;
static unsigned asks_left;

// In place of ioctl(2), for the listener: the caller takes every descriptor, until it is killed. Now and then a signal
// comes.
int fuzz_ioctl(int fd, unsigned long request, ...)
{
    static unsigned asked;
    (void)fd;
    if (asked++ % 3 == 0) {
        errno = EINTR;
        return -1;
    }
    is_answered |= request == SECCOMP_IOCTL_NOTIF_SEND;
    if (!asks_left) {
        errno = ENOENT;
        return -1;
    }
    asks_left--;
    return request == SECCOMP_IOCTL_NOTIF_ADDFD ? 9 : 0;
}

static void check(bool is_so)
{
    if (!is_so)
        abort();
}

static int remove_one(const char *path, const struct stat *about, int kind, struct FTW *at)
{
    (void)about, (void)kind;
    return at->level ? remove(path) : 0;
}

static void begin_tree(void)
{
    static const char *const directories[] = {"a", "a/b", "c"}, *const files[] = {"x", "a/y", "a/b/z"};
    nftw(".", remove_one, 16, FTW_DEPTH | FTW_PHYS);
    for (int at = 0; at < 3; at++) {
        check(!mkdir(directories[at], 0700));
        int fd = open(files[at], O_CREAT | O_WRONLY | O_TRUNC, 0600);
        check(fd >= 0 && write(fd, top, 100) == 100 && !close(fd));
    }
    int fd = open("large", O_CREAT | O_WRONLY | O_TRUNC, 0600);
    check(fd >= 0 && !posix_fallocate(fd, 0, 40000) && !close(fd));
    check(!symlink("x", "to-x") && !link("x", "c/linked"));
}

static void begin(void)
{
    char kept[PATH_ROOM + 8], part[16];
    snprintf(top, sizeof top, "%s/holdfast-fuzz-XXXXXX", getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
    check(mkdtemp(top) && hash_begin() && gate_begin(&gate) && gate_begin(&turn));
    snprintf(kept, sizeof kept, "%s.kept", top);
    check(!mkdir(kept, 0700));
    the_log.gate = &gate;
    the_log.kept = open(kept, O_RDONLY | O_DIRECTORY);
    for (unsigned number = 0; number < 256; number++) {
        snprintf(part, sizeof part, "%02x", number);
        check(!mkdirat(the_log.kept, part, 0700));
    }
    struct stat about;
    check(!chdir(top) && !stat(".", &about));
    the_log.device = about.st_dev;
    the_log.most_copied = 1 << 20;
    the_log.read_at = INT64_MAX;
    the_log.journal.fd = open(strcat(kept, "/journal"), O_RDWR | O_CREAT | O_APPEND, 0600);
    tree.log = &the_log;
    tree.turn = &turn;
    tree.root = open(".", O_RDONLY | O_DIRECTORY);
    tree.top_size = strlen(top);
    strcpy(tree.top, top);
    strcpy(tree.borders, "/nowhere");
    tree.border_count = 1;
    tree.territory_until = INT64_MAX;
    tree_begin(&tree);
}

// Every frame is whole, and as long as it says.
static void check_journal(void)
{
    static uint8_t found[1 << 20];
    ssize_t size = pread(the_log.journal.fd, found, sizeof found, 0);
    check(size >= 0);
    size_t at = 0;
    while (at + FRAME_HEAD <= (size_t)size) {
        size_t body = found[at] | (size_t)found[at + 1] << 8 | (size_t)found[at + 2] << 16 | (size_t)found[at + 3] << 24;
        check(body && body <= FRAME_ROOM && (found[at + FRAME_HEAD] & 0xf0) == 0x90);
        at += FRAME_HEAD + body;
    }
    check(size == sizeof found || at == (size_t)size);
}

static void drop_kept(void)
{
    char part[16];
    for (unsigned number = 0; number < 256; number++) {
        snprintf(part, sizeof part, "%02x", number);
        int fd = openat(the_log.kept, part, O_RDONLY | O_DIRECTORY);
        DIR *listed = fdopendir(fd);
        for (struct dirent *entry; (entry = readdir(listed));)
            if (unlinkat(fd, entry->d_name, 0))
                unlinkat(fd, entry->d_name, AT_REMOVEDIR);
        closedir(listed);
    }
}

static struct step *begin_step(unsigned run)
{
    struct step *step = step_new(1, false);
    check(step && !ftruncate(the_log.journal.fd, 0));
    the_log.journal.written = 0;
    tree.callers[(unsigned)getpid() % CALLERS] =
        (struct caller){.tid = getpid(), .proc = open("/proc/self", O_PATH | O_DIRECTORY), .umask = 022, .step = step};
    step_hold(step);
    call = (struct call){.tree = &tree, .log = &the_log, .id = run * 32, .tid = getpid()};
    return step;
}

static void end_step(struct step *step)
{
    for (int at = 0; at < CALLERS; at++)
        forget_caller(&tree.callers[at]);
    forget_directories(&tree);
    step_drop(step);
}

static bool rename_in(const char *from, const char *to)
{
    call.id++;
    asks_left = UINT_MAX;
    call.number = SYS_renameat2;
    const uint64_t args[6] = {(uint64_t)AT_FDCWD, (uint64_t)(uintptr_t)from, (uint64_t)AT_FDCWD, (uint64_t)(uintptr_t)to};
    memcpy(call.args, args, sizeof args);
    return find_caller(&call) && operate(&call);
}

// The directory that a rename comes from stays open, though the one that it leads to takes the place of the oldest.
static void check_two_directories(void)
{
    char path[32];
    struct step *step = begin_step(0);
    for (int at = 0; at <= DIRECTORIES; at++) {
        snprintf(path, sizeof path, "d%d", at);
        check(!mkdir(path, 0700));
        for (int known = 0; known < DIRECTORIES; known++)
            tree.directories[known].until = INT64_MAX;
        snprintf(path, sizeof path, "d%d/none", at);
        if (at < DIRECTORIES)
            check(rename_in(path, path));
    }
    int fd = open("d0/x", O_CREAT | O_WRONLY, 0600);
    check(fd >= 0 && !close(fd) && rename_in("d0/x", "d64/x") && !access("d64/x", F_OK));
    end_step(step);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const long numbers[] = {
        SYS_openat, SYS_mkdirat, SYS_symlinkat, SYS_unlinkat, SYS_renameat2, SYS_linkat, SYS_fchmodat, SYS_fchownat, SYS_utimensat,
        SYS_fchmod, SYS_fchown,
#ifdef SYS_open
        SYS_open, SYS_creat, SYS_mkdir, SYS_symlink, SYS_unlink, SYS_rmdir, SYS_rename, SYS_link, SYS_chmod, SYS_chown, SYS_lchown,
#endif
    };
    static const char *const names[] = {"x", "a/y", "a/b/z", "new", "a/new", "c", "a/b", "to-x", "c/linked", "..", "a/./y",
                                        "/proc/self/cwd/x", ".holdfast", "a/", "", "large", "/dev/null", "/proc/self/fd/3",
                                        "/proc/self/fd/9"};
    static unsigned runs;
    if (!runs) {
        begin();
        check_two_directories();
    }
    if (runs++ % 32 == 0) {
        drop_kept();
        begin_tree();
    }
    struct step *step = begin_step(runs);
    char paths[2][8192];
    for (int calls = 0; calls < 16 && size >= 24; calls++) {
        call = (struct call){.tree = &tree, .log = &the_log, .id = runs * 32 + (unsigned)calls, .tid = getpid()};
        call.number = (int)numbers[data[0] % (sizeof numbers / sizeof *numbers)];
        memcpy(call.args + 2, data + 4, 8);
        memcpy(call.args + 3, data + 12, 8);
        call.args[4] = data[20];
        asks_left = data[21] < 4 ? data[21] : UINT_MAX;
        uint8_t modes = data[1];
        data += 24;
        size -= 24;
        for (int which = 0; which < 2; which++) {
            size_t length = size ? *data : 0;
            if (modes >> which & 1) {       // a path of the input's own, perhaps without an end
                length = length * 32 < size ? length * 32 : size;
                memset(paths[which], 'n', sizeof paths[which]);
                memcpy(paths[which], data, length < sizeof paths[which] ? length : sizeof paths[which]);
                data += length;
                size -= length;
            } else {
                strcpy(paths[which], names[length % (sizeof names / sizeof *names)]);
            }
            paths[which][sizeof paths[which] - 1] = 0;
        }
        uint64_t first = modes & 4 ? call.args[2] : (uint64_t)(uintptr_t)paths[0], second = (uint64_t)(uintptr_t)paths[1];
        bool is_at = call.number == SYS_openat || call.number == SYS_mkdirat || call.number == SYS_unlinkat ||
                     call.number == SYS_fchmodat || call.number == SYS_fchownat || call.number == SYS_utimensat;
        if (call.number == SYS_renameat2 || call.number == SYS_linkat) {
            call.args[2] = call.args[0] = (uint64_t)AT_FDCWD;
            call.args[1] = first;
            call.args[3] = second;
        } else if (call.number == SYS_symlinkat) {
            call.args[0] = first;
            call.args[1] = (uint64_t)AT_FDCWD;
            call.args[2] = second;
        } else if (is_at) {
            call.args[0] = modes & 8 ? (uint64_t)tree.root : (uint64_t)AT_FDCWD;
            call.args[1] = modes & 16 ? 0 : first;
        } else if (call.number == SYS_fchmod || call.number == SYS_fchown) {
            call.args[0] = (uint64_t)(modes & 8 ? tree.root : the_log.journal.fd);
        } else {
            call.args[0] = first;
            call.args[1] = modes & 32 ? call.args[3] : second;
        }
        if (modes & 64) {                   // (one that the keeper does not see)
            call.tid = 0;
            check(!find_caller(&call));
            continue;
        }
        check(find_caller(&call));
        is_answered = false;
        check(operate(&call) == is_answered || !asks_left);
    }
    check_journal();
    check(!gate.depth);
    end_step(step);
    return 0;
}
