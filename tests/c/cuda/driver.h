/*
 * NVIDIA's driver library as programs find it at run time, and rows about its codes.
 */
#ifndef DRIVER_H
#define DRIVER_H

#include "rows.h"

#include <dlfcn.h>

#define GUIDE "CUDA driver API"

enum cuda_code {
	CUDA_OK = 0,
	INVALID_VALUE = 1,
	OUT_OF_MEMORY = 2,
	NOT_INITIALIZED = 3,
	INVALID_DEVICE = 101,
	INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400,
	NOT_FOUND = 500,
	NOT_READY = 600,
	ILLEGAL_ADDRESS = 700,
	ALREADY_REGISTERED = 712,
	NOT_REGISTERED = 713,
	LAUNCH_FAILED = 719,
	NOT_PERMITTED = 800,
	NOT_SUPPORTED = 801,
};

typedef uint64_t gpu_address;
typedef void *handle;

struct ipc_handle {
	char bytes[64];
};
struct location {
	unsigned type;
	int id;
};
struct allocation {
	unsigned type, handle_types;
	struct location location;
	void *security;
	unsigned char compression, rdma;
	unsigned short usage;
	unsigned char reserved[4];
};
struct access_of {
	struct location location;
	unsigned flags;
};
struct end_2d {
	size_t x, y;
	unsigned type;
	const void *host;
	gpu_address device;
	handle array;
	size_t pitch;
};
struct copy_2d {
	struct end_2d from, to;
	size_t width, height;
};

struct end_3d {
	size_t x, y, z, lod;
	unsigned type;
	const void *host;
	gpu_address device;
	handle array;
	void *reserved;
	size_t pitch, height;
};
struct copy_3d {
	struct end_3d from, to;
	size_t width, height, depth;
};
/* CUDA_ARRAY_DESCRIPTOR, CUDA_ARRAY3D_DESCRIPTOR */
struct array_2d {
	size_t width, height;
	unsigned format, channels;
};
struct array_3d {
	size_t width, height, depth;
	unsigned format, channels, flags;
};
/* CUstreamBatchMemOpParams */
struct mem_op {
	unsigned kind, own_flags;
	gpu_address address;
	uint64_t value;
	unsigned flags, reserved[5];
};

#define FUNCTIONS(F) \
	F(cuInit, (unsigned)) \
	F(cuDriverGetVersion, (int *)) \
	F(cuGetErrorName, (int, const char **)) \
	F(cuGetErrorString, (int, const char **)) \
	F(cuGetProcAddress_v2, (const char *, void **, int, uint64_t, int *)) \
	F(cuDeviceGetCount, (int *)) \
	F(cuDeviceGet, (int *, int)) \
	F(cuDeviceGetName, (char *, int, int)) \
	F(cuDeviceGetUuid_v2, (char *, int)) \
	F(cuDeviceGetAttribute, (int *, int, int)) \
	F(cuDeviceTotalMem_v2, (size_t *, int)) \
	F(cuDeviceGetPCIBusId, (char *, int, int)) \
	F(cuDeviceGetByPCIBusId, (int *, const char *)) \
	F(cuDevicePrimaryCtxRetain, (handle *, int)) \
	F(cuDevicePrimaryCtxRelease_v2, (int)) \
	F(cuCtxCreate_v2, (handle *, unsigned, int)) \
	F(cuCtxDestroy_v2, (handle)) \
	F(cuCtxPushCurrent_v2, (handle)) \
	F(cuCtxPopCurrent_v2, (handle *)) \
	F(cuCtxSetCurrent, (handle)) \
	F(cuCtxGetCurrent, (handle *)) \
	F(cuCtxGetDevice, (int *)) \
	F(cuCtxSynchronize, (void)) \
	F(cuMemGetInfo_v2, (size_t *, size_t *)) \
	F(cuMemAlloc_v2, (gpu_address *, size_t)) \
	F(cuMemAllocPitch_v2, (gpu_address *, size_t *, size_t, size_t, unsigned)) \
	F(cuMemFree_v2, (gpu_address)) \
	F(cuMemGetAddressRange_v2, (gpu_address *, size_t *, gpu_address)) \
	F(cuMemHostAlloc, (void **, size_t, unsigned)) \
	F(cuMemFreeHost, (void *)) \
	F(cuMemHostRegister_v2, (void *, size_t, unsigned)) \
	F(cuMemHostUnregister, (void *)) \
	F(cuMemAllocManaged, (gpu_address *, size_t, unsigned)) \
	F(cuMemcpy, (gpu_address, gpu_address, size_t)) \
	F(cuMemcpyHtoD_v2, (gpu_address, const void *, size_t)) \
	F(cuMemcpyDtoH_v2, (void *, gpu_address, size_t)) \
	F(cuMemcpyDtoD_v2, (gpu_address, gpu_address, size_t)) \
	F(cuMemcpyHtoDAsync_v2, (gpu_address, const void *, size_t, handle)) \
	F(cuMemcpyDtoHAsync_v2, (void *, gpu_address, size_t, handle)) \
	F(cuMemcpy2D_v2, (const struct copy_2d *)) \
	F(cuMemcpy2DUnaligned_v2, (const struct copy_2d *)) \
	F(cuMemcpy2DAsync_v2, (const struct copy_2d *, handle)) \
	F(cuMemcpy3D_v2, (const struct copy_3d *)) \
	F(cuMemcpy3DAsync_v2, (const struct copy_3d *, handle)) \
	F(cuMemcpy3DPeer, (const struct copy_3d *)) \
	F(cuMemcpyAtoA_v2, (handle, size_t, handle, size_t, size_t)) \
	F(cuMemcpyAtoD_v2, (gpu_address, handle, size_t, size_t)) \
	F(cuMemcpyDtoA_v2, (handle, size_t, gpu_address, size_t)) \
	F(cuMemcpyAtoH_v2, (void *, handle, size_t, size_t)) \
	F(cuMemcpyHtoA_v2, (handle, size_t, const void *, size_t)) \
	F(cuMemcpyAtoHAsync_v2, (void *, handle, size_t, size_t, handle)) \
	F(cuMemcpyHtoAAsync_v2, (handle, size_t, const void *, size_t, handle)) \
	F(cuArrayCreate_v2, (handle *, const struct array_2d *)) \
	F(cuArray3DCreate_v2, (handle *, const struct array_3d *)) \
	F(cuArrayDestroy, (handle)) \
	F(cuArrayGetDescriptor_v2, (struct array_2d *, handle)) \
	F(cuArray3DGetDescriptor_v2, (struct array_3d *, handle)) \
	F(cuArrayGetPlane, (handle *, handle, unsigned)) \
	F(cuMemsetD8_v2, (gpu_address, unsigned char, size_t)) \
	F(cuMemsetD32_v2, (gpu_address, unsigned, size_t)) \
	F(cuMemsetD32Async, (gpu_address, unsigned, size_t, handle)) \
	F(cuPointerGetAttribute, (void *, int, gpu_address)) \
	F(cuPointerGetAttributes, (unsigned, int *, void **, gpu_address)) \
	F(cuPointerSetAttribute, (const void *, int, gpu_address)) \
	F(cuMemGetHandleForAddressRange, (void *, gpu_address, size_t, int, uint64_t)) \
	F(cuStreamCreate, (handle *, unsigned)) \
	F(cuStreamDestroy_v2, (handle)) \
	F(cuStreamQuery, (handle)) \
	F(cuStreamSynchronize, (handle)) \
	F(cuStreamWaitEvent, (handle, handle, unsigned)) \
	F(cuStreamWaitValue32, (handle, gpu_address, unsigned, unsigned)) \
	F(cuStreamWaitValue32_v2, (handle, gpu_address, unsigned, unsigned)) \
	F(cuStreamWaitValue64_v2, (handle, gpu_address, uint64_t, unsigned)) \
	F(cuStreamWriteValue32, (handle, gpu_address, unsigned, unsigned)) \
	F(cuStreamWriteValue32_v2, (handle, gpu_address, unsigned, unsigned)) \
	F(cuStreamWriteValue64_v2, (handle, gpu_address, uint64_t, unsigned)) \
	F(cuStreamBatchMemOp, (handle, unsigned, const struct mem_op *, unsigned)) \
	F(cuStreamBatchMemOp_v2, (handle, unsigned, const struct mem_op *, unsigned)) \
	F(cuLaunchHostFunc, (handle, void (*)(void *), void *)) \
	F(cuEventCreate, (handle *, unsigned)) \
	F(cuEventDestroy_v2, (handle)) \
	F(cuEventRecord, (handle, handle)) \
	F(cuEventQuery, (handle)) \
	F(cuEventSynchronize, (handle)) \
	F(cuEventElapsedTime, (float *, handle, handle)) \
	F(cuMemAllocAsync, (gpu_address *, size_t, handle)) \
	F(cuMemFreeAsync, (gpu_address, handle)) \
	F(cuDeviceGetDefaultMemPool, (handle *, int)) \
	F(cuMemPoolGetAttribute, (handle, int, void *)) \
	F(cuMemGetAllocationGranularity, (size_t *, const struct allocation *, int)) \
	F(cuMemAddressReserve, (gpu_address *, size_t, size_t, gpu_address, uint64_t)) \
	F(cuMemAddressFree, (gpu_address, size_t)) \
	F(cuMemCreate, (uint64_t *, size_t, const struct allocation *, uint64_t)) \
	F(cuMemRelease, (uint64_t)) \
	F(cuMemMap, (gpu_address, size_t, size_t, uint64_t, uint64_t)) \
	F(cuMemUnmap, (gpu_address, size_t)) \
	F(cuMemSetAccess, (gpu_address, size_t, const struct access_of *, size_t)) \
	F(cuMemGetAccess, (uint64_t *, const struct location *, gpu_address)) \
	F(cuMemExportToShareableHandle, (void *, uint64_t, int, uint64_t)) \
	F(cuMemImportFromShareableHandle, (uint64_t *, void *, int)) \
	F(cuMemRetainAllocationHandle, (uint64_t *, gpu_address)) \
	F(cuMemGetAllocationPropertiesFromHandle, (struct allocation *, uint64_t)) \
	F(cuIpcGetMemHandle, (struct ipc_handle *, gpu_address)) \
	F(cuIpcOpenMemHandle_v2, (gpu_address *, struct ipc_handle, unsigned)) \
	F(cuIpcCloseMemHandle, (gpu_address)) \
	F(cuIpcGetEventHandle, (struct ipc_handle *, handle)) \
	F(cuIpcOpenEventHandle, (handle *, struct ipc_handle)) \
	F(cuModuleLoadData, (handle *, const void *)) \
	F(cuModuleGetFunction, (handle *, handle, const char *)) \
	F(cuLaunchKernel, (handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
			   unsigned, handle, void **, void **)) \
	F(cuGraphCreate, (handle *, unsigned))

#define DECLARE(name, arguments) static int (*name) arguments;
FUNCTIONS(DECLARE)

static inline void load_driver(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	void *library = dlopen("libcuda.so.1", RTLD_NOW);
	if (!library) {
		printf("NOT libcuda.so.1: %s\n", dlerror());
		exit(1);
	}
#define FIND(name, arguments) \
	name = dlsym(library, #name); \
	if (!name) \
		fail(#name);
	FUNCTIONS(FIND)
}

static inline const char *code_name(int code)
{
	const char *name = NULL;
	return cuGetErrorName(code, &name) || !name ? "no code" : name;
}

/* A row about a code. */
static inline void code(int want, int got, const char *what)
{
	verdict(got == want, what, code_name(got), code_name(want), GUIDE);
}

/* The ground that rows stand on. */
static inline void must(int got, const char *what)
{
	if (got) {
		printf("NOT %s: %s\n", what, code_name(got));
		exit(1);
	}
}

/* A handle as text for another process, and back. */
static inline void to_text(const struct ipc_handle *from, char *text)
{
	for (size_t i = 0; i < sizeof(from->bytes); i++)
		sprintf(text + 2 * i, "%02x", (unsigned char)from->bytes[i]);
}

static inline struct ipc_handle from_text(const char *text)
{
	struct ipc_handle to;
	for (size_t i = 0; i < sizeof(to.bytes); i++) {
		unsigned value;
		sscanf(text + 2 * i, "%2x", &value);
		to.bytes[i] = (char)value;
	}
	return to;
}

/* The first device's primary context, current. */
static inline handle begin(void)
{
	handle context;
	load_driver();
	must(cuInit(0), "cuInit");
	must(cuDevicePrimaryCtxRetain(&context, 0), "the primary context");
	must(cuCtxSetCurrent(context), "make it current");
	return context;
}

#endif
