/*
 * Memory that the program takes away under a registration, while traffic runs over it. A real
 * device has pinned the pages; the software HCA has not, and must turn each touch into the
 * completion error that the specification names. The program lives, what it mapped there instead
 * stays untouched, other registrations and queue pairs go on, and the program's own faults still
 * reach its own handlers.
 *
 *   gone_memory [ROUNDS]
 */
#include "rows.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { CHUNK = 64 << 10, DEPTH = 4, FILL = 0xa5 };

/*
 * How memory goes. `revoked`: the library hears of it and revokes the key. Otherwise it meets a
 * fault.
 */
enum way { UNMAP, MAP_OVER, MOVE, DONTNEED, TRUNCATE, PROTECT, UNMAP_RAW, WAYS };
static const struct {
	const char *name;
	int revoked;
} ways[WAYS] = {
	[UNMAP] = { "munmap", 1 },
	[MAP_OVER] = { "mmap over it", 1 },
	[MOVE] = { "mremap away", 1 },
	[DONTNEED] = { "madvise DONTNEED", 1 },
	[TRUNCATE] = { "truncated file", 0 },
	[PROTECT] = { "mprotect", 0 },
	[UNMAP_RAW] = { "munmap by a bare system call", 0 },
};

/* Whose memory goes, and under which operation. */
enum use {
	WRITE_TARGET,
	READ_SOURCE,
	ATOMIC_TARGET,
	RECEIVE,
	WRITE_SOURCE,
	READ_TARGET,
	SEND_SOURCE,
	ATOMIC_RESULT,
	USES
};
static const struct {
	const char *name;
	enum ibv_wr_opcode opcode;
	int remote;
} uses[USES] = {
	[WRITE_TARGET] = { "the target of WRITEs", IBV_WR_RDMA_WRITE, 1 },
	[READ_SOURCE] = { "the source of READs", IBV_WR_RDMA_READ, 1 },
	[ATOMIC_TARGET] = { "the target of atomics", IBV_WR_ATOMIC_FETCH_AND_ADD, 1 },
	[RECEIVE] = { "receives", IBV_WR_SEND, 1 },
	[WRITE_SOURCE] = { "the source of WRITEs", IBV_WR_RDMA_WRITE, 0 },
	[READ_TARGET] = { "the target of READs", IBV_WR_RDMA_READ, 0 },
	[SEND_SOURCE] = { "the source of SENDs", IBV_WR_SEND, 0 },
	[ATOMIC_RESULT] = { "the results of atomics", IBV_WR_ATOMIC_FETCH_AND_ADD, 0 },
};

static char *steady;
static struct ibv_mr *steady_mr;
static struct pair bystander;

/* The memory that goes. */
static char *memory, *moved;
static int file;
static enum way way;
static atomic_int completed;
static atomic_int taken;

static volatile sig_atomic_t own_faults;
static void *volatile fault_address;
static sigjmp_buf back;

static void own_handler(int signal, siginfo_t *info, void *unused)
{
	(void)signal;
	(void)unused;
	own_faults++;
	fault_address = info->si_addr;
	siglongjmp(back, 1);
}

static void set_own_handler(void)
{
	struct sigaction action = { .sa_sigaction = own_handler, .sa_flags = SA_SIGINFO };
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}

/* Touches an address that must fault, and checks that our handler hears of it. */
static void own_fault(char *address, const char *what)
{
	int before = own_faults;
	if (sigsetjmp(back, 1) == 0)
		*(volatile char *)address = 1;
	holds("man sigaction", own_faults == before + 1 && fault_address == address, what);
}

static void own_faults_are_ours(void)
{
	char *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int empty = memfd_create("empty", 0);
	char *beyond = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, empty, 0);
	own_fault(closed, "our SIGSEGV reaches our handler");
	own_fault(beyond, "our SIGBUS reaches our handler");
	struct sigaction action;
	sigaction(SIGSEGV, NULL, &action);
	holds("man sigaction", action.sa_sigaction == own_handler, "our handler reads back");
	munmap(closed, 4096);
	munmap(beyond, 4096);
	close(empty);
}

/* A program without a handler dies of its own fault, as ever. */
static void own_crash_is_a_crash(void)
{
	int status;
	pid_t child = fork();
	if (child == 0) {
		signal(SIGSEGV, SIG_DFL);
		char *closed = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		*(volatile char *)closed = 1;
		_exit(0);
	}
	if (child < 0 || waitpid(child, &status, 0) != child)
		fail("a child");
	holds("man signal", WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV,
	      "without a handler a fault ends a program");
}

static void map_memory(void)
{
	file = memfd_create("goes", MFD_CLOEXEC);
	if (file < 0 || ftruncate(file, BUFFER))
		fail("a file");
	/* DONTNEED on a shared file loses nothing; that way needs private memory. */
	int flags = way == DONTNEED ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
	memory = mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, flags, way == DONTNEED ? -1 : file, 0);
	moved = mmap(NULL, BUFFER, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED || moved == MAP_FAILED)
		fail("memory");
	memset(memory, 0, BUFFER);
}

static void take_memory(void)
{
	int failed = 0;
	switch (way) {
	case UNMAP:
		failed = munmap(memory, BUFFER);
		break;
	case MAP_OVER:
		failed = mmap(memory, BUFFER, PROT_READ | PROT_WRITE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != memory;
		break;
	case MOVE:
		failed = mremap(memory, BUFFER, BUFFER, MREMAP_MAYMOVE | MREMAP_FIXED, moved) !=
			 moved;
		break;
	case DONTNEED:
		failed = madvise(memory, BUFFER, MADV_DONTNEED);
		break;
	case TRUNCATE:
		failed = ftruncate(file, 0);
		break;
	case PROTECT:
		failed = mprotect(memory, BUFFER, PROT_NONE);
		break;
	case UNMAP_RAW:
		failed = syscall(SYS_munmap, memory, BUFFER);
		break;
	case WAYS:
		break;
	}
	if (failed)
		fail(ways[way].name);
}

/* Takes the memory away once traffic runs. */
static void *taker(void *unused)
{
	while (atomic_load(&completed) < 3 * DEPTH)
		;
	take_memory();
	atomic_store(&taken, 1);
	return unused;
}

static void unmap_memory(void)
{
	munmap(memory, BUFFER);
	munmap(moved, BUFFER);
	close(file);
}

/* One request of an operation; `number` picks the part of the memory. */
static void post_use(struct pair *pair, enum use use, struct ibv_mr *mr, unsigned number)
{
	unsigned at = number % (BUFFER / CHUNK) * CHUNK;
	int atomic = uses[use].opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	char *here = (uses[use].remote ? steady : memory) + at,
	     *there = (uses[use].remote ? memory : steady + BUFFER) + at;
	struct ibv_mr *here_mr = uses[use].remote ? steady_mr : mr,
		      *there_mr = uses[use].remote ? mr : steady_mr;
	struct ibv_sge sge = { (uintptr_t)here, atomic ? 8 : CHUNK, here_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = uses[use].opcode
	};
	if (atomic) {
		wr.wr.atomic.remote_addr = (uintptr_t)there;
		wr.wr.atomic.rkey = there_mr->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)there;
		wr.wr.rdma.rkey = there_mr->rkey;
	}
	if (uses[use].opcode == IBV_WR_SEND)
		receive(pair->b, 2, there, CHUNK, there_mr->lkey);
	post(pair->a, &wr);
}

/* Runs traffic until it fails; gives the status of the first failure at either end. */
static enum ibv_wc_status traffic(struct pair *pair, enum use use, struct ibv_mr *mr,
				  enum ibv_wc_status *at_receiver)
{
	/*
	 * One READ at a time: were responses before the refusal lost in a full socket buffer, the
	 * responder could not repeat them once it is in error, and the retry counter would rightly
	 * run out.
	 */
	unsigned posted = 0, depth = uses[use].opcode == IBV_WR_RDMA_READ ? 1 : DEPTH;
	struct ibv_wc wc;
	double limit = seconds() + 20;
	*at_receiver = IBV_WC_SUCCESS;
	while (posted < depth)
		post_use(pair, use, mr, posted++);
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	while (status == IBV_WC_SUCCESS && seconds() < limit) {
		if (ibv_poll_cq(pair->a_cq, 1, &wc) == 1) {
			status = wc.status;
			atomic_fetch_add(&completed, 1);
			if (status == IBV_WC_SUCCESS)
				post_use(pair, use, mr, posted++);
		}
		if (ibv_poll_cq(pair->b_cq, 1, &wc) == 1 && *at_receiver == IBV_WC_SUCCESS)
			*at_receiver = wc.status;
	}
	while (*at_receiver == IBV_WC_SUCCESS && use == RECEIVE && wait_for(pair->b_cq, &wc, 2))
		*at_receiver = wc.status;
	return status;
}

/* What the specification says of it (IBA 9.9.2, 9.9.3). */
static enum ibv_wc_status specified(enum use use)
{
	if (!uses[use].remote)
		return IBV_WC_LOC_PROT_ERR;
	if (use == RECEIVE || !ways[way].revoked)
		return IBV_WC_REM_OP_ERR;
	return IBV_WC_REM_ACCESS_ERR;
}

/*
 * The kernel tells of a bare call after the pages went: an access meets a fault, or a key that is
 * revoked already.
 */
static int is_specified(enum use use, enum ibv_wc_status status)
{
	return status == specified(use) || (way == UNMAP_RAW && use != RECEIVE &&
					    uses[use].remote && status == IBV_WC_REM_ACCESS_ERR);
}

static void works(struct pair *pair, const char *what)
{
	struct ibv_sge sge = { (uintptr_t)steady, BUFFER, steady_mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)steady + BUFFER, steady_mr->rkey } };
	memset(steady, rows, BUFFER);
	memset(steady + BUFFER, ~rows, BUFFER);
	post(pair->a, &wr);
	completes("peers of others", pair->a_cq, 9, IBV_WC_SUCCESS, "%s", what);
	holds("peers of others", !memcmp(steady, steady + BUFFER, BUFFER), "its bytes are right");
}

static void lose(enum use use)
{
	char what[120];
	pthread_t thread;
	struct pair pair = new_pair(IBV_QPT_RC);
	map_memory();
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, BUFFER, EVERYTHING);
	if (!mr)
		fail("registration");
	memset(steady, FILL, BUFFER);
	atomic_store(&completed, 0);
	atomic_store(&taken, 0);
	if (pthread_create(&thread, NULL, taker, NULL))
		fail("thread");
	enum ibv_wc_status at_receiver, status = traffic(&pair, use, mr, &at_receiver),
					want = specified(use);
	snprintf(what, sizeof(what), "%s: %s", ways[way].name, uses[use].name);
	verdict(is_specified(use, status), what, ibv_wc_status_str(status), ibv_wc_status_str(want),
		"IBA 9.9.2, 9.9.3");
	if (use == RECEIVE)
		verdict(at_receiver == IBV_WC_LOC_PROT_ERR, "its receive",
			ibv_wc_status_str(at_receiver), ibv_wc_status_str(IBV_WC_LOC_PROT_ERR),
			"IBA 9.9.3");
	pthread_join(thread, NULL);
	if (way == MAP_OVER || way == DONTNEED) {
		int clean = 1;
		for (int i = 0; i < BUFFER; i++)
			clean &= memory[i] == 0;
		holds("design D4", clean, "what is there instead is untouched");
	}
	works(&bystander, "a pair beside it goes on");
	row("man ibv_dereg_mr", 0, ibv_dereg_mr(mr), "the MR is deregistered");
	end_pair(pair);
	unmap_memory();
}

/* The same address, mapped and registered anew, works under its new key. */
static void comes_again(void)
{
	way = UNMAP;
	map_memory();
	struct ibv_mr *old = ibv_reg_mr(pd, memory, BUFFER, EVERYTHING);
	take_memory();
	char *again = mmap(memory, BUFFER, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, again, BUFFER, EVERYTHING);
	if (!mr)
		fail("registration at the same address");
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)again, BUFFER, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_READ,
				  .wr.rdma = { (uintptr_t)steady, steady_mr->rkey } };
	memset(steady, FILL, BUFFER);
	post(pair.a, &wr);
	completes("design D4", pair.a_cq, 1, IBV_WC_SUCCESS,
		  "the same address works under a new key");
	holds("design D4", !memcmp(again, steady, BUFFER), "its bytes are right");
	sge.lkey = old->lkey;
	post(pair.a, &wr);
	completes("design D4", pair.a_cq, 1, IBV_WC_LOC_PROT_ERR, "the old key does not");
	ibv_dereg_mr(old);
	ibv_dereg_mr(mr);
	end_pair(pair);
	unmap_memory();
}

int main(int argc, char **argv)
{
	int rounds = argc > 1 ? atoi(argv[1]) : 1;
	/* Once before the library has its handler, and once after. */
	set_own_handler();
	open_first_device();
	own_faults_are_ours();
	set_own_handler();
	own_faults_are_ours();
	steady = mmap(NULL, 2 * BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	steady_mr = ibv_reg_mr(pd, steady, 2 * BUFFER, EVERYTHING);
	if (!steady_mr)
		fail("registration");
	bystander = new_pair(IBV_QPT_RC);
	for (int round = 0; round < rounds; round++)
		for (way = 0; way < WAYS; way++)
			for (enum use use = 0; use < USES; use++)
				lose(use);
	comes_again();
	own_faults_are_ours();
	own_crash_is_a_crash();
	works(&bystander, "after all of it the pair works");
	holds("man sigaction", own_faults == 6, "our handler heard of our own faults only");
	end_pair(bystander);
	ibv_dereg_mr(steady_mr);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
