/*
 * Moves pages that another thread takes away all the time, over a region of its own and under the key of everything, until it is
 * killed: at any moment somebody waits for a page.
 *
 *   odp_storm          says "storming" once all of it is under way
 */
#include "rows.h"
#include <pthread.h>
#include <sys/mman.h>

enum { PAGE = 4096, SIZE = 8 * PAGE, ODP = IBV_ACCESS_ON_DEMAND, BEGUN = 20 };

static char *memory(void)
{
	char *at = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("memory");
	return at;
}

static void *storm(void *at)
{
	for (;;)
		madvise(at, SIZE, MADV_DONTNEED);
	return NULL;
}

static void transfer(struct pair pair, int round, char *near, uint32_t near_key, char *far, uint32_t far_key)
{
	struct ibv_sge sge = { (uintptr_t)near, SIZE, near_key };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1,
				  .opcode = round % 2 ? IBV_WR_RDMA_READ : IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)far, far_key } };
	post(pair.a, &wr);
}

static void done(struct pair pair)
{
	struct ibv_wc wc = { 0 };
	if (!wait_for(pair.a_cq, &wc, 30) || wc.status != IBV_WC_SUCCESS)
		fail(ibv_wc_status_str(wc.status));
}

int main(void)
{
	pthread_t thread;
	rnr_retries = 7;
	ack_timeout = 18;
	open_first_device();
	/* Far enough from each other that the key of everything has a part for each. */
	char *near = memory(), *far = mmap((char *)0x100000000000, SIZE, PROT_READ | PROT_WRITE,
					   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	struct ibv_mr *near_mr = ibv_reg_mr(pd, near, SIZE, EVERYTHING | ODP);
	struct ibv_mr *all = ibv_reg_mr(pd, NULL, SIZE_MAX, EVERYTHING | ODP);
	if (far == MAP_FAILED || !near_mr || !all)
		fail("regions");
	struct pair own = new_pair(IBV_QPT_RC), implicit = new_pair(IBV_QPT_RC);
	if (pthread_create(&thread, NULL, storm, near) || pthread_create(&thread, NULL, storm, far))
		fail("threads");
	for (int round = 0;; round++) {
		transfer(own, round, near, near_mr->lkey, near, near_mr->rkey);
		transfer(implicit, round, near, all->lkey, far, all->rkey);
		done(own);
		done(implicit);
		if (round == BEGUN)
			printf("storming\n");
	}
}
