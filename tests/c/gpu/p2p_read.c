/*
 * Has a drive write what it reads into another drive's memory, past the processor, if the kernel
 * allows it. Prints the first byte that arrived, in hexadecimal, or the kernel's errno. Arguments:
 * the other drive's `p2pmem/allocate`, and the drive.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { BYTES = 4096 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc != 3)
		return 2;
	int memory = open(argv[1], O_RDWR);
	if (memory < 0)
		return fail(argv[1]);
	unsigned char *page = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
	if (page == MAP_FAILED)
		return fail("the drive's memory");
	int drive = open(argv[2], O_RDONLY | O_DIRECT);
	if (drive < 0)
		return fail(argv[2]);
	*(volatile unsigned char *)page = 0;
	if (pread(drive, page, BYTES, 0) == BYTES)
		printf("%02x\n", *(volatile unsigned char *)page);
	else
		printf("%s\n", strerrorname_np(errno));
	return 0;
}
