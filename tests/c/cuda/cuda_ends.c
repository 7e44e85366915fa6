/*
 * CUDA's memory and streams where something comes to its end: a context, while another thread uses
 * it; the process, whose exit handlers give back what they have; what a child has of it all; and
 * what has no end, or is nothing.
 *
 * With an argument: where the system's memory ends.
 */
#include "runtime.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

enum { PAGE = 4096, CHUNK = 2 << 20, INVALID_IMAGE = 200 };

static void registered_memory(void)
{
	char *own = mmap(NULL, 3 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (own == MAP_FAILED || munmap(own + PAGE, PAGE))
		fail("memory with a hole");
	answers(INVALID_VALUE, cudaHostRegister(own, 3 * PAGE, 0), "register memory with a hole");
	answers(CUDA_OK, cudaHostRegister(own + 100, PAGE - 100, 0), "register what is before it");
	answers(CUDA_OK, cudaHostUnregister(own + 100), "unregister that");
	munmap(own, 3 * PAGE);
	answers(INVALID_VALUE, cudaHostRegister(own, PAGE, 0), "register nothing");
}

/* Registered memory is unmapped and stays registered; its addresses become a GPU's. */
static void forgotten_memory(void)
{
	enum { PAGES = 16384, AGAIN = 256 };
	struct allocation wanted = { .type = 1, .location = { 1, 0 } };
	gpu_address space = 0, address = 0;
	uint64_t memory = 0;
	int wrong_pages = 0;
	char *own = mmap(NULL, (size_t)PAGES * PAGE, PROT_READ | PROT_WRITE,
			 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (own == MAP_FAILED)
		fail("memory");
	for (size_t i = 0; i < PAGES; i += 2)
		need(cudaHostRegister(own + i * PAGE, PAGE, 0), "register");
	munmap(own, (size_t)PAGES * PAGE);
	must(cuMemAlloc_v2(&address, AGAIN * PAGE), "memory");
	for (int i = 0; i < AGAIN; i++)
		wrong_pages += cuMemsetD8_v2(address + i * PAGE, 1, PAGE) != CUDA_OK;
	equal(GUIDE, 0, wrong_pages, "pages are not the GPU's");
	must(cuMemAddressReserve(&space, CHUNK, 0, 0, 0), "reserve");
	must(cuMemCreate(&memory, CHUNK, &wanted, 0), "create");
	code(CUDA_OK, cuMemMap(space, CHUNK, 0, memory, 0), "map where something was registered");
	must(cuMemUnmap(space, CHUNK) || cuMemRelease(memory), "unmap and release");
	must(cuMemAddressFree(space, CHUNK) || cuMemFree_v2(address), "free");
	need(cudaDeviceReset(), "forget the rest");
}

static void pools(void)
{
	struct access_of other = { { 1, 1 }, 3 };
	struct location own = { 1, 0 }, none = { 1, 77 };
	handle pool;
	int flags = -1;
	need(cudaDeviceGetDefaultMemPool(&pool, 0), "pool");
	need(cudaMemPoolGetAccess(&flags, pool, &own), "access of its device");
	equal(RUNTIME, 3, flags, "its device has access to a pool");
	need(cudaMemPoolGetAccess(&flags, pool, &other.location), "access of another");
	equal(RUNTIME, 0, flags, "another has none");
	answers(CUDA_OK, cudaMemPoolSetAccess(pool, &other, 1), "until it is allowed");
	need(cudaMemPoolGetAccess(&flags, pool, &other.location), "access of another");
	equal(RUNTIME, 3, flags, "then it has");
	answers(INVALID_DEVICE, cudaMemPoolGetAccess(&flags, pool, &none), "a device that is none");
	answers(INVALID_VALUE, cudaMemPoolGetAccess(&flags, pool, NULL), "no device");
	answers(INVALID_VALUE, cudaMemPoolSetAccess(pool, NULL, 1), "access of none");
	other.flags = 2;
	answers(INVALID_VALUE, cudaMemPoolSetAccess(pool, &other, 1), "flags that are none");
}

static void boxes_of_nothing(void)
{
	struct pitched nowhere = { NULL, 0, 0, 0 };
	struct extent endless = { 0, 1, 1ul << 63 };
	answers(CUDA_OK, cudaMemset3D(nowhere, 0, endless), "fill nothing, very often");
}

/* The wrapper of a fatbin, around itself. */
static void images(void)
{
	uint64_t wrapper[4] = { 0x466243b1, (uintptr_t)wrapper };
	handle module;
	code(INVALID_IMAGE, cuModuleLoadData(&module, wrapper), "an image that is within itself");
}

/* The line that names a kernel goes where nobody reads any more. */
static void unread_lines(void)
{
	struct dim3 one = { 1, 1, 1 };
	int ends[2], before = dup(2);
	if (before < 0 || pipe(ends) || dup2(ends[1], 2) < 0)
		fail("a pipe for stderr");
	close(ends[0]);
	close(ends[1]);
	answers(NOT_SUPPORTED, cudaLaunchKernel("nobody's", one, one, NULL, 0, NULL),
		"a kernel that nobody hears of");
	dup2(before, 2);
	close(before);
}

/* Whether a process has something mapped at an address. */
static int has(gpu_address address)
{
	unsigned char resident;
	return !mincore((void *)(uintptr_t)address, PAGE, &resident);
}

static void children(void)
{
	struct allocation wanted = { .type = 1, .location = { 1, 0 } };
	gpu_address space = 0;
	uint64_t memory = 0;
	int status = -1;
	must(cuMemAddressReserve(&space, CHUNK, 0, 0, 0), "reserve");
	must(cuMemCreate(&memory, CHUNK, &wanted, 0) || cuMemMap(space, CHUNK, 0, memory, 0), "map");
	holds(GUIDE, has(space), "a process has what it mapped");
	pid_t child = fork();
	if (!child)
		_exit(has(space));
	waitpid(child, &status, 0);
	equal(GUIDE, 0, status, "a child has not");
	must(cuMemUnmap(space, CHUNK) || cuMemRelease(memory), "unmap");
	must(cuMemAddressFree(space, CHUNK), "free");
}

static int goes_on = 1;

static void *resets(void *unused)
{
	(void)unused;
	while (__atomic_load_n(&goes_on, __ATOMIC_SEQ_CST))
		cudaDeviceReset();
	return NULL;
}

/* What is made in a context that ends at the same time goes with it, or is refused. */
static void reset_meanwhile(void)
{
	size_t left = 0, all = 1;
	pthread_t thread;
	void *at;
	handle stream, event, pool;
	uint64_t used = 9;
	if (pthread_create(&thread, NULL, resets, NULL))
		fail("a thread");
	for (int i = 0; i < 400; i++) {
		cudaMalloc(&at, PAGE);
		cudaMallocAsync(&at, PAGE, NULL);
		cudaStreamCreate(&stream);
		cudaEventCreate(&event);
	}
	__atomic_store_n(&goes_on, 0, __ATOMIC_SEQ_CST);
	pthread_join(thread, NULL);
	answers(CUDA_OK, cudaDeviceReset(), "reset");
	need(cudaMemGetInfo(&left, &all), "free memory");
	equal(RUNTIME, all, left, "bytes are free");
	need(cudaDeviceGetDefaultMemPool(&pool, 0), "pool");
	must(cuMemPoolGetAttribute(pool, 7, &used), "used");
	equal(RUNTIME, 0, used, "bytes of the pool are used");
}

static void *kept;
static handle kept_stream;

static void at_exit(void)
{
	size_t left, all;
	answers(CUDA_OK, cudaMemsetAsync(kept, 1, PAGE, kept_stream), "fill as the process ends");
	answers(CUDA_OK, cudaStreamSynchronize(kept_stream), "wait for it");
	answers(CUDA_OK, cudaStreamDestroy(kept_stream), "destroy a stream");
	answers(CUDA_OK, cudaFree(kept), "free memory");
	answers(CUDA_OK, cudaMemGetInfo(&left, &all), "free memory");
	holds(RUNTIME, left == all, "is all that there is");
	_exit(finish());
}

/* Blocks of which no more are to be had, each with the one before. */
static void *take_all(void)
{
	void **last = NULL, **block;
	for (size_t size = 64 << 10; size >= 24; size /= 2)
		while ((block = malloc(size))) {
			*block = last;
			last = block;
		}
	return last;
}

static void give_all(void *last)
{
	while (last) {
		void *before = *(void **)last;
		free(last);
		last = before;
	}
}

static void nothing(void *unused)
{
	(void)unused;
}

/* What a call answers first that is no success, of many. */
#define REFUSAL(call) \
	({ \
		int got_ = 0; \
		for (int i_ = 0; i_ < 5000 && !got_; i_++) \
			got_ = (call); \
		got_; \
	})

static int little_memory(void)
{
	static char elf[PAGE] = "\x7f" "ELF\2\1";
	uint64_t far = 1ul << 40;
	struct rlimit limit;
	handle stream, made, pool;
	void *at, *device, *pinned;
	unsigned long pages = 0;
	load_runtime();
	need(cudaStreamCreate(&stream) || cudaMalloc(&device, PAGE), "stream and memory");
	need(cudaMallocHost(&pinned, PAGE) || cudaDeviceGetDefaultMemPool(&pool, 0), "memory and pool");
	need(cudaMemsetAsync(device, 0, PAGE, stream) || cudaStreamSynchronize(stream), "fill");
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &limit))
		fail("the process's size");
	fclose(file);
	limit.rlim_cur = (pages + 4096) * PAGE;
	if (setrlimit(RLIMIT_AS, &limit))
		fail("a limit");
	memcpy(elf + 0x28, &far, sizeof(far));
	code(OUT_OF_MEMORY, cuModuleLoadData(&made, elf), "an image that is longer than memory");
	void *taken = take_all();
	answers(MEMORY_ALLOCATION, REFUSAL(cudaStreamCreate(&made)), "streams");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaEventCreate(&made)), "events");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaEventCreateWithFlags(&made, 6)), "shared events");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMalloc(&at, PAGE)), "memory");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMallocAsync(&at, PAGE, stream)), "of a pool");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMallocHost(&at, PAGE)), "of the host");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMallocManaged(&at, PAGE, 1)), "of both");
	answers(MEMORY_ALLOCATION, REFUSAL(cuCtxCreate_v2(&made, 0, 0)), "contexts");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMemsetAsync(device, 0, 8, stream)), "fills");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaMemcpyAsync(device, pinned, 8, 1, stream)), "copies");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaLaunchHostFunc(stream, nothing, NULL)), "functions");
	answers(MEMORY_ALLOCATION, REFUSAL(cudaEventRecord(made, stream)), "records");
	give_all(taken);
	need(cudaStreamSynchronize(stream), "wait");
	answers(CUDA_OK, cudaFree(device), "what there is can be given back");
	answers(CUDA_OK, cudaMalloc(&device, PAGE), "and had again");
	answers(CUDA_OK, cudaMemset(device, 1, PAGE), "and filled");
	return finish();
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return little_memory();
	load_runtime();
	need(cudaFree(NULL), "a context");
	registered_memory();
	forgotten_memory();
	pools();
	boxes_of_nothing();
	images();
	unread_lines();
	children();
	reset_meanwhile();
	need(cudaMalloc(&kept, PAGE) || cudaStreamCreate(&kept_stream), "what is kept");
	atexit(at_exit);
	return 1;
}
