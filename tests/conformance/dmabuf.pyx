#cython: language_level=3
"""
pyverbs.dmabuf for distributions whose pyverbs was built without libdrm's headers: Debian 12's says EOPNOTSUPP to every
DmaBuf(). This speaks amdgpu's requests to /dev/dri as the real module does. Its add_ref can be called from Python, which
pyverbs.mr does; rdma-core's own (up to 65 at least) is a C method, so that every DmaBufMR of one fails.

The object's fields are those that pyverbs.mr was built for.
"""

import fcntl
import os
import struct
import weakref

from pyverbs.base import PyverbsRDMAErrno

VERSION = 0xc0406400
GEM_CLOSE = 0x40086409
PRIME_HANDLE_TO_FD = 0xc00c642d
AMDGPU_GEM_CREATE = 0xc0206440
AMDGPU_GEM_MMAP = 0xc0086441

cdef extern from "errno.h":
    int errno

cdef class DmaBuf:
    cdef int node
    cdef int gem_handle
    cdef int prime
    cdef unsigned long length
    cdef unsigned long offset
    cdef void *opened
    cdef object mrs

    def __init__(self, size, gpu=0, gtt=0):
        global errno
        self.mrs = weakref.WeakSet()
        try:
            self.open(size, f'/dev/dri/renderD{128 + gpu}', gtt)
        except OSError as error:
            errno = error.errno
            raise PyverbsRDMAErrno(f'no dma-buf of {size} bytes on GPU {gpu}')

    cdef open(self, size, path, gtt):
        self.node = os.open(path, os.O_RDWR)
        domain, flags = (2, 4) if gtt else (4, 1)
        create = fcntl.ioctl(self.node, AMDGPU_GEM_CREATE, struct.pack('4Q', size, 0, domain, flags))
        self.gem_handle = struct.unpack_from('I', create)[0]
        place = fcntl.ioctl(self.node, AMDGPU_GEM_MMAP, struct.pack('2I', self.gem_handle, 0))
        self.offset = struct.unpack('Q', place)[0]
        prime = fcntl.ioctl(self.node, PRIME_HANDLE_TO_FD, struct.pack('2Ii', self.gem_handle, os.O_RDWR, -1))
        self.prime = struct.unpack('2Ii', prime)[2]
        self.length = size
        self.opened = <void *>1

    def __dealloc__(self):
        self.close()

    cpdef add_ref(self, obj):
        self.mrs.add(obj)

    cpdef close(self):
        if self.opened == NULL:
            return
        self.opened = NULL
        for mr in list(self.mrs):
            mr.close()
        os.close(self.prime)
        fcntl.ioctl(self.node, GEM_CLOSE, struct.pack('2I', self.gem_handle, 0))
        os.close(self.node)

    @property
    def drm_fd(self):
        return self.node

    @property
    def handle(self):
        return self.gem_handle

    @property
    def fd(self):
        return self.prime

    @property
    def size(self):
        return self.length

    @property
    def map_offset(self):
        return self.offset
