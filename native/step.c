// An open step: the facts that it need not record again, and those that Python has not taken over yet.

#include "hot.h"

struct step *step_new(int64_t id, bool reverses)
{
    struct step *step = calloc(1, sizeof *step);
    if (step) {
        atomic_init(&step->holders, 1);
        step->id = id;
        step->is_open = true;
        step->reverses = reverses;
    }
    return step;
}

void step_hold(struct step *step)
{
    atomic_fetch_add(&step->holders, 1);
}

void step_drop(struct step *step)
{
    if (!step || atomic_fetch_sub(&step->holders, 1) > 1)
        return;
    struct keys *sets[] = {&step->created, &step->captured, &step->described, &step->touched, &step->contacts,
                           &step->emptied};
    for (size_t at = 0; at < sizeof sets / sizeof *sets; at++)
        keys_clear(sets[at]);
    free(step->records.at);
    free(step->before.at);
    free(step);
}

bool grown_add(struct grown *grown, struct bytes bytes)
{
    if (grown->count == UINT32_MAX)
        return false;
    if (grown->size + bytes.size > grown->room) {
        size_t room = grown->room ? grown->room : 4096;
        while (room < grown->size + bytes.size)
            room *= 2;
        uint8_t *at = realloc(grown->at, room);
        if (!at)
            return false;
        grown->at = at;
        grown->room = room;
    }
    memcpy(grown->at + grown->size, bytes.at, bytes.size);
    grown->size += bytes.size;
    grown->count++;
    return true;
}
