/*
 * A descriptor of the engine survives everything its own process does, and nothing of its
 * children's concern.
 */
#include "check.h"
#include <sys/wait.h>

static int engine;

static int alive(int fd) { return fcntl(fd, F_GETFD) != -1; }

/* Leaves descriptors 200 and 202 open around the engine's 201. */
static void reopen(void) { CHECK(dup2(1, 200) == 200 && dup2(1, 202) == 202); }

int main(void)
{
	void (*keep)(int) = find("peerdma_test_keep");
	void (*let_go)(int) = find("peerdma_test_let_go");
	int file = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(file >= 0 && dup3(file, 201, O_CLOEXEC) == 201 && close(file) == 0);
	engine = 201;
	keep(engine);
	reopen();

	FAILS(close(engine), EBADF);
	FAILS(dup2(1, engine), EBADF);
	FAILS(dup3(1, engine, 0), EBADF);
	CHECK(alive(engine));
	CHECK(close_range(200, 202, 0) == 0);
	CHECK(alive(engine) && !alive(200) && !alive(202));
	reopen();
	CHECK(close_range(201, 201, 0) == 0 && alive(engine));
	CHECK(close_range(200, ~0U, 0) == 0);
	CHECK(alive(engine) && !alive(200) && !alive(202));
	reopen();
	closefrom(150);
	CHECK(alive(engine) && !alive(200) && !alive(202));
	reopen();
	CHECK(close_range(200, 202, CLOSE_RANGE_CLOEXEC) == 0);
	CHECK(fcntl(200, F_GETFD) == FD_CLOEXEC && fcntl(202, F_GETFD) == FD_CLOEXEC);
	FAILS(close_range(5, 4, 0), EINVAL);
	FAILS(close(203), EBADF);

	pid_t child = fork();
	if (child == 0) {
		CHECK(dup2(1, engine) == engine && close(engine) == 0 && !alive(engine));
		_exit(0);
	}
	int status;
	CHECK(waitpid(child, &status, 0) == child && status == 0);

	child = vfork();
	if (child == 0) {
		closefrom(3);
		int sink = open("/dev/null", O_WRONLY);
		int ok = dup2(sink, engine) == engine;
		_exit(ok ? 0 : 1);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	CHECK(alive(engine));
	FAILS(close(engine), EBADF);

	let_go(engine);
	CHECK(!alive(engine));

	size_t (*daemons)(void) = find("peerdma_test_daemons");
	int channel[2];
	CHECK(pipe(channel) == 0);
	child = fork();
	if (child == 0) {
		CHECK(daemon(0, 1) == 0); /* the caller ends here; what follows is the daemon */
		char answer = daemons() == 1 && getppid() != child ? 'y' : 'n';
		CHECK(write(channel[1], &answer, 1) == 1);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	char answer = 0;
	CHECK(read(channel[0], &answer, 1) == 1 && answer == 'y' && daemons() == 0);
	puts("done");
	return 0;
}
