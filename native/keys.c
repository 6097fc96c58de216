// A set of byte strings, and a map of numbers: open addressing with linear probing, at most two thirds full.
//
// The supervised program chooses the keys, so the hash is SipHash-1-3 (Aumasson and Bernstein, 2012) with a key of this
// process's own: nothing that a program names can make a look-up long.

#include "hot.h"
#include <sys/random.h>

enum { FIRST_ROOM = 64 };
#define KEY_FREE UINT32_MAX
#define KEY_GONE (UINT32_MAX - 1)
#define MOST_STORED ((size_t)UINT32_MAX - 2)

static uint64_t secret[2];

bool hash_begin(void)
{
    return getrandom(secret, sizeof secret, 0) == (ssize_t)sizeof secret;
}

static inline uint64_t turned(uint64_t x, int by)
{
    return x << by | x >> (64 - by);
}

static inline void mix(uint64_t v[4])
{
    v[0] += v[1]; v[1] = turned(v[1], 13); v[1] ^= v[0]; v[0] = turned(v[0], 32);
    v[2] += v[3]; v[3] = turned(v[3], 16); v[3] ^= v[2];
    v[0] += v[3]; v[3] = turned(v[3], 21); v[3] ^= v[0];
    v[2] += v[1]; v[1] = turned(v[1], 17); v[1] ^= v[2]; v[2] = turned(v[2], 32);
}

uint64_t hash_of(struct bytes of)
{
    uint64_t v[4] = {secret[0] ^ 0x736f6d6570736575, secret[1] ^ 0x646f72616e646f6d,
                     secret[0] ^ 0x6c7967656e657261, secret[1] ^ 0x7465646279746573};
    const uint8_t *at = of.at;
    size_t left = of.size;
    uint64_t word;
    for (; left >= 8; at += 8, left -= 8) {
        memcpy(&word, at, 8);
        v[3] ^= word;
        mix(v);
        v[0] ^= word;
    }
    word = (uint64_t)of.size << 56;
    if (left)
        memcpy(&word, at, left);
    v[3] ^= word;
    mix(v);
    v[0] ^= word;
    v[2] ^= 0xff;
    mix(v);
    mix(v);
    mix(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

static size_t slot_of(const struct keys *keys, uint64_t hash, struct bytes key)
{
    size_t at = hash & (keys->room - 1);
    for (;; at = (at + 1) & (keys->room - 1)) {
        const struct key *slot = &keys->slots[at];
        if (slot->at == KEY_FREE)
            return SIZE_MAX;
        if (slot->at != KEY_GONE && slot->hash == hash && slot->size == key.size &&
            (!key.size || !memcmp(keys->store + slot->at, key.at, key.size)))
            return at;
    }
}

bool keys_has(const struct keys *keys, struct bytes key)
{
    return keys->live && slot_of(keys, hash_of(key), key) != SIZE_MAX;
}

static void put_slot(struct key *slots, size_t room, struct key key)
{
    size_t at = key.hash & (room - 1);
    while (slots[at].at != KEY_FREE)
        at = (at + 1) & (room - 1);
    slots[at] = key;
}

bool keys_reserve(struct keys *keys, size_t bytes)
{
    if (keys->stored + bytes > keys->store_room) {
        size_t room = keys->store_room ? keys->store_room : 4096;
        while (room < keys->stored + bytes)
            room *= 2;
        uint8_t *store = room > MOST_STORED ? NULL : realloc(keys->store, room);
        if (!store)
            return false;
        keys->store = store;
        keys->store_room = room;
    }
    if (keys->room && (keys->used + 1) * 3 <= keys->room * 2)
        return true;
    size_t room = FIRST_ROOM;
    while (room < (keys->live + 1) * 3)
        room *= 2;
    struct key *slots = malloc(room * sizeof *slots);
    if (!slots)
        return false;
    for (size_t at = 0; at < room; at++)
        slots[at].at = KEY_FREE;
    for (size_t at = 0; at < keys->room; at++)
        if (keys->slots[at].at < KEY_GONE)
            put_slot(slots, room, keys->slots[at]);
    free(keys->slots);
    keys->slots = slots;
    keys->room = room;
    keys->used = keys->live;
    return true;
}

void keys_add(struct keys *keys, struct bytes key)
{
    uint64_t hash = hash_of(key);
    if (keys->live && slot_of(keys, hash, key) != SIZE_MAX)
        return;
    if (key.size)
        memcpy(keys->store + keys->stored, key.at, key.size);
    put_slot(keys->slots, keys->room, (struct key){hash, (uint32_t)keys->stored, (uint32_t)key.size});
    keys->stored += key.size;
    keys->used++;
    keys->live++;
}

bool keys_drop(struct keys *keys, struct bytes key)
{
    size_t at = keys->live ? slot_of(keys, hash_of(key), key) : SIZE_MAX;
    if (at == SIZE_MAX)
        return false;
    keys->slots[at].at = KEY_GONE;
    if (!--keys->live)
        keys_clear(keys);
    return true;
}

size_t keys_next(const struct keys *keys, size_t from, struct bytes *found)
{
    for (size_t at = from; at < keys->room; at++)
        if (keys->slots[at].at < KEY_GONE) {
            *found = (struct bytes){keys->store + keys->slots[at].at, keys->slots[at].size};
            return at + 1;
        }
    return 0;
}

void keys_clear(struct keys *keys)
{
    free(keys->slots);
    free(keys->store);
    memset(keys, 0, sizeof *keys);
}

enum { UNUSED, LIVE, GONE };

static struct number *number_at(const struct numbers *numbers, uint64_t key)
{
    // (The file system chooses these, and not the supervised program.)
    size_t at = (key * 0x9e3779b97f4a7c15) >> 20 & (numbers->room - 1);
    while (numbers->slots[at].state == GONE || (numbers->slots[at].state == LIVE && numbers->slots[at].key != key))
        at = (at + 1) & (numbers->room - 1);
    return &numbers->slots[at];
}

const int64_t *numbers_find(const struct numbers *numbers, uint64_t key)
{
    if (!numbers->live)
        return NULL;
    struct number *slot = number_at(numbers, key);
    return slot->state == LIVE ? &slot->value : NULL;
}

bool numbers_put(struct numbers *numbers, uint64_t key, int64_t value)
{
    if (!numbers->room || (numbers->used + 1) * 3 > numbers->room * 2) {
        struct numbers grown = {.room = FIRST_ROOM};
        while (grown.room < (numbers->live + 1) * 3)
            grown.room *= 2;
        grown.slots = calloc(grown.room, sizeof *grown.slots);
        if (!grown.slots)
            return false;
        for (size_t at = 0; at < numbers->room; at++)
            if (numbers->slots[at].state == LIVE)
                *number_at(&grown, numbers->slots[at].key) = numbers->slots[at];
        grown.used = grown.live = numbers->live;
        free(numbers->slots);
        *numbers = grown;
    }
    struct number *slot = number_at(numbers, key);
    if (slot->state == UNUSED) {
        numbers->used++;
        numbers->live++;
    }
    *slot = (struct number){key, value, LIVE};
    return true;
}

void numbers_drop(struct numbers *numbers, uint64_t key)
{
    if (!numbers->live)
        return;
    struct number *slot = number_at(numbers, key);
    if (slot->state == LIVE) {
        slot->state = GONE;
        if (!--numbers->live)
            numbers_clear(numbers);
    }
}

void numbers_clear(struct numbers *numbers)
{
    free(numbers->slots);
    memset(numbers, 0, sizeof *numbers);
}
