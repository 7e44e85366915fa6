/*
 * CUDA's driver in a program that has an mmap of its own, which goes on to the next one, as tools
 * that watch memory do, and sanitizers: a GPU's memory is there all the same.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/mman.h>

enum { BYTES = 1 << 20 };

static unsigned long calls;

void *mmap(void *at, size_t length, int protection, int flags, int file, off_t offset)
{
	static void *(*next)(void *, size_t, int, int, int, off_t);
	if (!next)
		next = (void *(*)(void *, size_t, int, int, int, off_t))dlsym(RTLD_NEXT, "mmap");
	calls++;
	return next(at, length, protection, flags, file, offset);
}

int main(void)
{
	static char bytes[BYTES], back[BYTES];
	gpu_address memory = 0;
	void *mine = mmap(NULL, BYTES, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	holds("mmap(2)", mine != MAP_FAILED && calls > 0, "the program's own mmap is called");
	begin();
	for (size_t i = 0; i < BYTES; i++)
		bytes[i] = (char)(i * 7 + (i >> 8));
	code(CUDA_OK, cuMemAlloc_v2(&memory, BYTES), "memory");
	code(CUDA_OK, cuMemcpyHtoD_v2(memory, bytes, BYTES), "bytes to it");
	code(CUDA_OK, cuMemcpyDtoH_v2(back, memory, BYTES), "and back");
	holds(GUIDE, !memcmp(bytes, back, BYTES), "they are the same");
	code(CUDA_OK, cuMemFree_v2(memory), "it is given back");
	return finish();
}
