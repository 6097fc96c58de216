// Waiting calls: received, their arguments read once, and answered. The memory, the numbers and the timing belong to
// the supervised program, which may be hostile: every length is bounded, and no memory is allocated.
//
// Sources: seccomp_unotify(2), process_vm_readv(2), include/uapi/linux/seccomp.h.

#include "hot.h"
#include <linux/seccomp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/uio.h>

#if defined(__x86_64__)
#define ARCHITECTURE 0xc000003e
#elif defined(__aarch64__)
#define ARCHITECTURE 0xc00000b7
#else
#error "no other machine is supervised"
#endif

enum { PAGE = 4096, FIRST = 256 };

// Whether the serving thread has other work first: the end of a process comes before its parent's next call.
static bool has_news(const struct tree *tree)
{
    struct epoll_event event;
    return epoll_wait(tree->selector, &event, 1, 0) > 0;
}

static bool carry_out(struct tree *tree, struct call *call, const struct seccomp_notif *notification)
{
    if (!atomic_load(&tree->is_on) || notification->data.arch != ARCHITECTURE)
        return false;
    call->tree = tree;
    call->log = tree->log;
    call->id = notification->id;
    call->tid = (pid_t)notification->pid;
    call->number = notification->data.nr;
    for (int at = 0; at < 6; at++)
        call->args[at] = notification->data.args[at];
    gate_take(tree->turn);
    bool is_done = !has_news(tree) && find_caller(call) && operate(call);
    is_done ? tree->handled++ : tree->passed++;
    gate_give(tree->turn);
    return is_done;
}

// Waits for a call for Python, and puts it into `notification`, a struct seccomp_notif; performs the others. False
// without one: it `is_gone` if none will come any more, otherwise a signal has come, or the caller has ended.
bool receive(struct tree *tree, struct call *call, void *notification, bool *is_gone)
{
    *is_gone = false;
    pthread_mutex_lock(&tree->receiving);
    for (;;) {
        memset(notification, 0, sizeof(struct seccomp_notif));
        if (ioctl(tree->listener, SECCOMP_IOCTL_NOTIF_RECV, notification)) {
            *is_gone = errno != ENOENT && errno != EINTR;
            pthread_mutex_unlock(&tree->receiving);
            return false;
        }
        if (!carry_out(tree, call, notification)) {
            pthread_mutex_unlock(&tree->receiving);
            return true;
        }
    }
}

// Asks the kernel about a call. Any short stop of this thread (a debugger, the machine's sleep) interrupts that.
static int ask(const struct call *call, unsigned long request, void *about)
{
    int result;
    do
        result = ioctl(call->tree->listener, request, about);
    while (result < 0 && errno == EINTR);
    return result;
}

// Whether the caller still waits, and was not killed: so all data read and files opened by its number were its own.
bool is_waiting(const struct call *call)
{
    uint64_t id = call->id;
    return !ask(call, SECCOMP_IOCTL_NOTIF_ID_VALID, &id);
}

// The call returns `value`, or fails with `error`. (A killed caller needs no answer.)
bool answer(const struct call *call, int64_t value, int error)
{
    struct seccomp_notif_resp response = {.id = call->id, .val = error ? 0 : value, .error = -error};
    ask(call, SECCOMP_IOCTL_NOTIF_SEND, &response);
    return true;
}

// The call returns a copy of `fd`. Ours is closed before the caller continues: it may want to execute or unlock the
// file. (SECCOMP_ADDFD_FLAG_SEND is quicker by 5 us, and would let it continue first.)
bool answer_with(const struct call *call, int fd, bool is_cloexec)
{
    struct seccomp_notif_addfd adding = {
        .id = call->id, .srcfd = (uint32_t)fd, .newfd_flags = is_cloexec ? O_CLOEXEC : 0};
    int number = ask(call, SECCOMP_IOCTL_NOTIF_ADDFD, &adding);
    int error = number < 0 ? errno : 0;
    close(fd);
    return answer(call, number, error);
}

// The path at an address of the caller's, with its zero byte. A read never reaches into a possibly unmapped page unless
// the bytes before it did not suffice.
bool read_path(const struct call *call, uint64_t address, char *path)
{
    size_t found = 0, most = FIRST;
    while (found < PATH_ROOM) {
        size_t size = PAGE - (address + found) % PAGE;
        if (size > most)
            size = most;
        if (size > PATH_ROOM - found)
            size = PATH_ROOM - found;
        if (!read_memory(call, address + found, path + found, size))
            return false;
        if (memchr(path + found, 0, size))
            return true;
        found += size;
        most = PAGE;
    }
    return false;
}

bool read_memory(const struct call *call, uint64_t address, void *found, size_t size)
{
    struct iovec ours = {found, size}, theirs = {(void *)(uintptr_t)address, size};
    return process_vm_readv(call->tid, &ours, 1, &theirs, 1, 0) == (ssize_t)size;
}
