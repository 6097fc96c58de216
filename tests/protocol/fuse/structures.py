"""The structures of ``include/uapi/linux/fuse.h``, laid out by the C rules of this machine: what tests hold the codec
against, which has its own layouts.
"""

from __future__ import annotations

import ctypes
from ctypes import c_int32, c_int64, c_uint16, c_uint32, c_uint64

_TYPES = {"H": c_uint16, "I": c_uint32, "i": c_int32, "Q": c_uint64, "q": c_int64}


def structure(name: str, *fields: str | tuple[str, type]) -> type[ctypes.Structure]:
    """``"Q:nodeid"`` is a field of 64 bits."""
    layout = [
        (field.partition(":")[2], _TYPES[field.partition(":")[0]]) if isinstance(field, str) else field
        for field in fields
    ]
    return type(name, (ctypes.Structure,), {"_fields_": layout})


InHeader = structure(
    "fuse_in_header",
    "I:len",
    "I:opcode",
    "Q:unique",
    "Q:nodeid",
    "I:uid",
    "I:gid",
    "I:pid",
    "H:total_extlen",
    "H:padding",
)
OutHeader = structure("fuse_out_header", "I:len", "i:error", "Q:unique")

ForgetIn = structure("fuse_forget_in", "Q:nlookup")
ForgetOne = structure("fuse_forget_one", "Q:nodeid", "Q:nlookup")
BatchForgetIn = structure("fuse_batch_forget_in", "I:count", "I:dummy")
GetAttrIn = structure("fuse_getattr_in", "I:getattr_flags", "I:dummy", "Q:fh")
StatXIn = structure("fuse_statx_in", "I:getattr_flags", "I:reserved", "Q:fh", "I:sx_flags", "I:sx_mask")
MkNodIn = structure("fuse_mknod_in", "I:mode", "I:rdev", "I:umask", "I:padding")
MkDirIn = structure("fuse_mkdir_in", "I:mode", "I:umask")
RenameIn = structure("fuse_rename_in", "Q:newdir")
Rename2In = structure("fuse_rename2_in", "Q:newdir", "I:flags", "I:padding")
LinkIn = structure("fuse_link_in", "Q:oldnodeid")
SetAttrIn = structure(
    "fuse_setattr_in", "I:valid", "I:padding", "Q:fh", "Q:size", "Q:lock_owner", "q:atime", "q:mtime", "q:ctime",
    "I:atimensec", "I:mtimensec", "I:ctimensec", "I:mode", "I:unused4", "I:uid", "I:gid", "I:unused5",
)  # fmt: skip
OpenIn = structure("fuse_open_in", "I:flags", "I:open_flags")
CreateIn = structure("fuse_create_in", "I:flags", "I:mode", "I:umask", "I:open_flags")
ReleaseIn = structure("fuse_release_in", "Q:fh", "I:flags", "I:release_flags", "Q:lock_owner")
FlushIn = structure("fuse_flush_in", "Q:fh", "I:unused", "I:padding", "Q:lock_owner")
ReadIn = structure("fuse_read_in", "Q:fh", "Q:offset", "I:size", "I:read_flags", "Q:lock_owner", "I:flags", "I:padding")
WriteIn = structure(
    "fuse_write_in", "Q:fh", "Q:offset", "I:size", "I:write_flags", "Q:lock_owner", "I:flags", "I:padding"
)
FSyncIn = structure("fuse_fsync_in", "Q:fh", "I:fsync_flags", "I:padding")
SetXattrIn = structure("fuse_setxattr_in", "I:size", "I:flags", "I:setxattr_flags", "I:padding")
SetXattrShortIn = structure("fuse_setxattr_in", "I:size", "I:flags")
GetXattrIn = structure("fuse_getxattr_in", "I:size", "I:padding")
FileLock = structure("fuse_file_lock", "Q:start", "Q:end", "I:type", "I:pid")
LkIn = structure("fuse_lk_in", "Q:fh", "Q:owner", ("lk", FileLock), "I:lk_flags", "I:padding")
AccessIn = structure("fuse_access_in", "I:mask", "I:padding")
InitIn = structure(
    "fuse_init_in", "I:major", "I:minor", "I:max_readahead", "I:flags", "I:flags2", ("unused", c_uint32 * 11)
)
InterruptIn = structure("fuse_interrupt_in", "Q:unique")
BMapIn = structure("fuse_bmap_in", "Q:block", "I:blocksize", "I:padding")
IoctlIn = structure("fuse_ioctl_in", "Q:fh", "I:flags", "I:cmd", "Q:arg", "I:in_size", "I:out_size")
PollIn = structure("fuse_poll_in", "Q:fh", "Q:kh", "I:flags", "I:events")
FallocateIn = structure("fuse_fallocate_in", "Q:fh", "Q:offset", "Q:length", "I:mode", "I:padding")
LSeekIn = structure("fuse_lseek_in", "Q:fh", "q:offset", "I:whence", "I:padding")
CopyIn = structure(
    "fuse_copy_file_range_in", "Q:fh_in", "Q:off_in", "Q:nodeid_out", "Q:fh_out", "Q:off_out", "Q:len", "Q:flags"
)
SetupMappingIn = structure("fuse_setupmapping_in", "Q:fh", "Q:foffset", "Q:len", "Q:flags", "Q:moffset")
RemoveMappingIn = structure("fuse_removemapping_in", "I:count")
RemoveMappingOne = structure("fuse_removemapping_one", "Q:moffset", "Q:len")
SyncFsIn = structure("fuse_syncfs_in", "Q:padding")
RetrieveIn = structure("fuse_notify_retrieve_in", "Q:dummy1", "Q:offset", "I:size", "I:dummy2", "Q:dummy3", "Q:dummy4")
SecCtxHeader = structure("fuse_secctx_header", "I:size", "I:nr_secctx")
SecCtx = structure("fuse_secctx", "I:size", "I:padding")
ExtHeader = structure("fuse_ext_header", "I:size", "I:type")

Attr = structure(
    "fuse_attr", "Q:ino", "Q:size", "Q:blocks", "q:atime", "q:mtime", "q:ctime", "I:atimensec", "I:mtimensec",
    "I:ctimensec", "I:mode", "I:nlink", "I:uid", "I:gid", "I:rdev", "I:blksize", "I:flags",
)  # fmt: skip
EntryOut = structure(
    "fuse_entry_out", "Q:nodeid", "Q:generation", "Q:entry_valid", "Q:attr_valid", "I:entry_valid_nsec",
    "I:attr_valid_nsec", ("attr", Attr),
)  # fmt: skip
AttrOut = structure("fuse_attr_out", "Q:attr_valid", "I:attr_valid_nsec", "I:dummy", ("attr", Attr))
SxTime = structure("fuse_sx_time", "q:tv_sec", "I:tv_nsec", "i:reserved")
StatX = structure(
    "fuse_statx", "I:mask", "I:blksize", "Q:attributes", "I:nlink", "I:uid", "I:gid", "H:mode", "H:spare0", "Q:ino",
    "Q:size", "Q:blocks", "Q:attributes_mask", ("atime", SxTime), ("btime", SxTime), ("ctime", SxTime),
    ("mtime", SxTime), "I:rdev_major", "I:rdev_minor", "I:dev_major", "I:dev_minor", ("spare2", c_uint64 * 14),
)  # fmt: skip
StatXOut = structure(
    "fuse_statx_out", "Q:attr_valid", "I:attr_valid_nsec", "I:flags", ("spare", c_uint64 * 2), ("stat", StatX)
)
OpenOut = structure("fuse_open_out", "Q:fh", "I:open_flags", "i:backing_id")
CreateOut = structure("create", ("entry", EntryOut), ("open", OpenOut))
WriteOut = structure("fuse_write_out", "I:size", "I:padding")
StatFsOut = structure(
    "fuse_kstatfs", "Q:blocks", "Q:bfree", "Q:bavail", "Q:files", "Q:ffree", "I:bsize", "I:namelen", "I:frsize",
    "I:padding", ("spare", c_uint32 * 6),
)  # fmt: skip
LkOut = structure("fuse_lk_out", ("lk", FileLock))
U64Out = structure("u64", "Q:value")
DirEnt = structure("fuse_dirent", "Q:ino", "Q:off", "I:namelen", "I:type")
DirEntPlus = structure("fuse_direntplus", ("entry_out", EntryOut), ("dirent", DirEnt))
InitOut = structure(
    "fuse_init_out", "I:major", "I:minor", "I:max_readahead", "I:flags", "H:max_background", "H:congestion_threshold",
    "I:max_write", "I:time_gran", "H:max_pages", "H:map_alignment", "I:flags2", "I:max_stack_depth",
    "H:request_timeout", ("unused", c_uint16 * 11),
)  # fmt: skip

InvalInodeOut = structure("fuse_notify_inval_inode_out", "Q:ino", "q:off", "q:len")
InvalEntryOut = structure("fuse_notify_inval_entry_out", "Q:parent", "I:namelen", "I:flags")
DeleteOut = structure("fuse_notify_delete_out", "Q:parent", "Q:child", "I:namelen", "I:padding")
StoreOut = structure("fuse_notify_store_out", "Q:nodeid", "Q:offset", "I:size", "I:padding")
RetrieveOut = structure("fuse_notify_retrieve_out", "Q:notify_unique", "Q:nodeid", "Q:offset", "I:size", "I:padding")
PruneOut = structure("fuse_notify_prune_out", "I:count", "I:padding", "Q:spare")


def values(of: ctypes.Structure) -> dict[str, object]:
    """Every number in it by name, those of inner structures as ``outer.inner``."""
    found: dict[str, object] = {}
    for name, *_ in of._fields_:
        value = getattr(of, name)
        if isinstance(value, ctypes.Structure):
            found |= {f"{name}.{inner}": number for inner, number in values(value).items()}
        else:
            found[name] = list(value) if isinstance(value, ctypes.Array) else value
    return found


def request(opcode: int, body: bytes = b"", *, node: int = 1, extensions: bytes = b"", unique: int = 7) -> memoryview:
    """A whole frame."""
    total = ctypes.sizeof(InHeader) + len(body) + len(extensions)
    header = InHeader(total, opcode, unique, node, 1000, 1001, 4242, len(extensions) // 8, 0)
    return memoryview(bytes(header) + body + extensions)
