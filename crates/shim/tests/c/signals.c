/* The program and the fault guard share SIGSEGV and SIGBUS without seeing each other. */
#include "check.h"
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile sig_atomic_t caught;

static void on_signal(int number)
{
	caught = number;
	siglongjmp(back, 1);
}

static void on_info(int number, siginfo_t *info, void *context)
{
	(void)context;
	caught = info->si_addr == (void *)16 ? number : -1;
	siglongjmp(back, 1);
}

static volatile char *volatile nowhere = (volatile char *)16;

/* A real fault of the program's. */
static void fault(void)
{
	caught = 0;
	if (sigsetjmp(back, 1) == 0)
		*nowhere = 1;
}

int main(void)
{
	void (*guard)(void) = find("peerdma_test_guard");
	int (*touch)(uint64_t) = find("peerdma_test_touch");
	struct sigaction before = { .sa_handler = on_signal, .sa_flags = SA_NODEFER }, seen;
	sigaddset(&before.sa_mask, SIGUSR1);
	CHECK(sigaction(SIGSEGV, &before, NULL) == 0); /* before the guard: the kernel's business */
	guard();
	CHECK(touch(16) == -1); /* the engine's fault is not the program's */
	CHECK(caught == 0);

	CHECK(sigaction(SIGSEGV, NULL, &seen) == 0);
	CHECK(seen.sa_handler == on_signal && (seen.sa_flags & ~0x04000000) == SA_NODEFER);
	CHECK(sigismember(&seen.sa_mask, SIGUSR1) == 1 && sigismember(&seen.sa_mask, SIGUSR2) == 0);
	fault();
	CHECK(caught == SIGSEGV);

	struct sigaction both = { .sa_sigaction = on_info, .sa_flags = SA_SIGINFO };
	CHECK(sigaction(SIGSEGV, &both, &both) == 0); /* one structure for both */
	CHECK(both.sa_handler == on_signal);
	fault();
	CHECK(caught == SIGSEGV);
	CHECK(touch(16) == -1);

	CHECK(signal(SIGBUS, on_signal) == SIG_DFL);
	CHECK(signal(SIGBUS, SIG_DFL) == on_signal);
	CHECK(signal(SIGBUS, SIG_ERR) == SIG_ERR && errno == EINVAL);
	CHECK(signal(SIGSEGV, on_signal) == (sighandler_t)on_info);
	CHECK(sigaction(SIGSEGV, NULL, &seen) == 0 && seen.sa_flags == SA_RESTART);
	CHECK(sigismember(&seen.sa_mask, SIGSEGV) == 1);
	CHECK(touch(16) == -1);
	CHECK(sysv_signal(SIGSEGV, on_signal) == on_signal);
	fault();
	CHECK(caught == SIGSEGV);
	CHECK(signal(SIGSEGV, on_signal) == SIG_DFL); /* System V handlers serve once */
	CHECK(sigset(SIGSEGV, on_signal) == on_signal);
	CHECK(touch(16) == -1);

	CHECK(signal(SIGUSR1, on_signal) == SIG_DFL); /* other signals are the kernel's */
	if (sigsetjmp(back, 1) == 0)
		raise(SIGUSR1);
	CHECK(caught == SIGUSR1);

	sigset_t all, mask;
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	CHECK(touch(16) == -1);
	CHECK(sigprocmask(SIG_BLOCK, &all, &mask) == 0);
	CHECK(sigismember(&mask, SIGSEGV) == 0 && sigismember(&mask, SIGUSR1) == 1);
	CHECK(touch(16) == -1);
	CHECK(sigprocmask(SIG_UNBLOCK, &all, NULL) == 0);
	fault();
	CHECK(caught == SIGSEGV);
	puts("done");
	return 0;
}
