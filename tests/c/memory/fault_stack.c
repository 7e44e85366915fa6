/*
 * Preloaded into a program: a fault that ends it leaves its stack on stderr first, also where no
 * memory is left to be had. The first line is "fault at ADDRESS"; each of the others names an
 * object and a place in it, from the one that faulted on: handlers that passed the fault on are
 * left out.
 */
#define _GNU_SOURCE
#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

static void *faulting(const ucontext_t *context)
{
#ifdef __x86_64__
	return (void *)context->uc_mcontext.gregs[REG_RIP];
#else
	return (void *)context->uc_mcontext.pc;
#endif
}

static void on_fault(int number, siginfo_t *info, void *context)
{
	void *stack[64];
	char line[64];
	int first = 0, frames = backtrace(stack, 64);

	while (first < frames && stack[first] != faulting(context))
		first++;
	if (first == frames)
		first = 0;
	snprintf(line, sizeof(line), "fault at %p\n", info->si_addr);
	if (write(STDERR_FILENO, line, strlen(line)) > 0)
		backtrace_symbols_fd(stack + first, frames - first, STDERR_FILENO);
	raise(number);
}

__attribute__((constructor)) static void watch(void)
{
	struct sigaction action = { .sa_sigaction = on_fault,
				    .sa_flags = SA_SIGINFO | SA_RESETHAND };
	void *here;

	/* The first call loads what unwinds, which takes memory. */
	backtrace(&here, 1);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}
