"""GPU memory by CUDA's driver library, for the programs beside this one."""

import ctypes
import sys

cuda = ctypes.CDLL("libcuda.so.1")


def call(name, *arguments):
    code = getattr(cuda, name)(*arguments)
    if code:
        sys.exit(f"{name}: CUresult {code}")


def gpu_memory(length, fill):
    """The address of so many bytes of the first GPU's memory, each of them `fill`."""
    context, address = ctypes.c_void_p(), ctypes.c_uint64()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
    call("cuCtxSetCurrent", context)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(length))
    call("cuMemsetD8_v2", address, ctypes.c_ubyte(fill), ctypes.c_size_t(length))
    return address.value


def gpu_bytes(address, length):
    """What is there."""
    found = (ctypes.c_ubyte * length)()
    call("cuMemcpyDtoH_v2", found, ctypes.c_uint64(address), ctypes.c_size_t(length))
    return bytes(found)
