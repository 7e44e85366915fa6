/*
 * What the peers of the speed tables share: two processes, clocks and medians. A peer does what
 * our programs do with the bare system calls and nothing around them, so that its figure is what
 * is to be had.
 */
#include <errno.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static void fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, strerror(errno));
	exit(1);
}

static inline uint64_t now_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Memory that both processes map. */
static inline void *shared(size_t bytes)
{
	void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (made == MAP_FAILED)
		fail("mmap");
	return made;
}

/* The second process, which ends with the first and lets that reach its memory. */
static pid_t second(void)
{
	prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	pid_t child = fork();
	if (child < 0)
		fail("fork");
	if (!child) {
		prctl(PR_SET_PDEATHSIG, 9);
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY);
	}
	return child;
}

static int by_size(const void *left, const void *right)
{
	uint64_t a = *(const uint64_t *)left, b = *(const uint64_t *)right;
	return (a > b) - (a < b);
}

/* Half of the median of round trips, in microseconds, as perftest has its typical latency. */
static inline double half_median_us(uint64_t *round_trips, size_t count)
{
	qsort(round_trips, count, sizeof(*round_trips), by_size);
	return round_trips[count / 2] / 2e3;
}
