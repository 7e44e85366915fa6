/*
 * CUDA's runtime library as programs find it, beside the driver's, and rows about its codes. It is
 * CUDA 12's, or that of the version in LIBCUDART_VERSION.
 */
#ifndef RUNTIME_H
#define RUNTIME_H

#include "driver.h"

#define RUNTIME "CUDA runtime API"

enum runtime_code {
	MEMORY_ALLOCATION = 2,
	INVALID_PITCH = 12,
	INVALID_DIRECTION = 21,
	MISSING_CONFIGURATION = 52,
	NO_DEVICE = 100,
	PEER_ENABLED = 704,
	PEER_NOT_ENABLED = 705,
};

/* cudaMemcpyKind */
enum { HOST_TO_HOST, TO_DEVICE, TO_HOST, WITHIN_DEVICES, BY_ADDRESS };

/* cudaMemoryType */
enum { UNREGISTERED, OF_HOST, OF_DEVICE, MANAGED };

struct extent {
	size_t width, height, depth;
};
struct position {
	size_t x, y, z;
};
struct pitched {
	void *at;
	size_t pitch, width, height;
};
/* cudaMemcpy3DParms */
struct place {
	void *array;
	struct position position;
	struct pitched memory;
};
struct box {
	struct place from, to;
	struct extent extent;
	int kind;
};
/* cudaPointerAttributes; CUDA 12's ends before the domain. */
struct attributes {
	int type, device;
	void *on_device, *on_host;
	int domain;
	unsigned zero[15];
};
struct dim3 {
	unsigned x, y, z;
};

#define RUNTIME_FUNCTIONS(F) \
	F(cudaRuntimeGetVersion, (int *)) \
	F(cudaDriverGetVersion, (int *)) \
	F(cudaGetLastError, (void)) \
	F(cudaPeekAtLastError, (void)) \
	F(cudaGetDeviceCount, (int *)) \
	F(cudaGetDevice, (int *)) \
	F(cudaSetDevice, (int)) \
	F(cudaInitDevice, (int, unsigned, unsigned)) \
	F(cudaGetDeviceFlags, (unsigned *)) \
	F(cudaDeviceReset, (void)) \
	F(cudaDeviceSynchronize, (void)) \
	F(cudaDeviceGetAttribute, (int *, int, int)) \
	F(cudaGetDeviceProperties, (void *, int)) \
	F(cudaDeviceGetPCIBusId, (char *, int, int)) \
	F(cudaDeviceGetByPCIBusId, (int *, const char *)) \
	F(cudaDeviceCanAccessPeer, (int *, int, int)) \
	F(cudaDeviceEnablePeerAccess, (int, unsigned)) \
	F(cudaDeviceDisablePeerAccess, (int)) \
	F(cudaMemGetInfo, (size_t *, size_t *)) \
	F(cudaMalloc, (void *, size_t)) \
	F(cudaMallocPitch, (void *, size_t *, size_t, size_t)) \
	F(cudaMalloc3D, (struct pitched *, struct extent)) \
	F(cudaFree, (void *)) \
	F(cudaMallocHost, (void *, size_t)) \
	F(cudaHostAlloc, (void *, size_t, unsigned)) \
	F(cudaFreeHost, (void *)) \
	F(cudaHostRegister, (void *, size_t, unsigned)) \
	F(cudaHostUnregister, (void *)) \
	F(cudaHostGetDevicePointer, (void *, void *, unsigned)) \
	F(cudaHostGetFlags, (unsigned *, void *)) \
	F(cudaMallocManaged, (void *, size_t, unsigned)) \
	F(cudaMallocAsync, (void *, size_t, handle)) \
	F(cudaFreeAsync, (void *, handle)) \
	F(cudaDeviceGetDefaultMemPool, (handle *, int)) \
	F(cudaMemPoolSetAccess, (handle, const struct access_of *, size_t)) \
	F(cudaMemPoolGetAccess, (int *, handle, const struct location *)) \
	F(cudaMallocFromPoolAsync, (void *, size_t, handle, handle)) \
	F(cudaPointerGetAttributes, (struct attributes *, const void *)) \
	F(cudaMemcpy, (void *, const void *, size_t, int)) \
	F(cudaMemcpy_ptds, (void *, const void *, size_t, int)) \
	F(cudaMemcpyAsync, (void *, const void *, size_t, int, handle)) \
	F(cudaMemcpyPeer, (void *, int, const void *, int, size_t)) \
	F(cudaMemcpy2D, (void *, size_t, const void *, size_t, size_t, size_t, int)) \
	F(cudaMemcpy3D, (const struct box *)) \
	F(cudaMemset, (void *, int, size_t)) \
	F(cudaMemsetAsync, (void *, int, size_t, handle)) \
	F(cudaMemset2D, (void *, size_t, int, size_t, size_t)) \
	F(cudaMemset3D, (struct pitched, int, struct extent)) \
	F(cudaStreamCreate, (handle *)) \
	F(cudaStreamCreateWithFlags, (handle *, unsigned)) \
	F(cudaStreamCreateWithPriority, (handle *, unsigned, int)) \
	F(cudaStreamDestroy, (handle)) \
	F(cudaStreamSynchronize, (handle)) \
	F(cudaStreamSynchronize_ptsz, (handle)) \
	F(cudaStreamQuery, (handle)) \
	F(cudaStreamWaitEvent, (handle, handle, unsigned)) \
	F(cudaStreamGetFlags, (handle, unsigned *)) \
	F(cudaStreamIsCapturing, (handle, int *)) \
	F(cudaStreamAddCallback, (handle, void (*)(handle, int, void *), void *, unsigned)) \
	F(cudaLaunchHostFunc, (handle, void (*)(void *), void *)) \
	F(cudaEventCreate, (handle *)) \
	F(cudaEventCreateWithFlags, (handle *, unsigned)) \
	F(cudaEventRecord, (handle, handle)) \
	F(cudaEventQuery, (handle)) \
	F(cudaEventSynchronize, (handle)) \
	F(cudaEventElapsedTime, (float *, handle, handle)) \
	F(cudaEventDestroy, (handle)) \
	F(cudaIpcGetMemHandle, (struct ipc_handle *, void *)) \
	F(cudaIpcOpenMemHandle, (void *, struct ipc_handle, unsigned)) \
	F(cudaIpcCloseMemHandle, (void *)) \
	F(cudaGetDriverEntryPoint, (const char *, void *, uint64_t, int *)) \
	F(cudaGetDriverEntryPointByVersion, (const char *, void *, unsigned, uint64_t, int *)) \
	F(cudaGetExportTable, (void *, const void *)) \
	F(cudaGraphCreate, (handle *, unsigned)) \
	F(cudaLaunchKernel, (const void *, struct dim3, struct dim3, void **, size_t, handle)) \
	F(__cudaPushCallConfiguration, (struct dim3, struct dim3, size_t, handle)) \
	F(__cudaPopCallConfiguration, (struct dim3 *, struct dim3 *, size_t *, handle *)) \
	F(__cudaRegisterFunction, (void **, const char *, char *, const char *, int, void *, \
				   void *, void *, void *, int *))

RUNTIME_FUNCTIONS(DECLARE)
/* Of CUDA 13, where it is the only one, or of CUDA 12. */
static int (*cudaGetDeviceProperties_v2)(void *, int);
static const char *(*cudaGetErrorName)(int);
static const char *(*cudaGetErrorString)(int);
static void **(*__cudaRegisterFatBinary)(void *);
static void (*__cudaUnregisterFatBinary)(void **);

/* The version of CUDA that the library is for. */
static inline int runtime_version(void)
{
	const char *version = getenv("LIBCUDART_VERSION");
	return version ? atoi(version) : 12;
}

/* By its version, as a program asks that is linked to NVIDIA's. */
static inline void *runtime_function(const char *name)
{
	static void *library;
	static char file[40];
	snprintf(file, sizeof(file), "libcudart.so.%d", runtime_version());
	if (!library)
		library = dlopen(file, RTLD_NOW);
	if (!library) {
		printf("NOT %s: %s\n", file, dlerror());
		exit(1);
	}
	void *found = dlvsym(library, name, file);
	if (!found)
		fail(name);
	return found;
}

static inline void load_runtime(void)
{
	load_driver();
#define FIND_IN_RUNTIME(name, arguments) name = runtime_function(#name);
	RUNTIME_FUNCTIONS(FIND_IN_RUNTIME)
	cudaGetDeviceProperties_v2 = runtime_version() < 13
					     ? runtime_function("cudaGetDeviceProperties_v2")
					     : cudaGetDeviceProperties;
	cudaGetErrorName = runtime_function("cudaGetErrorName");
	cudaGetErrorString = runtime_function("cudaGetErrorString");
	__cudaRegisterFatBinary = runtime_function("__cudaRegisterFatBinary");
	__cudaUnregisterFatBinary = runtime_function("__cudaUnregisterFatBinary");
}

/* A row about a code of the runtime's. */
static inline void answers(int want, int got, const char *what)
{
	verdict(got == want, what, cudaGetErrorName(got), cudaGetErrorName(want), RUNTIME);
}

/* The ground that rows stand on. */
static inline void need(int got, const char *what)
{
	if (got) {
		printf("NOT %s: %s\n", what, cudaGetErrorName(got));
		exit(1);
	}
}

#endif
