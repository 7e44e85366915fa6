/*
 * A program that has CUDA 12's runtime and CUDA 13's, as one has whose libraries were built with
 * different ones: each name by its version, and what both have of the driver is the same.
 */
#include "rows.h"

#include <dlfcn.h>
#include <pthread.h>

#define RUNTIME "CUDA runtime API"

enum { LENGTH = 4096, NO_SUCH_DEVICE = 101, INVALID_PITCH = 12, MANAGED = 3 };

struct location {
	int type, id;
};
/* cudaMemcpyAttributes */
struct attributes {
	int order;
	struct location hints[2];
	unsigned flags;
};

#define FUNCTIONS(F) \
	F(cudaRuntimeGetVersion, (int *)) \
	F(cudaGetDevice, (int *)) \
	F(cudaSetDevice, (int)) \
	F(cudaDeviceReset, (void)) \
	F(cudaMalloc, (void *, size_t)) \
	F(cudaFree, (void *)) \
	F(cudaMallocManaged, (void *, size_t, unsigned)) \
	F(cudaMemcpy, (void *, const void *, size_t, int)) \
	F(cudaMemset, (void *, int, size_t)) \
	F(cudaMemset2D, (void *, size_t, int, size_t, size_t)) \
	F(cudaStreamCreate, (void **)) \
	F(cudaStreamDestroy, (void *)) \
	F(cudaStreamSynchronize, (void *)) \
	F(cudaMemsetAsync, (void *, int, size_t, void *)) \
	F(cudaGetLastError, (void)) \
	F(cudaPeekAtLastError, (void)) \
	F(cudaGetDeviceProperties, (void *, int))

#define DECLARE(name, arguments) static int(*name##_12) arguments, (*name##_13) arguments;
FUNCTIONS(DECLARE)

/* What these take is another thing in each. */
static int (*cudaMemAdvise_12)(const void *, size_t, int, int);
static int (*cudaMemAdvise_13)(const void *, size_t, int, struct location);
static int (*cudaMemPrefetchAsync_12)(const void *, size_t, int, void *);
static int (*cudaMemPrefetchAsync_13)(const void *, size_t, struct location, unsigned, void *);
static int (*cudaMemcpyBatchAsync_12)(void **, void **, size_t *, size_t, struct attributes *,
				      size_t *, size_t, size_t *, void *);
static int (*cudaMemcpyBatchAsync_13)(void **, void **, size_t *, size_t, struct attributes *,
				      size_t *, size_t, void *);

static void *old_library, *new_library;

static void *function(void *library, const char *name, const char *version)
{
	void *found = dlvsym(library, name, version);
	if (!found)
		fail(name);
	return found;
}

/* Where every other library finds them, as those that a program is linked with. */
static void load(void)
{
	old_library = dlopen("libcudart.so.12", RTLD_NOW | RTLD_GLOBAL);
	new_library = dlopen("libcudart.so.13", RTLD_NOW | RTLD_GLOBAL);
	if (!old_library || !new_library)
		fail("both libraries");
#define FIND(name, arguments) \
	name##_12 = function(old_library, #name, "libcudart.so.12"); \
	name##_13 = function(new_library, #name, "libcudart.so.13");
	FUNCTIONS(FIND)
	FIND(cudaMemAdvise, )
	FIND(cudaMemPrefetchAsync, )
	FIND(cudaMemcpyBatchAsync, )
}

static void answers(int want, int got, const char *what)
{
	equal(RUNTIME, want, got, "%s", what);
}

static void versions(void)
{
	int old = 0, new = 0;
	answers(0, cudaRuntimeGetVersion_12(&old) || cudaRuntimeGetVersion_13(&new), "versions");
	equal(RUNTIME, 12, old / 1000, "the old one");
	equal(RUNTIME, 13, new / 1000, "the new one");
	int (*version)(int *) = dlsym(new_library, "cudaRuntimeGetVersion");
	holds(RUNTIME, version && !version(&new) && new / 1000 == 13, "by the library's handle");
	version = dlsym(old_library, "cudaRuntimeGetVersion");
	holds(RUNTIME, version && !version(&new) && new / 1000 == 12, "of each");
	version = dlvsym(RTLD_DEFAULT, "cudaRuntimeGetVersion", "libcudart.so.13");
	holds(RUNTIME, version && !version(&new) && new / 1000 == 13, "by the version alone");
	holds(RUNTIME, !dlvsym(old_library, "cudaMalloc", "libcudart.so.13"), "and no other");
	/* as the shorter structure of CUDA 11, and as CUDA 13's */
	unsigned char properties[1100];
	memset(properties, 0xee, sizeof(properties));
	answers(0, cudaGetDeviceProperties_12(properties, 0), "properties of the old one");
	holds(RUNTIME, properties[728] == 0xee, "are those of CUDA 11's headers");
	answers(0, cudaGetDeviceProperties_13(properties, 0), "properties of the new one");
	holds(RUNTIME, properties[1007] == 0 && properties[1008] == 0xee, "are those of CUDA 13's");
}

static void errors(void)
{
	answers(NO_SUCH_DEVICE, cudaSetDevice_12(9), "an error of the old one");
	answers(0, cudaPeekAtLastError_13(), "is none of the new one");
	answers(INVALID_PITCH, cudaMemset2D_13(NULL, 1, 0, 2, 2) ? INVALID_PITCH : 0,
		"an error of the new one");
	answers(NO_SUCH_DEVICE, cudaGetLastError_12(), "leaves the old one's");
	holds(RUNTIME, cudaGetLastError_13(), "and is its own");
	answers(0, cudaGetLastError_12(), "taken");
	answers(0, cudaGetLastError_13(), "both");
}

static void memory(void)
{
	unsigned char back[LENGTH], *at;
	void *stream;
	int device = 7;
	answers(0, cudaSetDevice_12(1), "the old one's device");
	answers(0, cudaGetDevice_13(&device), "and the new one's");
	equal(RUNTIME, 1, device, "is the context's");
	answers(0, cudaMalloc_13(&at, LENGTH), "memory of the new one");
	answers(0, cudaMemset_12(at, 0x17, LENGTH), "is filled by the old one");
	answers(0, cudaMemcpy_13(back, at, LENGTH, 2), "and copied by the new one");
	equal(RUNTIME, 0x17, back[LENGTH - 1], "whole");
	answers(0, cudaStreamCreate_12(&stream), "a stream of the old one");
	answers(0, cudaMemsetAsync_13(at, 0x18, LENGTH, stream), "has the new one's work");
	answers(0, cudaStreamSynchronize_13(stream), "and waits");
	answers(0, cudaMemcpy_12(back, at, LENGTH, 2), "for both");
	equal(RUNTIME, 0x18, back[0], "which is done");
	answers(0, cudaStreamDestroy_13(stream), "it ends");
	answers(0, cudaFree_12(at), "and so does memory");
	answers(0, cudaSetDevice_13(0), "the new one's device");
	answers(0, cudaGetDevice_12(&device), "and the old one's");
	equal(RUNTIME, 0, device, "again");
}

static void managed(void)
{
	struct location there = { 1, 0 };
	unsigned char *at;
	answers(0, cudaMallocManaged_12(&at, LENGTH, 1), "managed memory");
	answers(0, cudaMemAdvise_12(at, LENGTH, MANAGED, 0), "advice about a device");
	answers(0, cudaMemAdvise_13(at, LENGTH, MANAGED, there), "advice about a place");
	answers(0, cudaMemPrefetchAsync_12(at, LENGTH, 0, NULL), "to a device");
	answers(NO_SUCH_DEVICE, cudaMemPrefetchAsync_12(at, LENGTH, 9, NULL), "to none");
	answers(0, cudaMemPrefetchAsync_13(at, LENGTH, there, 0, NULL), "to a place");
	there.id = 9;
	answers(NO_SUCH_DEVICE, cudaMemPrefetchAsync_13(at, LENGTH, there, 0, NULL), "to no place");
	answers(0, cudaStreamSynchronize_13(NULL), "all of it");
	answers(0, cudaFree_13(at), "free");
}

/* Only the older function says which copy it refused. */
static void batches(void)
{
	static unsigned char source[LENGTH], back[LENGTH];
	struct attributes in_order = { 1 };
	size_t bytes[] = { LENGTH, LENGTH }, first = 0, failed = 7;
	void *to[2], *from[] = { source, source }, *stream;
	answers(0, cudaStreamCreate_12(&stream), "a stream");
	answers(0, cudaMalloc_12(&to[0], LENGTH) || cudaMalloc_13(&to[1], LENGTH), "memory");
	memset(source, 0x61, LENGTH);
	answers(0, cudaMemcpyBatchAsync_12(to, from, bytes, 2, &in_order, &first, 1, &failed, stream),
		"two copies by the old one");
	equal(RUNTIME, 7, failed, "none failed");
	answers(0, cudaMemcpy_13(back, to[1], LENGTH, 2), "are done");
	equal(RUNTIME, 0x61, back[LENGTH - 1], "both");
	memset(source, 0x62, LENGTH);
	answers(0, cudaMemcpyBatchAsync_13(to, from, bytes, 2, &in_order, &first, 1, stream),
		"and by the new one");
	answers(0, cudaStreamSynchronize_12(stream) || cudaMemcpy_12(back, to[0], LENGTH, 2), "too");
	equal(RUNTIME, 0x62, back[0], "all bytes");
	bytes[1]++;
	answers(1, cudaMemcpyBatchAsync_12(to, from, bytes, 2, &in_order, &first, 1, &failed, stream),
		"a copy beyond the end");
	equal(RUNTIME, 1, failed, "is named");
	in_order.order = 0;
	answers(1, cudaMemcpyBatchAsync_12(to, from, bytes, 2, &in_order, &first, 1, &failed, stream),
		"no order");
	equal(RUNTIME, -1ul, failed, "is no copy's");
	answers(1, cudaMemcpyBatchAsync_12(to, from, bytes, 2, NULL, &first, 1, NULL, stream),
		"no place for that");
	answers(0, cudaFree_12(to[1]) || cudaFree_13(to[0]) || cudaStreamDestroy_13(stream), "end");
}

static void *in_another_thread(void *device)
{
	int is_wrong = cudaSetDevice_13(1) || cudaGetDevice_12(device);
	return (void *)(long)is_wrong;
}

static void threads(void)
{
	pthread_t thread;
	int there = 7, here = 7;
	void *is_wrong;
	if (pthread_create(&thread, NULL, in_another_thread, &there) ||
	    pthread_join(thread, &is_wrong))
		fail("a thread");
	holds(RUNTIME, !is_wrong && there == 1, "another thread has its device");
	answers(0, cudaGetDevice_12(&here), "and this one its own");
	equal(RUNTIME, 0, here, "still");
}

static void reset(void)
{
	void *at;
	answers(0, cudaMalloc_13(&at, LENGTH), "memory");
	answers(0, cudaDeviceReset_12(), "the old one resets the device");
	answers(0, cudaMalloc_13(&at, LENGTH), "the new one begins anew");
	answers(0, cudaFree_12(at), "and so does the old one");
	answers(0, cudaDeviceReset_13(), "and the other way");
	answers(0, cudaMalloc_12(&at, LENGTH), "it begins");
	answers(0, cudaFree_13(at), "anew");
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	load();
	versions();
	errors();
	memory();
	managed();
	batches();
	threads();
	reset();
	return finish();
}
