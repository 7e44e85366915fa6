/*
 * What every test program needs: a check that names its line, and the observation points of the
 * preload example.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHECK(condition) \
	do { \
		if (!(condition)) { \
			fprintf(stderr, "%s:%d: %s (errno %d: %s)\n", __FILE__, __LINE__, \
				#condition, errno, strerror(errno)); \
			_exit(1); \
		} \
	} while (0)

/* FAILS(call, E): the call returns -1 with errno E. */
#define FAILS(call, number) CHECK((errno = 0, (call) == -1) && errno == (number))

static inline void *find(const char *name)
{
	void *symbol = dlsym(RTLD_DEFAULT, name);
	CHECK(symbol != NULL);
	return symbol;
}
