"""The driver API. Results are tuples that begin with a CUresult, as cuda-python's are."""

import ctypes
import enum
import fcntl
import mmap
import os
import struct

PRIME_HANDLE_TO_FD = 0xC00C642D
AMDGPU_GEM_CREATE = 0xC0206440
AMDGPU_GEM_MMAP = 0xC0086441
DOMAIN_VRAM = 4


class CUresult(enum.IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_NO_DEVICE = 100


class CUctx_flags(enum.IntEnum):
    CU_CTX_MAP_HOST = 8


class CUpointer_attribute(enum.IntEnum):
    CU_POINTER_ATTRIBUTE_SYNC_MEMOPS = 6


class CUmemRangeHandleType(enum.IntEnum):
    CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD = 1


class CUmemRangeFlags(enum.IntEnum):
    CU_MEM_RANGE_FLAG_DMA_BUF_MAPPING_TYPE_PCIE = 1


class CUdeviceptr(int):
    def __new__(cls, init_value=0):
        return int.__new__(cls, init_value)


class Memory:
    """A buffer of the GPU's, mapped."""

    def __init__(self, size):
        # On a machine with GPUs of its own the software ones come after them; they are two. A guest
        # has one, the virtual one.
        nodes = sorted(name for name in os.listdir("/dev/dri") if name.startswith("render"))
        self.node = os.open(f"/dev/dri/{nodes[-2:][0]}", os.O_RDWR | os.O_CLOEXEC)
        create = fcntl.ioctl(
            self.node, AMDGPU_GEM_CREATE, struct.pack("4Q", size, 0, DOMAIN_VRAM, 0)
        )
        self.handle = struct.unpack_from("I", create)[0]
        place = fcntl.ioctl(self.node, AMDGPU_GEM_MMAP, struct.pack("2I", self.handle, 0))
        self.mapping = mmap.mmap(self.node, size, offset=struct.unpack("Q", place)[0])
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.mapping))
        self.size = size

    def export(self):
        prime = struct.pack("2Ii", self.handle, os.O_RDWR | os.O_CLOEXEC, -1)
        return struct.unpack("2Ii", fcntl.ioctl(self.node, PRIME_HANDLE_TO_FD, prime))[2]


memories = {}


def cuInit(_flags):
    return (CUresult.CUDA_SUCCESS,)


def cuDeviceGet(number):
    return CUresult.CUDA_SUCCESS, number


def cuCtxCreate(_flags, device):
    return CUresult.CUDA_SUCCESS, device + 1


def cuCtxSetCurrent(_context):
    return (CUresult.CUDA_SUCCESS,)


def cuCtxDestroy(_context):
    return (CUresult.CUDA_SUCCESS,)


def cuGetErrorName(error):
    return CUresult.CUDA_SUCCESS, error.name.encode()


def cuMemAlloc(size):
    memory = Memory(size)
    memories[memory.address] = memory
    return CUresult.CUDA_SUCCESS, CUdeviceptr(memory.address)


def cuMemFree(address):
    known = memories.pop(int(address), None)
    return (CUresult.CUDA_SUCCESS if known else CUresult.CUDA_ERROR_INVALID_VALUE,)


def cuPointerSetAttribute(_value, _attribute, address):
    known = address in memories
    return (CUresult.CUDA_SUCCESS if known else CUresult.CUDA_ERROR_INVALID_VALUE,)


def cuMemGetHandleForAddressRange(address, size, _kind, _flags):
    memory = memories.get(int(address))
    if memory is None or size > memory.size:
        return CUresult.CUDA_ERROR_INVALID_VALUE, -1
    return CUresult.CUDA_SUCCESS, memory.export()


def cuMemcpyHtoD(address, data, size):
    ctypes.memmove(int(address), bytes(data[:size]), size)
    return (CUresult.CUDA_SUCCESS,)


def cuMemcpyDtoH(data, address, size):
    data[:size] = ctypes.string_at(int(address), size)
    return (CUresult.CUDA_SUCCESS,)
