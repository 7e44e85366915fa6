/*
 * Memory that is a file in memory, and that a neighbour writes to often, where it must not be
 * written there any longer, or never: by whom the kernel does not tell, in a place that cannot be
 * looked at, by a thread that could not bear a fault.
 *
 *   files_taken stranger|remap|guard|shmdt|shmat|unwatched|blocked|closed|back direct|packets
 */
#include "neighbours.h"

#include <fcntl.h>
#include <sched.h>
#include <setjmp.h>
#include <sys/ipc.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#ifndef MADV_GUARD_INSTALL
#define MADV_GUARD_INSTALL 102
#endif

enum { SIZE = 2 << 20, OFTEN = 40, ROUNDS = 20, NAMED = 64 };

static const char NAME[] = "files-taken";
/* Where both the target and the stranger of its number have their memory. */
static char *const PLACE = (char *)0x200000000000;

static char *own;
static struct ibv_mr *own_mr;
static struct end peer;

static int file_of(size_t length)
{
	int file = memfd_create(NAME, MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, length))
		fail("a file in memory");
	return file;
}

static char *mapped(int file, size_t length, char *at)
{
	int fixed = at ? MAP_FIXED : 0;
	at = mmap(at, length, PROT_READ | PROT_WRITE, MAP_SHARED | fixed, file, 0);
	if (at == MAP_FAILED)
		fail("map a file");
	return at;
}

static enum ibv_wc_status writes(size_t at, size_t length)
{
	struct ibv_sge sge = { (uintptr_t)own, length, own_mr->lkey };
	return one_sided(0, sge, peer.address + at, peer.rkey);
}

/* How many of a row of WRITEs failed. */
static unsigned writes_often(void)
{
	unsigned failed = 0;
	for (int i = 0; i < OFTEN; i++)
		failed += writes(0, 8) != IBV_WC_SUCCESS;
	return failed;
}

/* Registers memory, shows it and waits until the other end has used it often. */
static struct ibv_mr *shown(char *at)
{
	struct ibv_mr *mr = registered(at, SIZE);
	meet(pd, EVERYTHING, mr);
	hear_number();
	return mr;
}

/* What the other end writes from now on, and whether any of it came to a place. */
static void was_not_written(const char *where, size_t places)
{
	tell_number(0);
	hear_number();
	unsigned found = 0;
	for (size_t i = 0; i < places; i++)
		found += where[i * SIZE] == 'W';
	tell_number(found);
}

/* --- the target --- */

/* The memory's place becomes another's, while the file is still mapped elsewhere. */
static void takes(const char *story)
{
	int file = file_of(2 * SIZE);
	char *at = mapped(file, SIZE, NULL), *whole = mapped(file, 2 * SIZE, NULL);
	shown(at);
	memset(whole, 0, 2 * SIZE);
	if (!strcmp(story, "remap") && remap_file_pages(at, SIZE, 0, SIZE / 4096, 0))
		fail("remap_file_pages");
	/* Before Linux 6.13 there are none. */
	if (!strcmp(story, "guard") && madvise(at, SIZE, MADV_GUARD_INSTALL) && munmap(at, SIZE))
		fail("MADV_GUARD_INSTALL");
	if (!strcmp(story, "unwatched") &&
	    (syscall(SYS_close_range, AT_OTHER + 1, ~0U, 0) || syscall(SYS_munmap, at, SIZE)))
		fail("close all descriptors");
	was_not_written(whole, 2);
}

static void takes_segment(const char *story)
{
	int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	char *at = shmat(id, NULL, 0), *whole = shmat(id, NULL, 0);
	int other_id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
	if (shmctl(id, IPC_RMID, NULL))
		fail("remove a segment");
	shown(at);
	memset(whole, 0, SIZE);
	if (!strcmp(story, "shmdt") && syscall(SYS_shmdt, at))
		fail("shmdt");
	if (!strcmp(story, "shmat") && syscall(SYS_shmat, other_id, at, SHM_REMAP) != (long)at)
		fail("shmat");
	shmctl(other_id, IPC_RMID, NULL);
	was_not_written(whole, 1);
}

/* Takes the memory back, which has no pages then, at any moment of a long WRITE. */
static void takes_back(void)
{
	/* So that it takes long to find the file. */
	char *many = mmap(NULL, 8000 * 8192, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	for (int i = 0; i < 8000; i++)
		mprotect(many + i * 8192, 4096, PROT_READ);
	for (int round = 0; round < ROUNDS; round++) {
		struct stat stat;
		int file = file_of(SIZE);
		char *at = mapped(file, SIZE, NULL);
		memset(at, 1, SIZE);
		struct ibv_mr *mr = shown(at);
		for (double end = seconds() + round * 250e-6; seconds() < end;)
			;
		if (ibv_dereg_mr(mr) ||
		    fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, SIZE))
			fail("take memory back");
		/* The other end has heard of it. */
		hear_number();
		fstat(file, &stat);
		tell_number(stat.st_blocks);
		part();
		munmap(at, SIZE);
		close(file);
	}
}

static void target(const char *story)
{
	if (!strncmp(story, "shm", 3)) {
		takes_segment(story);
	} else if (!strcmp(story, "back")) {
		takes_back();
	} else if (!strcmp(story, "stranger")) {
		char *at = mapped(file_of(SIZE), SIZE, PLACE);
		shown(at);
		tell(at, 8);
	} else if (!strcmp(story, "blocked")) {
		int file = file_of(SIZE);
		shown(mapped(file, SIZE, NULL));
		if (ftruncate(file, 0))
			fail("cut a file");
		tell_number(0);
		hear_number();
	} else if (!strcmp(story, "closed")) {
		shown(mapped(file_of(SIZE), SIZE, NULL));
	} else {
		takes(story);
	}
}

/* --- the initiator, which judges --- */

static void meets(void) { peer = meet(pd, EVERYTHING, NULL); }

static void after_it_was_taken(const char *story)
{
	memset(own, 'w', 64);
	equal("IBA 9.4", 0, writes_often(), "%s: WRITEs that failed before", story);
	tell_number(0);
	hear_number();
	own[0] = 'W';
	printf("%s: a WRITE afterwards: %s\n", story, ibv_wc_status_str(writes(0, 8)));
	tell_number(0);
	equal("design D7", 0, hear_number(), "%s: places that were written afterwards", story);
}

/* The rounds of takes_back: what came after it was told would be no part of any WRITE. */
static void after_it_was_taken_back(void)
{
	unsigned rounds = 0;
	for (int round = 0; round < ROUNDS; round++) {
		meets();
		for (int i = 0; i < 8; i++)
			writes(0, 8);
		tell_number(0);
		for (int i = 0; i < 64 && writes(0, 256 << 10) == IBV_WC_SUCCESS; i++)
			;
		tell_number(0);
		rounds += !!hear_number();
		part();
	}
	equal("design D7", 0, rounds, "rounds in which pages came back to what was taken back");
}

/* A thread whose mask has come back by a jump, when the file has lost its end. */
static void with_signals_blocked(void)
{
	static sigjmp_buf before;
	equal("IBA 9.4", 0, writes_often(), "WRITEs that failed before");
	sigset_t all, none;
	sigfillset(&all);
	sigemptyset(&none);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
	if (!sigsetjmp(before, 1)) {
		syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
		equal("IBA 9.4", 0, writes_often(), "WRITEs that failed with none blocked");
		siglongjmp(before, 1);
	}
	tell_number(0);
	hear_number();
	/* A look at the mask counts for a moment. */
	for (double end = seconds() + 1e-3; seconds() < end;)
		;
	holds("man ftruncate", writes(4096, 8) != IBV_WC_SUCCESS, "a WRITE beyond the end fails");
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &none, NULL, 8);
	tell_number(0);
}

static void after_it_was_closed(int may_map)
{
	equal("IBA 9.4", 0, writes_often(), "WRITEs that failed");
	equal("design D7", may_map, views_of(NAME), "views in use");
	tell_number(0);
	part();
	if (ibv_dereg_mr(own_mr) || ibv_destroy_cq(cq) || ibv_dealloc_pd(pd) ||
	    ibv_close_device(context))
		fail("close the device");
	unsigned rest = 1;
	for (double end = seconds() + 5; rest && seconds() < end; usleep(10000))
		rest = views_of(NAME);
	equal("design D7", 0, rest, "views when the device is closed");
}

/* The initiator in a PID namespace of its own, in which the target has the stranger's number. */
static void beside_a_stranger(pid_t stranger)
{
	char held[8];
	int next = open("/proc/sys/kernel/ns_last_pid", O_WRONLY);
	if (dprintf(next, "%d", stranger - 1) < 1)
		fail("choose the next process's number");
	close(next);
	equal("man pid_namespaces", stranger, start("stranger"), "the target's number");
	meets();
	unsigned failed = 0;
	for (int i = 0; i < NAMED; i++) {
		snprintf(own, 9, "number%02d", i);
		failed += writes(0, 8) != IBV_WC_SUCCESS;
	}
	equal("IBA 9.4", 0, failed, "WRITEs that failed");
	tell_number(0);
	hear(held, sizeof(held));
	holds("IBA 9.4", !memcmp(held, own, 8), "the last WRITE came to the target");
}

/* The story of those two, whose parent sees what became of the stranger. */
static pid_t with_a_stranger(void)
{
	char *memory = mapped(file_of(SIZE), SIZE, PLACE);
	pid_t stranger = fork();
	if (!stranger)
		for (;;)
			pause();
	if (unshare(CLONE_NEWPID))
		fail("a PID namespace");
	pid_t child = fork();
	if (child) {
		int status;
		waitpid(child, &status, 0);
		kill(stranger, SIGKILL);
		unsigned written = 0;
		for (int i = 0; i < SIZE; i++)
			written += !!memory[i];
		equal("design D7", 0, written, "bytes of the stranger's that were written");
		if (status)
			fail("the two in a namespace of their own");
		exit(finish());
	}
	munmap(memory, SIZE);
	return stranger;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	const char *story = argv[1];
	pid_t stranger = strcmp(story, "stranger") ? 0 : with_a_stranger();
	open_device();
	if (!strcmp(story, "as")) {
		target(argv[2]);
		return 0;
	}
	own = memory_of(SIZE);
	own_mr = registered(own, SIZE);
	if (stranger) {
		beside_a_stranger(stranger);
		return finish();
	}
	pid_t child = start(story);
	if (strcmp(story, "back"))
		meets();
	if (!strcmp(story, "back"))
		after_it_was_taken_back();
	else if (!strcmp(story, "blocked"))
		with_signals_blocked();
	else if (!strcmp(story, "closed"))
		after_it_was_closed(!strcmp(argv[2], "direct"));
	else
		after_it_was_taken(story);
	ended_well(child);
	return finish();
}
