/*
 * Streams, events, memory in their order, virtual memory, memory of other processes, and modules,
 * by NVIDIA's driver library on the software GPU.
 *
 * Without an argument the rows; with one, the part of another process: argv[1] is a handle of
 * memory that the first one filled.
 */
#include "driver.h"

#include <semaphore.h>
#include <spawn.h>

enum { LENGTH = 1 << 20, CHUNK = 2 << 20 };

static unsigned char *pinned;

static void held_up(void *semaphore)
{
	while (sem_wait(semaphore))
		;
}

static void calls_the_driver(void *place)
{
	*(int *)place = cuCtxSynchronize();
}

/* Long enough for calls that ought to wait for it to be wrong if they do not. */
static void doze(void *unused)
{
	(void)unused;
	usleep(50000);
}

static void note(void *place)
{
	++*(int *)place;
}

static void streams(void)
{
	handle stream, apart, event, late, garbage = (handle)0x5555;
	gpu_address address;
	sem_t gate;
	int noted = 0;
	float ms = -1;
	sem_init(&gate, 0, 0);
	must(cuMemHostAlloc((void **)&pinned, LENGTH, 0) || cuMemAlloc_v2(&address, LENGTH), "memory");
	must(cuStreamCreate(&stream, 0) || cuStreamCreate(&apart, 1), "streams");
	must(cuEventCreate(&event, 0) || cuEventCreate(&late, 0), "events");
	code(INVALID_VALUE, cuStreamCreate(&garbage, 64), "flags that are none");
	code(INVALID_HANDLE, cuStreamSynchronize((handle)0x5555), "garbage is no stream");
	code(INVALID_HANDLE, cuEventRecord((handle)0x5555, stream), "nor an event");
	code(INVALID_HANDLE, cuMemcpyDtoHAsync_v2(pinned, address, 1, (handle)0x5555),
	     "nothing is copied on it");
	code(CUDA_OK, cuEventQuery(event), "an event that was never recorded is reached");
	code(INVALID_HANDLE, cuEventElapsedTime(&ms, event, late), "but has no time");

	must(cuLaunchHostFunc(stream, held_up, &gate), "hold a stream up");
	must(cuMemsetD32Async(address, 0x01010101, LENGTH / 4, stream), "fill");
	memset(pinned, 9, LENGTH);
	must(cuMemcpyDtoHAsync_v2(pinned, address, LENGTH, stream), "copy");
	must(cuEventRecord(event, stream), "record");
	must(cuLaunchHostFunc(stream, note, &noted), "note");
	code(NOT_READY, cuStreamQuery(stream), "work is queued");
	code(NOT_READY, cuEventQuery(event), "an event is behind it");
	holds(GUIDE, pinned[0] == 9 && !noted, "nothing was done while the stream was held up");
	code(CUDA_OK, cuStreamQuery(apart), "another stream is free");
	must(cuStreamWaitEvent(apart, event, 0), "let it wait");
	must(cuEventRecord(late, apart), "record");
	code(NOT_READY, cuStreamQuery(apart), "now it waits");
	code(NOT_READY, cuEventElapsedTime(&ms, event, late), "no time yet");
	sem_post(&gate);
	code(CUDA_OK, cuStreamSynchronize(stream), "let it go on");
	holds(GUIDE, pinned[0] == 1 && pinned[LENGTH - 1] == 1 && noted == 1, "all in order");
	code(CUDA_OK, cuEventSynchronize(late), "the other goes on too");
	code(CUDA_OK, cuEventElapsedTime(&ms, event, late), "the time between");
	holds(GUIDE, ms >= 0, "is none before it");

	must(cuLaunchHostFunc(stream, held_up, &gate), "hold it up again");
	must(cuLaunchHostFunc(NULL, note, &noted), "the default stream");
	code(NOT_READY, cuStreamQuery(NULL), "the default stream waits for it");
	must(cuLaunchHostFunc(apart, note, &noted) || cuStreamSynchronize(apart), "a stream apart");
	equal(GUIDE, 2, noted, "a stream apart does not");
	sem_post(&gate);
	code(CUDA_OK, cuCtxSynchronize(), "everything");
	equal(GUIDE, 3, noted, "is done");

	must(cuLaunchHostFunc(NULL, held_up, &gate), "hold the default stream up");
	code(CUDA_OK, cuStreamQuery(stream), "a stream with nothing in it is done");
	code(CUDA_OK, cuStreamSynchronize(stream), "and waits for nothing");
	must(cuMemsetD32Async(address, 0x02020202, LENGTH / 4, stream), "fill");
	code(NOT_READY, cuStreamQuery(stream), "what it is given waits");
	sem_post(&gate);
	code(CUDA_OK, cuStreamSynchronize(stream), "for that");

	must(cuLaunchHostFunc(stream, held_up, &gate), "hold it up");
	must(cuLaunchHostFunc(stream, note, &noted), "note");
	code(CUDA_OK, cuStreamDestroy_v2(stream), "destroy it with work in it");
	code(INVALID_HANDLE, cuStreamQuery(stream), "it is no stream any more");
	sem_post(&gate);
	code(CUDA_OK, cuCtxSynchronize(), "everything");
	equal(GUIDE, 4, noted, "is still done");
	must(cuLaunchHostFunc(apart, calls_the_driver, &noted) || cuStreamSynchronize(apart), "call");
	code(NOT_PERMITTED, noted, "a stream's function may not call the driver");
	code(CUDA_OK, cuEventDestroy_v2(event), "destroy an event");
	code(INVALID_HANDLE, cuEventQuery(event), "it is none any more");
	must(cuMemFree_v2(address) || cuStreamDestroy_v2(apart), "free");
}

static void pools(void)
{
	gpu_address address;
	handle stream, pool;
	uint64_t used = 1;
	must(cuStreamCreate(&stream, 0) || cuDeviceGetDefaultMemPool(&pool, 0), "stream and pool");
	must(cuMemAllocAsync(&address, LENGTH, stream), "allocate");
	must(cuMemPoolGetAttribute(pool, 7, &used), "used");
	equal("CU_MEMPOOL_ATTR_USED_MEM_CURRENT", LENGTH, used, "bytes of the pool are used");
	must(cuMemsetD32Async(address, 0x05050505, LENGTH / 4, stream), "fill");
	must(cuMemcpyDtoHAsync_v2(pinned, address, LENGTH, stream), "copy");
	code(CUDA_OK, cuMemFreeAsync(address, stream), "free behind that");
	must(cuStreamSynchronize(stream), "wait");
	holds(GUIDE, pinned[LENGTH - 1] == 5, "it was there for the copy");
	code(INVALID_VALUE, cuMemcpyDtoH_v2(pinned, address, 1), "and is not now");
	must(cuMemPoolGetAttribute(pool, 7, &used), "used");
	equal(GUIDE, 0, used, "nothing is used");
	code(INVALID_VALUE, cuMemFreeAsync(address, stream), "free it again");

	size_t most, all;
	must(cuMemGetInfo_v2(&most, &all), "free memory");
	most = most / 4 * 3;
	must(cuMemAllocAsync(&address, most, stream) || cuLaunchHostFunc(stream, doze, NULL), "most");
	code(INVALID_VALUE, cuMemFreeAsync(address + 256, stream), "free what begins elsewhere");
	code(CUDA_OK, cuMemFreeAsync(address, stream), "free most of it, later");
	code(INVALID_VALUE, cuMemFreeAsync(address, stream), "free it twice");
	code(CUDA_OK, cuMemAllocAsync(&address, most, stream), "what is freed before is there");
	code(CUDA_OK, cuMemFree_v2(address), "free memory of a pool at once");
	must(cuMemPoolGetAttribute(pool, 7, &used), "used");
	equal(GUIDE, 0, used, "nothing is used");
	code(CUDA_OK, cuCtxSynchronize(), "the context lives");
	must(cuStreamDestroy_v2(stream), "destroy");
}

static void virtual_memory(void)
{
	struct allocation wanted = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
	struct access_of both = { { 1, 0 }, 3 }, other_device = { { 1, 1 }, 0 };
	uint64_t flags[2] = { 9, 9 };
	gpu_address space = 0, other = 0;
	size_t grain = 0;
	uint64_t one = 0, two = 0, imported = 0;
	int fd = -1;
	must(cuMemGetAllocationGranularity(&grain, &wanted, 0), "granularity");
	equal(GUIDE, CHUNK, grain, "granularity");
	code(INVALID_VALUE, cuMemAddressReserve(&space, 4096, 0, 0, 0), "too little to reserve");
	must(cuMemAddressReserve(&space, 2 * CHUNK, 0, 0, 0), "reserve");
	code(INVALID_VALUE, cuMemCreate(&one, 4096, &wanted, 0), "too little to create");
	must(cuMemCreate(&one, CHUNK, &wanted, 0) || cuMemCreate(&two, CHUNK, &wanted, 0), "create");
	code(CUDA_OK, cuMemMap(space, CHUNK, 0, one, 0), "map");
	code(INVALID_VALUE, cuMemMap(space, CHUNK, 0, two, 0), "map over it");
	code(INVALID_VALUE, cuMemMap(space + CHUNK, CHUNK, CHUNK, two, 0), "map beyond its end");
	code(INVALID_VALUE, cuMemMap(space + 2 * CHUNK, CHUNK, 0, two, 0), "map beyond the space");
	code(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, space, 2 * CHUNK, 1, 0),
	     "a dma-buf of what is mapped and what is not");
	code(CUDA_OK, cuMemMap(space + CHUNK, CHUNK, 0, two, 0), "map behind it");
	code(NOT_SUPPORTED, cuMemGetHandleForAddressRange(&fd, space, 2 * CHUNK, 1, 0),
	     "a dma-buf of two mappings");
	code(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, space, 3 * CHUNK, 1, 0),
	     "and of what is behind");
	code(INVALID_VALUE, cuMemsetD8_v2(space, 1, 1), "without access");
	code(CUDA_OK, cuMemSetAccess(space, 2 * CHUNK, &both, 1), "allow access");
	must(cuMemGetAccess(&flags[0], &both.location, space), "its flags");
	must(cuMemGetAccess(&flags[1], &other_device.location, space), "those of another device");
	holds(GUIDE, flags[0] == 3 && !flags[1], "only the device that was named may");
	code(CUDA_OK, cuMemSetAccess(space, 2 * CHUNK, &other_device, 1), "refuse another device");
	code(CUDA_OK, cuMemsetD8_v2(space, 6, 2 * CHUNK), "fill both");
	must(cuMemcpyDtoH_v2(pinned, space + CHUNK - 8, 16), "copy across");
	holds(GUIDE, pinned[0] == 6 && pinned[15] == 6, "from one to the other");
	code(CUDA_OK, cuMemExportToShareableHandle(&fd, one, 1, 0), "export");
	code(CUDA_OK, cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1), "import");
	close(fd);
	code(INVALID_VALUE, cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1),
	     "import nothing");
	code(CUDA_OK, cuMemGetHandleForAddressRange(&fd, space + CHUNK / 2, CHUNK / 2, 1, 0),
	     "a dma-buf of a part");
	code(INVALID_VALUE, cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1),
	     "is no shareable handle");
	close(fd);
	must(cuMemAddressReserve(&other, CHUNK, 0, 0, 0), "reserve");
	must(cuMemMap(other, CHUNK, 0, imported, 0) || cuMemSetAccess(other, CHUNK, &both, 1), "map");
	must(cuMemsetD8_v2(other, 7, 100) || cuMemcpyDtoH_v2(pinned, space, 101), "fill and copy");
	holds(GUIDE, pinned[0] == 7 && pinned[99] == 7 && pinned[100] == 6, "the same memory");
	code(INVALID_VALUE, cuMemAddressFree(space, 2 * CHUNK), "free addresses in use");
	code(INVALID_VALUE, cuMemUnmap(space, CHUNK / 2), "unmap a part");
	must(cuMemRelease(one) || cuMemRelease(two) || cuMemRelease(imported), "release");
	must(cuMemcpyDtoH_v2(pinned, space, 1), "mapped memory stays");
	code(CUDA_OK, cuMemUnmap(space, 2 * CHUNK), "unmap");
	code(INVALID_VALUE, cuMemcpyDtoH_v2(pinned, space, 1), "now it is gone");
	code(CUDA_OK, cuMemAddressFree(space, 2 * CHUNK), "free the addresses");
	must(cuMemUnmap(other, CHUNK) || cuMemAddressFree(other, CHUNK), "the others");
	code(INVALID_VALUE, cuMemRelease(one), "release again");
}

/* As NCCL frees: it finds the handle by the address, and releases it as often as it holds it. */
static void handles_of_addresses(void)
{
	struct allocation plain = { .type = 1, .location = { 1, 0 } }, shared = plain, found;
	struct access_of both = { { 1, 0 }, 3 };
	gpu_address space = 0;
	uint64_t memory = 0, again = 0, kinds = 9;
	size_t before, after, all;
	int fd = -1;
	shared.handle_types = shared.rdma = 1;
	must(cuMemGetInfo_v2(&before, &all), "free memory");
	must(cuMemAddressReserve(&space, 2 * CHUNK, 0, 0, 0), "reserve");
	must(cuMemCreate(&memory, CHUNK, &plain, 0), "create");
	code(INVALID_VALUE, cuMemRetainAllocationHandle(&again, space), "nothing is mapped");
	must(cuMemMap(space, CHUNK, 0, memory, 0), "map");
	code(INVALID_VALUE, cuMemSetAccess(space, CHUNK, &both, 0), "access of no device");
	code(CUDA_OK, cuMemRetainAllocationHandle(&again, space + 5), "the handle of an address");
	holds(GUIDE, again == memory, "is the one that it was mapped by");
	code(CUDA_OK, cuMemRelease(again), "release it");
	code(CUDA_OK, cuMemRelease(memory), "as often as it was held");
	code(INVALID_VALUE, cuMemRelease(memory), "and no more");
	code(CUDA_OK, cuMemRetainAllocationHandle(&again, space), "hold what is only mapped");
	holds(GUIDE, again == memory, "by the same handle");
	code(INVALID_VALUE, cuMemExportToShareableHandle(&fd, memory, 1, 0),
	     "export what was not made for that");
	must(cuMemGetAllocationPropertiesFromHandle(&found, memory), "properties");
	holds(GUIDE, !found.handle_types && !found.rdma, "are those that were asked for");
	must(cuPointerGetAttribute(&kinds, 14, space), "kinds of handles");
	equal(GUIDE, 0, kinds, "kinds of handles are allowed");
	must(cuMemUnmap(space, CHUNK) || cuMemRelease(memory), "unmap and release");
	must(cuMemGetInfo_v2(&after, &all), "free memory");
	equal(GUIDE, before, after, "bytes are free again");

	must(cuMemCreate(&memory, CHUNK, &shared, 0), "create");
	must(cuMemMap(space, CHUNK, 0, memory, 0) || cuMemRelease(memory), "map");
	must(cuMemRetainAllocationHandle(&again, space), "hold");
	must(cuMemGetAllocationPropertiesFromHandle(&found, again), "properties");
	holds(GUIDE, found.handle_types == 1 && found.rdma == 1, "are those of the other kind");
	code(CUDA_OK, cuMemExportToShareableHandle(&fd, again, 1, 0), "which is exported");
	close(fd);
	must(cuMemUnmap(space, CHUNK) || cuMemRelease(again), "unmap and release");
	must(cuMemAddressFree(space, 2 * CHUNK), "free the addresses");
}

static void other_process(const char *program)
{
	extern char **environ;
	gpu_address address, second;
	struct ipc_handle shared;
	char text[129];
	int status = -1;
	pid_t child;
	must(cuMemAlloc_v2(&address, LENGTH) || cuMemsetD8_v2(address, 0x21, LENGTH), "memory");
	code(INVALID_VALUE, cuIpcGetMemHandle(&shared, (uintptr_t)pinned), "host memory is not shared");
	code(CUDA_OK, cuIpcGetMemHandle(&shared, address), "a handle");
	code(INVALID_CONTEXT, cuIpcOpenMemHandle_v2(&second, shared, 1), "of this process itself");
	to_text(&shared, text);
	char *arguments[] = { (char *)program, text, NULL };
	if (posix_spawn(&child, program, NULL, NULL, arguments, environ))
		fail("another process");
	waitpid(child, &status, 0);
	equal(GUIDE, 0, status, "another process finds it");
	must(cuMemcpyDtoH_v2(pinned, address, LENGTH), "copy");
	holds(GUIDE, pinned[0] == 0x42 && pinned[LENGTH - 1] == 0x42, "and this one what that wrote");
	must(cuMemFree_v2(address), "free");
}

static int visitor(const char *text)
{
	struct ipc_handle shared, wrong;
	gpu_address address, again;
	unsigned char byte = 0;
	begin();
	shared = from_text(text);
	wrong = shared;
	wrong.bytes[20] ^= 1;
	code(INVALID_HANDLE, cuIpcOpenMemHandle_v2(&address, wrong, 1), "a handle that is none");
	code(CUDA_OK, cuIpcOpenMemHandle_v2(&address, shared, 1), "open it");
	must(cuMemcpyDtoH_v2(&byte, address + LENGTH - 1, 1), "copy");
	equal(GUIDE, 0x21, byte, "what the other filled");
	must(cuMemsetD8_v2(address, 0x42, LENGTH), "fill");
	code(CUDA_OK, cuIpcOpenMemHandle_v2(&again, shared, 1), "open it again");
	holds(GUIDE, again == address, "at the same address");
	code(CUDA_OK, cuIpcCloseMemHandle(address), "close it");
	code(CUDA_OK, cuMemcpyDtoH_v2(&byte, address, 1), "it is there until it is closed");
	code(CUDA_OK, cuIpcCloseMemHandle(address), "as often as it was opened");
	code(INVALID_VALUE, cuIpcCloseMemHandle(address), "and no more");
	code(INVALID_VALUE, cuMemcpyDtoH_v2(&byte, address, 1), "now it is gone");
	code(CUDA_OK, cuIpcOpenMemHandle_v2(&address, shared, 1), "open it anew");
	return finish();
}

static void modules(void)
{
	handle module, function;
	code(200, cuModuleLoadData(&module, "no image at all, nor anything like it"), "no image");
	must(cuModuleLoadData(&module, ".version 8.0\n.target sm_90\n.visible .entry twice(\n)\n{ret;}"),
	     "load PTX");
	code(NOT_FOUND, cuModuleGetFunction(&function, module, "thrice"), "a kernel that is not there");
	code(CUDA_OK, cuModuleGetFunction(&function, module, "twice"), "one that is");
	code(NOT_SUPPORTED, cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch it");
	code(INVALID_HANDLE, cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL),
	     "launch nothing");
}

int main(int argc, char **argv)
{
	if (argc == 2)
		return visitor(argv[1]);
	begin();
	streams();
	pools();
	virtual_memory();
	handles_of_addresses();
	other_process(argv[0]);
	modules();
	return finish();
}
