/*
 * What CUDA 13 changed in the runtime, by its own headers and linked to its own library: the
 * structures and arguments that another meaning would show in, and functions that it added.
 */
#include "rows.h"

#include <cuda_runtime_api.h>

#define RUNTIME "cuda_runtime_api.h"

enum { LENGTH = 1 << 16 };

static unsigned char back[LENGTH];

static void answers(cudaError_t want, cudaError_t got, const char *what)
{
	verdict(got == want, what, cudaGetErrorName(got), cudaGetErrorName(want), RUNTIME);
}

/* The ground that rows stand on. */
static void need(cudaError_t got, const char *what)
{
	if (got) {
		printf("NOT %s: %s\n", what, cudaGetErrorName(got));
		exit(1);
	}
}

static struct cudaMemLocation at(enum cudaMemLocationType type, int id)
{
	return (struct cudaMemLocation){ .type = type, .id = id };
}

static void versions(void)
{
	int version = 0, driver = 0;
	answers(0, cudaRuntimeGetVersion(&version), "the version of the interface");
	equal(RUNTIME, CUDART_VERSION, version, "is that of the headers");
	answers(0, cudaDriverGetVersion(&driver), "the driver's");
	holds(RUNTIME, driver >= version, "is as new");
	answers(cudaErrorInvalidValue, cudaRuntimeGetVersion(NULL), "no place for it");
	const char *name = cudaGetErrorName(cudaErrorFabricNotReady);
	holds(RUNTIME, !strcmp(name, "cudaErrorFabricNotReady"), "a code that is new");
	name = cudaGetErrorName(cudaErrorVersionTranslation);
	holds(RUNTIME, !strcmp(name, "cudaErrorVersionTranslation"), "and another");
	cudaGetLastError();
}

/* An attribute of the second device. */
static long attribute(enum cudaDeviceAttr which)
{
	int value = 0;
	need(cudaDeviceGetAttribute(&value, which, 1), "an attribute");
	return value;
}

#define PROPERTIES(F) \
	F(sharedMemPerBlock, cudaDevAttrMaxSharedMemoryPerBlock) \
	F(regsPerBlock, cudaDevAttrMaxRegistersPerBlock) \
	F(warpSize, cudaDevAttrWarpSize) \
	F(memPitch, cudaDevAttrMaxPitch) \
	F(maxThreadsPerBlock, cudaDevAttrMaxThreadsPerBlock) \
	F(maxThreadsDim[2], cudaDevAttrMaxBlockDimZ) \
	F(maxGridSize[0], cudaDevAttrMaxGridDimX) \
	F(totalConstMem, cudaDevAttrTotalConstantMemory) \
	F(major, cudaDevAttrComputeCapabilityMajor) \
	F(minor, cudaDevAttrComputeCapabilityMinor) \
	F(textureAlignment, cudaDevAttrTextureAlignment) \
	F(texturePitchAlignment, cudaDevAttrTexturePitchAlignment) \
	F(multiProcessorCount, cudaDevAttrMultiProcessorCount) \
	F(integrated, cudaDevAttrIntegrated) \
	F(canMapHostMemory, cudaDevAttrCanMapHostMemory) \
	F(maxTexture1D, cudaDevAttrMaxTexture1DWidth) \
	F(maxTexture1DMipmap, cudaDevAttrMaxTexture1DMipmappedWidth) \
	F(maxTexture2D[1], cudaDevAttrMaxTexture2DHeight) \
	F(maxTexture3D[0], cudaDevAttrMaxTexture3DWidth) \
	F(maxTextureCubemap, cudaDevAttrMaxTextureCubemapWidth) \
	F(maxSurface1D, cudaDevAttrMaxSurface1DWidth) \
	F(maxSurfaceCubemapLayered[1], cudaDevAttrMaxSurfaceCubemapLayeredLayers) \
	F(surfaceAlignment, cudaDevAttrSurfaceAlignment) \
	F(concurrentKernels, cudaDevAttrConcurrentKernels) \
	F(ECCEnabled, cudaDevAttrEccEnabled) \
	F(pciBusID, cudaDevAttrPciBusId) \
	F(pciDeviceID, cudaDevAttrPciDeviceId) \
	F(pciDomainID, cudaDevAttrPciDomainId) \
	F(tccDriver, cudaDevAttrTccDriver) \
	F(asyncEngineCount, cudaDevAttrAsyncEngineCount) \
	F(unifiedAddressing, cudaDevAttrUnifiedAddressing) \
	F(memoryBusWidth, cudaDevAttrGlobalMemoryBusWidth) \
	F(l2CacheSize, cudaDevAttrL2CacheSize) \
	F(persistingL2CacheMaxSize, cudaDevAttrMaxPersistingL2CacheSize) \
	F(maxThreadsPerMultiProcessor, cudaDevAttrMaxThreadsPerMultiProcessor) \
	F(streamPrioritiesSupported, cudaDevAttrStreamPrioritiesSupported) \
	F(sharedMemPerMultiprocessor, cudaDevAttrMaxSharedMemoryPerMultiprocessor) \
	F(managedMemory, cudaDevAttrManagedMemory) \
	F(pageableMemoryAccess, cudaDevAttrPageableMemoryAccess) \
	F(concurrentManagedAccess, cudaDevAttrConcurrentManagedAccess) \
	F(cooperativeLaunch, cudaDevAttrCooperativeLaunch) \
	F(sharedMemPerBlockOptin, cudaDevAttrMaxSharedMemoryPerBlockOptin) \
	F(maxBlocksPerMultiProcessor, cudaDevAttrMaxBlocksPerMultiprocessor) \
	F(accessPolicyMaxWindowSize, cudaDevAttrMaxAccessPolicyWindowSize) \
	F(reservedSharedMemPerBlock, cudaDevAttrReservedSharedMemoryPerBlock) \
	F(hostRegisterSupported, cudaDevAttrHostRegisterSupported) \
	F(memoryPoolsSupported, cudaDevAttrMemoryPoolsSupported) \
	F(gpuDirectRDMASupported, cudaDevAttrGPUDirectRDMASupported) \
	F(gpuDirectRDMAFlushWritesOptions, cudaDevAttrGPUDirectRDMAFlushWritesOptions) \
	F(gpuDirectRDMAWritesOrdering, cudaDevAttrGPUDirectRDMAWritesOrdering) \
	F(ipcEventSupported, cudaDevAttrIpcEventSupport) \
	F(clusterLaunch, cudaDevAttrClusterLaunch) \
	F(deviceNumaConfig, cudaDevAttrNumaConfig) \
	F(deviceNumaId, cudaDevAttrNumaId) \
	F(mpsEnabled, cudaDevAttrMpsEnabled) \
	F(hostNumaId, cudaDevAttrHostNumaId) \
	F(gpuPciDeviceID, cudaDevAttrGpuPciDeviceId) \
	F(gpuPciSubsystemID, cudaDevAttrGpuPciSubsystemId) \
	F(hostNumaMultinodeIpcSupported, cudaDevAttrHostNumaMultinodeIpcSupported)

static void properties(void)
{
	struct {
		struct cudaDeviceProp of;
		unsigned char behind[8];
	} found;
	memset(&found, 0xee, sizeof(found));
	answers(0, cudaGetDeviceProperties(&found.of, 1), "properties");
#define SAME(field, number) equal(RUNTIME, attribute(number), (long)found.of.field, #field);
	PROPERTIES(SAME)
	equal("the default platform", 0x98, found.of.pciBusID, "the second device");
	size_t reserved = sizeof(found.of.reserved) / sizeof(found.of.reserved[0]);
	for (size_t i = 0; i < reserved; i++)
		if (found.of.reserved[i])
			equal(RUNTIME, 0, found.of.reserved[i], "a reserved field");
	equal(RUNTIME, 0xee, found.behind[0], "no more is filled");
	answers(cudaErrorInvalidDevice, cudaGetDeviceProperties(&found.of, -1), "no device");
	answers(cudaErrorInvalidValue, cudaGetDeviceProperties(NULL, 0), "no place for them");
}

static void addresses(void)
{
	struct {
		struct cudaPointerAttributes of;
		unsigned char behind[8];
	} found;
	void *memory;
	need(cudaMalloc(&memory, 64), "memory");
	memset(&found, 0xee, sizeof(found));
	answers(0, cudaPointerGetAttributes(&found.of, memory), "ask about an address");
	equal(RUNTIME, cudaMemoryTypeDevice, found.of.type, "of a device");
	holds(RUNTIME, found.of.devicePointer == memory, "where it is");
	equal(RUNTIME, -1, found.of.localityDomainOrdinal, "in no part of it");
	for (size_t i = 0; i < sizeof(found.of.reserved) / sizeof(long); i++)
		if (found.of.reserved[i])
			equal(RUNTIME, 0, found.of.reserved[i], "a reserved field");
	equal(RUNTIME, 0xee, found.behind[0], "no more is filled");
	answers(cudaErrorInvalidValue, cudaPointerGetAttributes(NULL, memory), "no place for them");
	need(cudaFree(memory), "free");
}

static void managed(void)
{
	unsigned char *memory;
	cudaStream_t stream;
	struct cudaMemLocation device = at(cudaMemLocationTypeDevice, 0);
	struct cudaMemLocation host = at(cudaMemLocationTypeHost, 0);
	need(cudaMallocManaged((void **)&memory, LENGTH, cudaMemAttachGlobal), "managed memory");
	need(cudaStreamCreate(&stream), "stream");
	memset(memory, 0x5a, LENGTH);
	answers(0, cudaMemAdvise(memory, LENGTH, cudaMemAdviseSetPreferredLocation, device),
		"advice about a place");
	answers(0, cudaMemPrefetchAsync(memory, LENGTH, device, 0, stream), "bring it there");
	answers(0, cudaMemPrefetchAsync(memory, LENGTH, host, 0, stream), "and back");
	answers(0, cudaStreamSynchronize(stream), "which is done");
	equal(RUNTIME, 0x5a, memory[LENGTH - 1], "the bytes are there");
	answers(cudaErrorInvalidValue, cudaMemPrefetchAsync(back, LENGTH, device, 0, stream),
		"no managed memory");
	answers(cudaErrorInvalidDevice,
		cudaMemPrefetchAsync(memory, LENGTH, at(cudaMemLocationTypeDevice, 9), 0, stream),
		"no device");
	need(cudaFree(memory) || cudaStreamDestroy(stream), "end");
}

static void add_one(void *to)
{
	++*(int *)to;
}

static void streams(void)
{
	cudaStream_t stream;
	cudaEvent_t start, end;
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusActive;
	int count = 0;
	float ms = -1;
	need(cudaStreamCreate(&stream) || cudaEventCreate(&start) || cudaEventCreate(&end),
	     "a stream and events");
	answers(0, cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, NULL, NULL, NULL),
		"what is captured");
	equal(RUNTIME, cudaStreamCaptureStatusNone, status, "nothing");
	answers(cudaErrorInvalidValue,
		cudaStreamGetCaptureInfo(stream, NULL, NULL, NULL, NULL, NULL, NULL),
		"no place for the answer");
	need(cudaEventRecord(start, stream), "record");
	answers(0, cudaLaunchHostFunc_v2(stream, add_one, &count, cudaHostTaskBlocking),
		"call a function");
	answers(0, cudaLaunchHostFunc_v2(stream, add_one, &count, cudaHostTaskSpinWait),
		"wait for it otherwise");
	answers(cudaErrorInvalidValue, cudaLaunchHostFunc_v2(stream, add_one, &count, 2),
		"in no way that there is");
	need(cudaEventRecord(end, stream) || cudaStreamSynchronize(stream), "the end");
	equal(RUNTIME, 2, count, "both were called");
	answers(0, cudaEventElapsedTime(&ms, start, end), "the time between");
	holds(RUNTIME, ms >= 0 && ms < 60000, "is short");
	need(cudaStreamDestroy(stream) || cudaEventDestroy(start) || cudaEventDestroy(end), "end");
	answers(cudaErrorInvalidResourceHandle,
		cudaLaunchHostFunc_v2(stream, add_one, &count, 0), "a stream that was");
}

static void pools(void)
{
	struct cudaMemLocation device = at(cudaMemLocationTypeDevice, 1);
	struct cudaMemLocation host = at(cudaMemLocationTypeHost, 0);
	struct cudaMemLocation nowhere = at(cudaMemLocationTypeDevice, 9);
	struct cudaMemLocation invalid = at(77, 0);
	enum cudaMemAllocationType pinned = cudaMemAllocationTypePinned;
	struct cudaMemPoolProps wanted = { .allocType = pinned, .location = device };
	cudaMemPool_t first = NULL, found = NULL, own;
	need(cudaDeviceGetDefaultMemPool(&first, 1), "a pool");
	answers(0, cudaMemGetDefaultMemPool(&found, &device, pinned), "the pool of a place");
	holds(RUNTIME, first == found, "is the device's");
	need(cudaMemPoolCreate(&own, &wanted), "another pool");
	answers(0, cudaMemSetMemPool(&device, pinned, own), "is made that of the place");
	answers(0, cudaMemGetMemPool(&found, &device, pinned), "which");
	holds(RUNTIME, found == own, "it is");
	answers(0, cudaMemSetMemPool(&device, pinned, first), "and not any more");
	answers(cudaErrorNotSupported, cudaMemGetMemPool(&found, &host, pinned), "the host's");
	answers(cudaErrorInvalidDevice, cudaMemGetMemPool(&found, &nowhere, pinned), "no device's");
	answers(cudaErrorInvalidValue, cudaMemGetMemPool(&found, &invalid, pinned), "no place's");
	answers(cudaErrorInvalidValue, cudaMemGetMemPool(&found, NULL, pinned), "of nothing");
	answers(cudaErrorInvalidValue, cudaMemGetMemPool(&found, &device, 99), "of no kind");
	answers(cudaErrorInvalidValue, cudaMemGetMemPool(NULL, &device, pinned), "no place for it");
	need(cudaMemPoolDestroy(own), "end");
}

static void entry_points(void)
{
	enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	void *function = NULL;
	answers(0,
		cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 13000,
						 cudaEnableDefault, &found),
		"a function of the driver");
	holds(RUNTIME, function && found == cudaDriverEntryPointSuccess, "is found");
	answers(0,
		cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &function, 11000,
						 cudaEnableDefault, &found),
		"one that is newer");
	holds(RUNTIME, !function && found == cudaDriverEntryPointVersionNotSufficent, "is not");
}

static cudaError_t copy(void *const *to, const void *const *from, const size_t *bytes,
			struct cudaMemcpyAttributes *how, size_t first, cudaStream_t stream)
{
	size_t firsts[] = { first, 2 };
	return cudaMemcpyBatchAsync(to, from, bytes, 3, how, firsts, 2, stream);
}

static void batches(void)
{
	static unsigned char source[3][LENGTH];
	struct cudaMemcpyAttributes how[] = {
		{ .srcAccessOrder = cudaMemcpySrcAccessOrderStream },
		{ .srcAccessOrder = cudaMemcpySrcAccessOrderDuringApiCall,
		  .flags = cudaMemcpyFlagPreferOverlapWithCompute },
	};
	size_t bytes[] = { LENGTH, LENGTH, LENGTH };
	const void *from[3];
	unsigned char *pinned;
	void *to[3];
	cudaStream_t stream;
	need(cudaStreamCreate(&stream) || cudaMallocHost((void **)&pinned, LENGTH), "a stream");
	for (int i = 0; i < 3; i++) {
		memset(source[i], 0x41 + i, LENGTH);
		need(cudaMalloc(&to[i], LENGTH), "memory");
		from[i] = source[i];
	}
	memcpy(pinned, source[2], LENGTH);
	from[2] = pinned;
	answers(0, copy(to, from, bytes, how, 0, stream), "three copies at once");
	memset(pinned, 0, LENGTH);
	for (int i = 0; i < 3; i++) {
		need(cudaMemcpyAsync(back, to[i], LENGTH, cudaMemcpyDefault, stream), "copy");
		need(cudaStreamSynchronize(stream), "wait");
		holds(RUNTIME, !memcmp(back, source[i], LENGTH), "all of its bytes");
	}
	answers(0, cudaMemcpyWithAttributesAsync(to[0], to[1], LENGTH, &how[1], stream), "one");
	need(cudaMemcpy(back, to[0], LENGTH, cudaMemcpyDefault), "copy");
	equal(RUNTIME, 0x42, back[LENGTH - 1], "is done when the call ends");
	answers(cudaErrorInvalidValue, copy(to, from, bytes, how, 0, NULL), "the stream of all");
	answers(cudaErrorInvalidValue, copy(to, from, bytes, how, 1, stream), "a first without");
	answers(cudaErrorInvalidValue, copy(to, from, bytes, NULL, 0, stream), "no attributes");
	answers(cudaErrorInvalidValue, copy(NULL, from, bytes, how, 0, stream), "no destinations");
	answers(cudaErrorInvalidValue,
		cudaMemcpyBatchAsync(to, from, bytes, 1, how, bytes, 2, stream),
		"more attributes than copies");
	bytes[1]++;
	answers(cudaErrorInvalidValue, copy(to, from, bytes, how, 0, stream), "beyond the end");
	how[0].srcAccessOrder = cudaMemcpySrcAccessOrderInvalid;
	answers(cudaErrorInvalidValue,
		cudaMemcpyWithAttributesAsync(to[0], to[1], 1, &how[0], stream), "no order");
	answers(cudaErrorInvalidValue, cudaMemcpyWithAttributesAsync(to[0], to[1], 1, NULL, stream),
		"nothing about it");
	for (int i = 0; i < 3; i++)
		need(cudaFree(to[i]), "free");
	need(cudaFreeHost(pinned) || cudaStreamDestroy(stream), "end");
}

/* Each is asked for twice, and named once where the log says it. */
static void not_there(void)
{
	struct cudaMemcpy3DBatchOp copy = { 0 };
	cudaExecutionContext_t context;
	for (int time = 0; time < 2; time++) {
		answers(cudaErrorNotSupported, cudaDeviceGetExecutionCtx(&context, 0),
			"execution contexts are not there");
		answers(cudaErrorNotSupported, cudaMemcpy3DBatchAsync(1, &copy, 0, NULL),
			"nor are batches of boxes");
	}
	answers(cudaErrorNotSupported, cudaPeekAtLastError(), "which is the last error");
	answers(cudaErrorNotSupported, cudaGetLastError(), "and is taken");
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	versions();
	properties();
	addresses();
	managed();
	streams();
	pools();
	entry_points();
	batches();
	not_there();
	return finish();
}
