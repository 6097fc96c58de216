// A set of byte strings, each with a number: open addressing with linear probing, at most two thirds full.
//
// The supervised program chooses the keys, so the hash is SipHash-1-3 (Aumasson and Bernstein, 2012) with a key of this
// process: no choice of names can make look-ups slow.

#include "hot.h"
#include <sys/random.h>

enum { FIRST_ROOM = 64, FIRST_STORE = 4096 };
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

int64_t *keys_find(const struct keys *keys, struct bytes key)
{
    size_t at = keys->live ? slot_of(keys, hash_of(key), key) : SIZE_MAX;
    return at == SIZE_MAX ? NULL : &keys->slots[at].value;
}

bool keys_has(const struct keys *keys, struct bytes key)
{
    return keys_find(keys, key);
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
    if ((keys->used + 1) * 3 <= keys->room * 2 && keys->stored + bytes <= keys->store_room)
        return true;
    // (Removed keys leave their bytes in the store until here.)
    struct keys grown = {.room = FIRST_ROOM, .used = keys->live, .live = keys->live, .store_room = FIRST_STORE};
    size_t stored = bytes;
    for (size_t at = 0; at < keys->room; at++)
        stored += keys->slots[at].at < KEY_GONE ? keys->slots[at].size : 0;
    while (grown.room < (keys->live + 1) * 3)
        grown.room *= 2;
    while (grown.store_room < stored * 2)
        grown.store_room *= 2;
    grown.slots = malloc(grown.room * sizeof *grown.slots);
    grown.store = grown.store_room > MOST_STORED ? NULL : malloc(grown.store_room);
    if (!grown.slots || !grown.store) {
        keys_clear(&grown);
        return false;
    }
    for (size_t at = 0; at < grown.room; at++)
        grown.slots[at].at = KEY_FREE;
    for (size_t at = 0; at < keys->room; at++) {
        struct key key = keys->slots[at];
        if (key.at >= KEY_GONE)
            continue;
        if (key.size)
            memcpy(grown.store + grown.stored, keys->store + key.at, key.size);
        key.at = (uint32_t)grown.stored;
        grown.stored += key.size;
        put_slot(grown.slots, grown.room, key);
    }
    keys_clear(keys);
    *keys = grown;
    return true;
}

void keys_add(struct keys *keys, struct bytes key)
{
    uint64_t hash = hash_of(key);
    if (keys->live && slot_of(keys, hash, key) != SIZE_MAX)
        return;
    if (key.size)
        memcpy(keys->store + keys->stored, key.at, key.size);
    put_slot(keys->slots, keys->room, (struct key){hash, (uint32_t)keys->stored, (uint32_t)key.size, 0});
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
