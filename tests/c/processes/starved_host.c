/*
 * The process that hosts what processes of one address share runs out of memory, while others come
 * and are killed. It goes on, and so does the hosting, by whom it may be.
 *
 *   starved_host [CROWD]
 */
#include "rows.h"

#include <malloc.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const char *source = "the process that hosts the registry has no memory";

struct process {
	pid_t pid;
	int said;
};

/* Where a child says that it is ready. */
static int mouth;
/* The host goes on until this pipe has no writer. */
static int go[2];

/* Starts a process that says a byte when it is ready, and ends with this one at the latest. */
static struct process start(void (*body)(void))
{
	int ends[2];
	if (pipe(ends))
		fail("pipe");
	fflush(stdout);
	struct process started = { fork(), ends[0] };
	if (started.pid < 0)
		fail("fork");
	if (started.pid) {
		close(ends[1]);
		return started;
	}
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	mouth = ends[1];
	body();
	exit(0);
}

static void say(void)
{
	if (write(mouth, "", 1) != 1)
		_exit(1);
}

static int heard(struct process *from)
{
	char byte;
	return read(from->said, &byte, 1) == 1;
}

/* Takes all memory that there is under a limit at what is in use. */
static void starve(void)
{
	unsigned long pages;
	FILE *file = fopen("/proc/self/statm", "r");
	if (!file || fscanf(file, "%lu", &pages) != 1)
		fail("statm");
	fclose(file);
	struct rlimit limit = { pages * getpagesize(), RLIM_INFINITY };
	if (setrlimit(RLIMIT_AS, &limit))
		fail("limit");
	for (size_t size = 1 << 20; size >= 16; size /= 2) {
		while (__extension__({ void *volatile block = malloc(size); block; }))
			;
	}
}

static void be_host(void)
{
	char byte;
	close(go[1]);
	/* Every thread's memory is this one's to take. */
	mallopt(M_ARENA_MAX, 1);
	open_first_device();
	starve();
	say();
	if (read(go[0], &byte, 1) != 0)
		_exit(1);
	if (ibv_dealloc_pd(pd) || ibv_close_device(context))
		_exit(1);
	_exit(0);
}

static void come(void)
{
	open_first_device();
	say();
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	int crowd = argc > 1 ? atoi(argv[1]) : 60;
	if (pipe(go))
		fail("pipe");
	struct process host = start(be_host);
	if (!heard(&host))
		fail("the first process opens its device");
	for (int round = 1; round <= 3; round++) {
		struct process others[crowd];
		int came = 0;
		for (int i = 0; i < crowd; i++)
			others[i] = start(come);
		for (int i = 0; i < crowd; i++)
			came += heard(&others[i]);
		for (int i = 0; i < crowd; i++) {
			kill(others[i].pid, SIGKILL);
			waitpid(others[i].pid, NULL, 0);
			close(others[i].said);
		}
		equal(source, crowd, came, "all open their devices, round %d", round);
		equal(source, 0, waitpid(host.pid, NULL, WNOHANG), "it lives, round %d", round);
	}
	int status = -1;
	close(go[1]);
	waitpid(host.pid, &status, 0);
	equal(source, 0, status, "it ends by itself");
	return finish();
}
