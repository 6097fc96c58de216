// Records as MessagePack, framed and appended with one write(2) each: byte for byte the format of
// holdfast.undo.journal.segments and holdfast.undo.journal.records.
//
// Sources: the MessagePack specification; docs/formats/undo-log.md; CRC-32 as in ISO 3309, by eight bytes at a time.

#include "hot.h"

static uint32_t sums[8][256];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void make_sums(void)
{
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t sum = byte;
        for (int bit = 0; bit < 8; bit++)
            sum = sum & 1 ? 0xedb88320 ^ sum >> 1 : sum >> 1;
        sums[0][byte] = sum;
    }
    for (int row = 1; row < 8; row++)
        for (int byte = 0; byte < 256; byte++)
            sums[row][byte] = sums[row - 1][byte] >> 8 ^ sums[0][sums[row - 1][byte] & 0xff];
}

static uint32_t add_to_sum(uint32_t sum, const uint8_t *at, size_t size)
{
    for (; size >= 8; at += 8, size -= 8) {
        uint32_t low = sum ^ ((uint32_t)at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24);
        sum = sums[7][low & 0xff] ^ sums[6][low >> 8 & 0xff] ^ sums[5][low >> 16 & 0xff] ^ sums[4][low >> 24] ^
              sums[3][at[4]] ^ sums[2][at[5]] ^ sums[1][at[6]] ^ sums[0][at[7]];
    }
    while (size--)
        sum = sum >> 8 ^ sums[0][(sum ^ *at++) & 0xff];
    return sum;
}

static void put_little(uint8_t *at, uint32_t number)
{
    for (int byte = 0; byte < 4; byte++)
        at[byte] = (uint8_t)(number >> 8 * byte);
}

void frame_begin(struct frame *frame)
{
    frame->size = FRAME_HEAD;
}

static void put_raw(struct frame *frame, const void *at, size_t size)
{
    if (!frame->size || size > FRAME_ROOM - frame->size) {
        frame->size = 0;
        return;
    }
    if (size)
        memcpy(frame->bytes + frame->size, at, size);
    frame->size += size;
}

static void put_head(struct frame *frame, uint8_t kind, uint64_t number, int width)
{
    uint8_t head[9] = {kind};
    for (int byte = 0; byte < width; byte++)
        head[1 + byte] = (uint8_t)(number >> 8 * (width - 1 - byte));
    put_raw(frame, head, 1 + (size_t)width);
}

void put_array(struct frame *frame, unsigned count)
{
    put_head(frame, (uint8_t)(0x90 | count), 0, 0);  // (at most 15)
}

void put_int(struct frame *frame, int64_t number)
{
    if (number >= -32 && number < 0x80) {
        put_head(frame, (uint8_t)number, 0, 0);
        return;
    }
    int power = 0;      // of the number of bytes
    while (power < 3 && (number < 0 ? number < -((int64_t)1 << (8 << power) >> 1) : number >> (8 << power)))
        power++;
    put_head(frame, (uint8_t)((number < 0 ? 0xd0 : 0xcc) + power), (uint64_t)number, 1 << power);
}

// A time may be any number of seconds: after the year 2262 nanoseconds take all 64 bits, and times after 2554, or
// before 1677, are clamped to the limits (holdfast.files.linux.metadata.mtime_of).
void put_time(struct frame *frame, struct timespec time)
{
    __int128 number = (__int128)time.tv_sec * 1000000000 + time.tv_nsec;
    if (number > UINT64_MAX)
        number = UINT64_MAX;
    if (number > INT64_MAX)
        put_head(frame, 0xcf, (uint64_t)number, 8);
    else
        put_int(frame, number < INT64_MIN ? INT64_MIN : (int64_t)number);
}

void put_bytes(struct frame *frame, struct bytes bytes)
{
    int power = bytes.size <= UINT8_MAX ? 0 : bytes.size <= UINT16_MAX ? 1 : 2;
    put_head(frame, (uint8_t)(0xc4 + power), bytes.size, 1 << power);
    put_raw(frame, bytes.at, bytes.size);
}

void put_text(struct frame *frame, const char *text)
{
    put_head(frame, (uint8_t)(0xa0 | strlen(text)), 0, 0);  // (at most 31 bytes)
    put_raw(frame, text, strlen(text));
}

void put_nil(struct frame *frame)
{
    put_head(frame, 0xc0, 0, 0);
}

void put_bool(struct frame *frame, bool is_true)
{
    put_head(frame, is_true ? 0xc3 : 0xc2, 0, 0);
}

int journal_write(struct journal *journal, const uint8_t *at, size_t size)
{
    if (journal->fd < 0 || journal->is_broken)
        return EIO;
    ssize_t written = write(journal->fd, at, size);
    if (written == (ssize_t)size) {
        journal->written += size;
        return 0;
    }
    int error = written < 0 ? errno : ENOSPC;
    // No record may follow one that was written only in part.
    if (written > 0 && ftruncate(journal->fd, (off_t)journal->written))
        journal->is_broken = true;
    return error;
}

int journal_append(struct journal *journal, struct frame *frame)
{
    if (!frame->size)
        return ENAMETOOLONG;
    pthread_once(&once, make_sums);
    put_little(frame->bytes, (uint32_t)(frame->size - FRAME_HEAD));
    uint32_t sum = add_to_sum(UINT32_MAX, frame->bytes, 4);
    put_little(frame->bytes + 4, ~add_to_sum(sum, frame->bytes + FRAME_HEAD, frame->size - FRAME_HEAD));
    return journal_write(journal, frame->bytes, frame->size);
}
