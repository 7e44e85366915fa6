/*
 * A program forks again and again while another process writes to and reads from its on-demand
 * region. The parent's region goes on; each child has what was in it at the fork, and keeps what it
 * writes there itself.
 *
 *   fork_odp FORKS [private]      `private` sends the pages to a GPU before each fork
 */
#include "rows.h"
#include "../../crates/verbs/include/peerdma.h"
#include <dlfcn.h>
#include <sched.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define FORK "fork(2), copy on write"

enum { PAGE = 4096, PAGES = 16, SIZE = PAGES * PAGE, WORDS = SIZE / 8, INDEX_BITS = 20 };

/* What the two processes tell each other. */
struct shared {
	_Atomic uint32_t target_qp, peer_qp, rkey;
	_Atomic uint64_t rounds, stop, failed;
	uint64_t at;
};
static struct shared *shared;

/* A word names its round and its place. */
static uint64_t word(uint64_t round, int place) { return round << INDEX_BITS | place; }

static void until(_Atomic uint32_t *word)
{
	double deadline = seconds() + 60;
	while (!atomic_load(word)) {
		if (seconds() > deadline)
			fail("the other process");
		sched_yield();
	}
}

static int transfer(struct ibv_qp *qp, struct ibv_cq *cq, enum ibv_wr_opcode opcode,
		    struct ibv_mr *mr)
{
	struct ibv_sge sge = { (uintptr_t)mr->addr, SIZE, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { shared->at, atomic_load(&shared->rkey) } };
	struct ibv_wc wc;
	post(qp, &wr);
	return wait_for(cq, &wc, 60) && wc.status == IBV_WC_SUCCESS;
}

/* The other process: writes rounds and reads each back. */
static int peer(void)
{
	open_first_device();
	struct ibv_cq *cq = new_cq(16);
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	uint64_t *local = calloc(1, SIZE);
	struct ibv_mr *mr = ibv_reg_mr(pd, local, SIZE, LOCAL);
	if (!mr)
		fail("a local region");
	atomic_store(&shared->peer_qp, qp->qp_num);
	until(&shared->target_qp);
	connect_to(qp, atomic_load(&shared->target_qp));
	until(&shared->rkey);
	for (uint64_t round = 1; !atomic_load(&shared->stop); round++) {
		for (int i = 0; i < WORDS; i++)
			local[i] = word(round, i);
		int done = transfer(qp, cq, IBV_WR_RDMA_WRITE, mr);
		memset(local, 0, SIZE);
		done = done && transfer(qp, cq, IBV_WR_RDMA_READ, mr);
		for (int i = 0; i < WORDS; i++)
			done = done && local[i] == word(round, i);
		if (!done) {
			atomic_store(&shared->failed, round);
			return 1;
		}
		atomic_store(&shared->rounds, round);
	}
	return 0;
}

static int until_round(uint64_t round)
{
	double deadline = seconds() + 60;
	while (atomic_load(&shared->rounds) < round && !atomic_load(&shared->failed)) {
		if (seconds() > deadline)
			return 0;
		sched_yield();
	}
	return !atomic_load(&shared->failed);
}

/* A child's exit status: 0 if all is well there. */
static int child(volatile uint64_t *region, uint64_t before)
{
	uint64_t last = atomic_load(&shared->rounds) + 1, older = before;
	for (int i = 0; i < WORDS; i++) {
		uint64_t round = region[i] >> INDEX_BITS;
		if (region[i] != word(round, i) || round < older || round > last)
			return 1;
	}
	for (int i = 0; i < WORDS; i += 3)
		region[i] = ~0ul;
	if (!until_round(atomic_load(&shared->rounds) + 3))
		return 2;
	for (int i = 0; i < WORDS; i++) {
		uint64_t round = region[i] >> INDEX_BITS;
		if (i % 3 == 0 ? region[i] != ~0ul : region[i] != word(round, i) || round > last)
			return 3;
	}
	return 0;
}

int main(int count, char **arguments)
{
	int forks = count > 1 ? atoi(arguments[1]) : 10;
	shared = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	rnr_retries = 7;
	ack_timeout = 18;
	retries = 7;
	pid_t other = fork();
	if (other == 0)
		_exit(peer());

	__auto_type to_gpu = (ssize_t (*)(unsigned int, void *, size_t))dlsym(
		RTLD_DEFAULT, "peerdma_migrate_to_gpu");
	int migrates = count > 2 && to_gpu;
	open_first_device();
	struct ibv_cq *cq = new_cq(16);
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	uint64_t *region =
		mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int access = EVERYTHING | IBV_ACCESS_ON_DEMAND | IBV_ACCESS_RELAXED_ORDERING;
	struct ibv_mr *mr = ibv_reg_mr(pd, region, SIZE, access);
	if (!mr)
		fail("an on-demand region");
	until(&shared->peer_qp);
	connect_to(qp, atomic_load(&shared->peer_qp));
	atomic_store(&shared->target_qp, qp->qp_num);
	shared->at = (uintptr_t)region;
	atomic_store(&shared->rkey, mr->rkey);
	holds("peer", until_round(1), "traffic begins");
	for (int i = 0; i < forks; i++) {
		int status;
		if (migrates)
			holds("design D10", to_gpu(i % 2, region, SIZE) >= 0, "pages go to a GPU");
		uint64_t before = atomic_load(&shared->rounds);
		pid_t forked = fork();
		if (forked == 0)
			_exit(child(region, before));
		holds("peer", until_round(before + 3), "traffic goes on beside a child");
		waitpid(forked, &status, 0);
		equal(FORK, 0, WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + status,
		      "a child's bytes are its own");
	}
	atomic_store(&shared->stop, 1);
	int status;
	waitpid(other, &status, 0);
	equal("peer", 0, status, "every round was read as it was written");
	int same = 1;
	for (int i = 0; i < WORDS; i++)
		same &= region[i] == word(atomic_load(&shared->rounds), i);
	holds(FORK, same, "the last round is in the parent's memory");
	return finish();
}
