/*
 * How fast bytes get from one process into another's memory: `bare_copy WAY BYTES SECONDS` prints
 * GB/s, of 10^9 bytes. One buffer is moved again and again, as perftest does, while the other
 * process sleeps.
 *
 *   write  process_vm_writev into memory of the other's own
 *   read   process_vm_readv from there
 *   file   memcpy from a mapped file into the other's, which both map
 */
#define _GNU_SOURCE
#include "peers.h"
#include <sys/uio.h>

static size_t bytes;

static void *own(void)
{
	void *made;
	if (posix_memalign(&made, sysconf(_SC_PAGESIZE), bytes))
		fail("posix_memalign");
	return memset(made, 1, bytes);
}

static void *file(void)
{
	int fd = memfd_create("peer", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, bytes))
		fail("memfd_create");
	void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (made == MAP_FAILED)
		fail("mmap");
	return memset(made, 1, bytes);
}

int main(int argc, char **argv)
{
	if (argc != 4) {
		fprintf(stderr, "bare_copy write|read|file BYTES SECONDS\n");
		return 2;
	}
	bytes = strtoull(argv[2], NULL, 0);
	double seconds = atof(argv[3]);
	int in_file = !strcmp(argv[1], "file"), reads = !strcmp(argv[1], "read");
	char *here = in_file ? file() : own();
	/* At the same address in the other process, where it is that one's own once written to. */
	char *there = in_file ? file() : own();
	int ready[2];
	if (pipe(ready))
		fail("pipe");
	pid_t other = second();
	if (!other) {
		memset(there, 2, bytes);
		if (write(ready[1], "", 1) != 1)
			fail("write");
		for (;;)
			pause();
	}
	char byte;
	if (read(ready[0], &byte, 1) != 1)
		fail("read");
	struct iovec local = { here, bytes }, remote = { there, bytes };
	uint64_t begun = 0, moved = 0, end = 0;
	/* The first tenth warms up. */
	uint64_t warm = now_ns() + seconds * 1e8, stop = warm + seconds * 1e9;
	do {
		ssize_t done = bytes;
		if (in_file)
			memcpy(there, here, bytes);
		else if (reads)
			done = process_vm_readv(other, &local, 1, &remote, 1, 0);
		else
			done = process_vm_writev(other, &local, 1, &remote, 1, 0);
		if (done != (ssize_t)bytes)
			fail("a copy");
		/* What the compiler may not leave out: somebody else reads there. */
		__asm__ volatile("" ::: "memory");
		end = now_ns();
		if (begun)
			moved += bytes;
		else if (end >= warm)
			begun = end;
	} while (end < stop);
	printf("%f\n", (double)moved / (end - begun));
	kill(other, 9);
	return 0;
}
