/*
 * Preloaded: a program that has said before anything else whom it lets at its memory, as one with a
 * crash reporter does. Here it is its own descendants, whom Yama lets there with whom is named.
 */
#include <stdlib.h>
#include <sys/prctl.h>
#include <unistd.h>

__attribute__((constructor)) static void name_tracer(void)
{
	if (prctl(PR_SET_PTRACER, (long)getpid(), 0L, 0L, 0L))
		abort();
}
