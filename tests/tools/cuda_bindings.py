"""NVIDIA's Python bindings of its driver library: memory, copies, streams and what they wait for,
arrays, virtual memory, and what a kernel's launch answers."""

from cuda.bindings import driver

SUCCESS = driver.CUresult.CUDA_SUCCESS


def call(name, *arguments):
    code, *answers = getattr(driver, name)(*arguments)
    assert code == SUCCESS, f"{name}: {code}"
    return answers[0] if len(answers) == 1 else answers


call("cuInit", 0)
assert call("cuDriverGetVersion") >= 12090
assert call("cuDeviceGetCount") == 2
device = call("cuDeviceGet", 0)
assert call("cuDeviceGetName", 64, device).startswith(b"peerdma")
call("cuCtxSetCurrent", call("cuDevicePrimaryCtxRetain", device))

address = call("cuMemAlloc", 4096)
call("cuMemsetD32", address, 7, 1024)
found = bytearray(4096)
call("cuMemcpyDtoH", found, address, 4096)
assert found == b"\x07\0\0\0" * 1024
attribute = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE
assert call("cuPointerGetAttribute", attribute, address)

stream, event = call("cuStreamCreate", 0), call("cuEventCreate", 0)
call("cuMemsetD32Async", address, 8, 1024, stream)
call("cuEventRecord", event, stream)
call("cuEventSynchronize", event)
call("cuMemcpyDtoH", found, address, 4096)
assert found == b"\x08\0\0\0" * 1024

apart = call("cuStreamCreate", 1)
equal = driver.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_EQ
call("cuStreamWaitValue32", apart, address, 9, equal)
operation = driver.CUstreamBatchMemOpParams()
operation.writeValue.operation = driver.CUstreamBatchMemOpType.CU_STREAM_MEM_OP_WRITE_VALUE_64
operation.writeValue.address = int(address) + 8
operation.writeValue.value64 = driver.cuuint64_t(1 << 40)
call("cuStreamBatchMemOp", apart, 1, [operation], 0)
assert driver.cuStreamQuery(apart)[0] == driver.CUresult.CUDA_ERROR_NOT_READY
call("cuStreamWriteValue32", 0, address, 9, 0)
call("cuStreamSynchronize", apart)
call("cuMemcpyDtoH", found, address, 16)
assert found[:16] == (9).to_bytes(4, "little") + b"\x08\0\0\0" + (1 << 40).to_bytes(8, "little")

shape = driver.CUDA_ARRAY3D_DESCRIPTOR()
shape.Width, shape.Height, shape.NumChannels = 32, 8, 2
shape.Format = driver.CUarray_format.CU_AD_FORMAT_FLOAT
array = call("cuArray3DCreate", shape)
rows = driver.CUDA_MEMCPY2D()
rows.srcMemoryType = driver.CUmemorytype.CU_MEMORYTYPE_DEVICE
rows.srcDevice, rows.srcPitch = address, 512
rows.dstMemoryType, rows.dstArray = driver.CUmemorytype.CU_MEMORYTYPE_ARRAY, array
rows.WidthInBytes, rows.Height = 256, 8
call("cuMemcpy2D", rows)
assert call("cuArray3DGetDescriptor", array).NumChannels == 2
call("cuArrayDestroy", array)

wanted = driver.CUmemAllocationProp()
wanted.type = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
wanted.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
least = driver.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM
size = call("cuMemGetAllocationGranularity", wanted, least)
memory, space = call("cuMemCreate", size, wanted, 0), call("cuMemAddressReserve", size, 0, 0, 0)
call("cuMemMap", space, size, 0, memory, 0)
access = driver.CUmemAccessDesc()
access.location = wanted.location
access.flags = driver.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
call("cuMemSetAccess", space, size, [access], 1)
call("cuMemsetD8", space, 9, size)

module = call("cuModuleLoadData", b".version 8.0\n.target sm_90\n.visible .entry kernel(){ret;}\0")
kernel = call("cuModuleGetFunction", module, b"kernel")
(code,) = driver.cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0)
assert code == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, code
(code, _) = driver.cuGraphCreate(0)
assert code == driver.CUresult.CUDA_ERROR_NOT_SUPPORTED, code
print("all right")
