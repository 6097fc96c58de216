"""Random operations on one file, against a copy in memory, as ``fsx`` of xfstests does them: a program for a guest.

    random_operations.py FILE OPERATIONS SEED [mapped] [holes]

``mapped``: it is written by shared mappings, too; ``holes``: with fallocate(2). What is found to differ ends it, with
the operation. It prints the SHA-256 of what the file has at the end.
"""

import ctypes
import hashlib
import mmap
import os
import random
import sys

MOST = 128 << 10
PIECE = 16 << 10
NOISE = os.urandom(4 * PIECE)
KEEP_SIZE, PUNCH_HOLE, ZERO_RANGE = 1, 2, 16
LIBC = ctypes.CDLL(None, use_errno=True)


def noise(length):
    start = random.randrange(len(NOISE) - length)
    return NOISE[start : start + length]


class File:
    def __init__(self, path, mapped):
        self.path = path
        self.mapping = mmap.MAP_SHARED if mapped else mmap.MAP_PRIVATE
        self.good = bytearray()
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def extent(self, most):
        start = random.randrange(most)
        return start, random.randint(1, min(PIECE, most - start))

    def inside(self):
        """What lies in the file, which is not empty."""
        start, length = self.extent(max(len(self.good), 1))
        return start, min(length, len(self.good) - start)

    def replaced(self, start, data):
        if len(self.good) < start + len(data):
            self.good += bytes(start + len(data) - len(self.good))
        self.good[start : start + len(data)] = data

    def same(self, start, found):
        expected = bytes(self.good[start : start + len(found)])
        if found != expected:
            at = next(at for at in range(len(found)) if found[at : at + 1] != expected[at : at + 1])
            sys.exit(
                f"at {start + at} of {len(self.good)}: {found[at : at + 8]!r} instead of {expected[at : at + 8]!r}"
            )

    # -- operations --

    def read(self):
        start, length = self.extent(MOST)
        found = os.pread(self.fd, length, start)
        if len(found) != max(0, min(length, len(self.good) - start)):
            sys.exit(f"{len(found)} bytes of {length} at {start} of {len(self.good)}")
        self.same(start, found)

    def write(self):
        start, length = self.extent(MOST)
        data = noise(length)
        written = 0
        while written < length:
            written += os.pwrite(self.fd, data[written:], start + written)
        self.replaced(start, data)

    def cut(self):
        size = random.randrange(MOST)
        os.ftruncate(self.fd, size)
        self.good = self.good[:size] + bytes(max(0, size - len(self.good)))

    def read_mapped(self):
        start, length = self.inside()
        if length > 0:
            with mmap.mmap(self.fd, 0, flags=self.mapping, prot=mmap.PROT_READ) as view:
                self.same(start, view[start : start + length])

    def write_mapped(self):
        start, length = self.inside()
        if length > 0:
            data = noise(length)
            with mmap.mmap(self.fd, 0) as view:
                view[start : start + length] = data
            self.replaced(start, data)

    def allocate(self):
        start, length = self.extent(MOST)
        mode = random.choice((0, KEEP_SIZE, KEEP_SIZE | PUNCH_HOLE, ZERO_RANGE, KEEP_SIZE | ZERO_RANGE))
        if LIBC.fallocate(self.fd, mode, ctypes.c_long(start), ctypes.c_long(length)):
            if ctypes.get_errno() == 95 and mode & ZERO_RANGE:
                return  # (not by every file system of the host)
            sys.exit(f"fallocate {mode}: {os.strerror(ctypes.get_errno())}")
        kept = mode & KEEP_SIZE
        end = min(start + length, len(self.good)) if kept else start + length
        if len(self.good) < end:
            self.good += bytes(end - len(self.good))
        if mode & (PUNCH_HOLE | ZERO_RANGE) and end > start:
            self.good[start:end] = bytes(end - start)

    def open_again(self):
        os.close(self.fd)
        self.fd = os.open(self.path, os.O_RDWR)

    def sync(self):
        os.fsync(self.fd)

    def look(self):
        for found in (os.fstat(self.fd), os.stat(self.path)):
            if found.st_size != len(self.good):
                sys.exit(f"{found.st_size} bytes instead of {len(self.good)}")


def main():
    path, operations, seed, *more = sys.argv[1:]
    random.seed(int(seed))
    file = File(path, "mapped" in more)
    choices = [file.read] * 8 + [file.write] * 8 + [file.cut] * 3 + [file.read_mapped] * 4 + [file.look] * 2
    choices += [file.write_mapped] * 5 * ("mapped" in more) + [file.allocate] * 4 * ("holes" in more)
    choices += [file.open_again, file.sync]
    for number in range(int(operations)):
        operation = random.choice(choices)
        try:
            operation()
        except SystemExit as error:
            sys.exit(f"{number}, {operation.__name__}: {error}")
    file.look()
    print(hashlib.sha256(file.good).hexdigest())


main()
