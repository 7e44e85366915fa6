/*
 * Calls that a signal handler may make, amid malloc for one: they allocate nothing where the path
 * is none of ours.
 */
#include "check.h"
#include <sys/stat.h>

extern void *__libc_malloc(size_t);
extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t);
extern void __libc_free(void *);

static volatile int allocations;

void *malloc(size_t size)
{
	allocations++;
	return __libc_malloc(size);
}

void *calloc(size_t count, size_t size)
{
	allocations++;
	return __libc_calloc(count, size);
}

void *realloc(void *block, size_t size)
{
	allocations++;
	return __libc_realloc(block, size);
}

void free(void *block)
{
	allocations++;
	__libc_free(block);
}

static void open_and_close(int directory, const char *path)
{
	int before = allocations;
	int fd = openat(directory, path, O_RDONLY);
	int at = allocations;
	struct stat stat;
	int code = fstatat(directory, path, &stat, 0),
	    present = faccessat(directory, path, R_OK, 0);
	if (at != before || allocations != before)
		fprintf(stderr, "%s: %d and %d allocations\n", path, at - before, allocations - at);
	CHECK(allocations == before);
	CHECK((fd >= 0) == (code == 0) && (fd >= 0 || present < 0));
	if (fd >= 0)
		close(fd);
}

int main(int argc, char **argv)
{
	CHECK(argc > 1 && (mkdir(argv[1], 0700) == 0 || errno == EEXIST) && chdir(argv[1]) == 0);
	int ours = open("/sys/class/infiniband", O_RDONLY | O_DIRECTORY),
	    here = open(".", O_RDONLY | O_DIRECTORY);
	CHECK(ours >= 0 && here >= 0); /* from now on relative paths may be ours */
	int count = allocations;
	CHECK(count > 0); /* those are counted */
	for (int i = 0; i < 3; i++) {
		open_and_close(AT_FDCWD, "relative");
		open_and_close(AT_FDCWD, "./deeper/../relative");
		open_and_close(here, ".");
		open_and_close(AT_FDCWD, "/proc/self/status");
		open_and_close(AT_FDCWD, "/sys/class/net");
		open_and_close(AT_FDCWD, "/sys/devices/system/cpu/online");
		open_and_close(AT_FDCWD, "/sys/bus/pci/devices/ffff:ff:1f.7/config");
		open_and_close(AT_FDCWD, "/dev/null");
	}
	puts("done");
	return 0;
}
