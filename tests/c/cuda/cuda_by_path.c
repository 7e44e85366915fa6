/*
 * Linked to NVIDIA's CUDA runtime, which an RPATH of this program leads to, as PyTorch's libraries
 * are: the one over the software GPU takes its place, but where it is loaded by its path.
 *
 * The argument is that path.
 */
#define _GNU_SOURCE
#include "rows.h"

#include <dlfcn.h>

#define RUNTIME "CUDA runtime API"

enum { SYMBOL_NOT_FOUND = 500 };

int cudaGetDeviceCount(int *count);
int cudaMalloc(void **memory, size_t bytes);
int cudaFree(void *memory);

static const char *file_of(void *function)
{
	Dl_info about;
	return function && dladdr(function, &about) ? about.dli_fname : "none";
}

int main(int argc, char **argv)
{
	int count = 7;
	void *memory, *known, *theirs;
	int (*their_count)(int *);
	if (argc != 2)
		fail("one argument");
	equal(RUNTIME, 0, cudaGetDeviceCount(&count), "what this program is linked to");
	equal("the default platform", 2, count, "GPUs");
	equal(RUNTIME, 0, cudaMalloc(&memory, 1 << 20) || cudaFree(memory), "and their memory");
	known = dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD);
	holds("dlopen(3)", known != NULL, "it is loaded under NVIDIA's name");
	holds("dlopen(3)", known && strcmp(file_of(dlsym(known, "cudaMalloc")), argv[1]),
	      "and is another file");
	theirs = dlopen(argv[1], RTLD_NOW);
	holds("dlopen(3)", theirs != NULL, "NVIDIA's is loaded by its path");
	if (!theirs)
		return finish();
	their_count = (int (*)(int *))dlsym(theirs, "cudaGetDeviceCount");
	holds("dlopen(3)", !strcmp(file_of((void *)their_count), argv[1]), "beside");
	equal("CUDA 12.9", SYMBOL_NOT_FOUND, their_count(&count), "and refuses");
	equal(RUNTIME, 0, cudaGetDeviceCount(&count), "which is not what the program is linked to");
	return finish();
}
