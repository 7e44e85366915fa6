/*
 * The functions of CUDA's runtime that libfabric and fabtests call, over the driver's. NVIDIA's own
 * runtime has the driver prove that it is NVIDIA's, which the software GPU's is not.
 */
#include "cuda.h"
#include "cuda_runtime.h"

#include <dlfcn.h>

/* A function of the driver's, of these arguments. */
#define DRIVER(name, ...) ((int (*)(__VA_ARGS__))in_driver(#name))

static void *in_driver(const char *name)
{
	static void *driver;
	if (!driver)
		driver = dlopen("libcuda.so.1", RTLD_NOW);
	return dlsym(driver, name);
}

static cudaError_t as_error(int code)
{
	switch (code) {
	case CUDA_SUCCESS:
		return cudaSuccess;
	case CUDA_ERROR_INVALID_VALUE:
		return cudaErrorInvalidValue;
	default:
		return cudaErrorUnknown;
	}
}

static int use(int device)
{
	CUcontext context;
	int code = DRIVER(cuDevicePrimaryCtxRetain, CUcontext *, int)(&context, device);
	return code ? code : DRIVER(cuCtxSetCurrent, CUcontext)(context);
}

/* The runtime begins by itself, with the first device. */
static int begun(void)
{
	CUcontext context = NULL;
	if (DRIVER(cuInit, unsigned)(0))
		return 0;
	return (!DRIVER(cuCtxGetCurrent, CUcontext *)(&context) && context) || !use(0);
}

#define RUNTIME(name, arguments, call) \
	cudaError_t name arguments \
	{ \
		return begun() ? as_error(call) : cudaErrorInitializationError; \
	}

RUNTIME(cudaGetDeviceCount, (int *count), DRIVER(cuDeviceGetCount, int *)(count))
RUNTIME(cudaGetDevice, (int *device), DRIVER(cuCtxGetDevice, int *)(device))
RUNTIME(cudaSetDevice, (int device), use(device))
RUNTIME(cudaDeviceSynchronize, (void), DRIVER(cuCtxSynchronize, void)())
RUNTIME(cudaMalloc, (void **memory, size_t length),
	DRIVER(cuMemAlloc_v2, void **, size_t)(memory, length))
RUNTIME(cudaFree, (void *memory), memory ? DRIVER(cuMemFree_v2, void *)(memory) : 0)
RUNTIME(cudaMallocHost, (void **memory, size_t length),
	DRIVER(cuMemHostAlloc, void **, size_t, unsigned)(memory, length, 0))
RUNTIME(cudaFreeHost, (void *memory), DRIVER(cuMemFreeHost, void *)(memory))
RUNTIME(cudaHostRegister, (void *memory, size_t length, unsigned flags),
	DRIVER(cuMemHostRegister_v2, void *, size_t, unsigned)(memory, length, flags))
RUNTIME(cudaHostUnregister, (void *memory), DRIVER(cuMemHostUnregister, void *)(memory))
RUNTIME(cudaMemset, (void *memory, int value, size_t length),
	DRIVER(cuMemsetD8_v2, void *, unsigned char, size_t)(memory, (unsigned char)value, length))
RUNTIME(cudaMemcpy, (void *to, const void *from, size_t length, enum cudaMemcpyKind kind),
	DRIVER(cuMemcpy, void *, const void *, size_t)(to, from, length))
RUNTIME(cudaIpcGetMemHandle, (cudaIpcMemHandle_t *shared, void *memory),
	DRIVER(cuIpcGetMemHandle, cudaIpcMemHandle_t *, void *)(shared, memory))
RUNTIME(cudaIpcOpenMemHandle, (void **memory, cudaIpcMemHandle_t shared, unsigned flags),
	DRIVER(cuIpcOpenMemHandle_v2, void **, cudaIpcMemHandle_t, unsigned)(memory, shared, flags))
RUNTIME(cudaIpcCloseMemHandle, (void *memory), DRIVER(cuIpcCloseMemHandle, void *)(memory))

const char *cudaGetErrorName(cudaError_t error)
{
	return error ? "cudaError" : "cudaSuccess";
}

const char *cudaGetErrorString(cudaError_t error)
{
	return error ? "the driver refused it" : "no error";
}
