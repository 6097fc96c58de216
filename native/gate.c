// A fair lock: a thread that takes it repeatedly does not keep others from it. Python's own lock is not fair, and
// cannot be taken without the interpreter.

#include "hot.h"

bool gate_begin(struct gate *gate)
{
    memset(gate, 0, sizeof *gate);
    if (pthread_mutex_init(&gate->lock, NULL))
        return false;
    if (pthread_cond_init(&gate->turn, NULL)) {
        pthread_mutex_destroy(&gate->lock);
        return false;
    }
    return true;
}

void gate_end(struct gate *gate)
{
    pthread_cond_destroy(&gate->turn);
    pthread_mutex_destroy(&gate->lock);
}

static bool has_it(const struct gate *gate)
{
    return gate->depth && pthread_equal(gate->owner, pthread_self());
}

void gate_take(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (!has_it(gate)) {
        uint64_t mine = gate->next++;
        while (mine != gate->serving)
            pthread_cond_wait(&gate->turn, &gate->lock);
        gate->owner = pthread_self();
    }
    gate->depth++;
    pthread_mutex_unlock(&gate->lock);
}

bool gate_try(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool can = has_it(gate) || gate->next == gate->serving;
    if (can) {
        if (!gate->depth) {
            gate->next++;
            gate->owner = pthread_self();
        }
        gate->depth++;
    }
    pthread_mutex_unlock(&gate->lock);
    return can;
}

void gate_give(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    if (!--gate->depth) {
        gate->serving++;
        if (gate->next != gate->serving)
            pthread_cond_broadcast(&gate->turn);
    }
    pthread_mutex_unlock(&gate->lock);
}

bool gate_is_mine(struct gate *gate)
{
    pthread_mutex_lock(&gate->lock);
    bool is_mine = has_it(gate);
    pthread_mutex_unlock(&gate->lock);
    return is_mine;
}
