/*
 * Ordinary requests between two memories of this process, which are registered with one device;
 * rows make one thing of them wrong, and look at the memory that must not change.
 */
#ifndef REQUESTS_H
#define REQUESTS_H

#include "rows.h"

#include <sys/mman.h>

static char *local_memory, *remote_memory;
static struct ibv_mr *local, *remote;

enum { UNTOUCHED = 0x5a };

static inline struct pair pair_of(enum ibv_qp_type type)
{
	struct pair pair = new_pair(type);
	memset(remote_memory, UNTOUCHED, BUFFER);
	memset(local_memory, 0xa5, BUFFER);
	return pair;
}

static inline void end(struct pair pair)
{
	struct ibv_wc wc;
	if (ibv_poll_cq(pair.a_cq, 1, &wc) || (pair.b && ibv_poll_cq(pair.b_cq, 1, &wc)))
		row("each request completes once", 0, 1, "a completion is left: %s of request %ld",
		    ibv_wc_status_str(wc.status), (long)wc.wr_id);
	end_pair(pair);
}

/* An ordinary request of 64 bytes from `local` to `remote`. */
static inline struct ibv_send_wr request(enum ibv_wr_opcode opcode, struct ibv_sge *sge)
{
	int atomic = opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD;
	struct ibv_send_wr wr = { .wr_id = 100,
				  .sg_list = sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED };
	*sge = (struct ibv_sge){ (uintptr_t)local_memory, atomic ? 8 : 64, local->lkey };
	if (atomic) {
		wr.wr.atomic.remote_addr = (uintptr_t)remote_memory;
		wr.wr.atomic.rkey = remote->rkey;
		wr.wr.atomic.compare_add = 1;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)remote_memory;
		wr.wr.rdma.rkey = remote->rkey;
	}
	return wr;
}

static inline void untouched(const char *what)
{
	int same = 1;
	for (int i = 0; i < BUFFER; i++)
		same &= remote_memory[i] == UNTOUCHED;
	holds(what, same, "no byte of the target was written");
}

/* Memory with inaccessible pages around it: a step over the edge is also a fault. */
static inline char *fenced(void)
{
	char *at = mmap(NULL, BUFFER + 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED || mprotect(at + 4096, BUFFER, PROT_READ | PROT_WRITE))
		fail("memory");
	return at + 4096;
}

/* Opens the first device, and registers both memories with it. */
static inline void open_with_memories(void)
{
	open_first_device();
	local_memory = fenced();
	remote_memory = fenced();
	local = ibv_reg_mr(pd, local_memory, BUFFER, LOCAL);
	remote = ibv_reg_mr(pd, remote_memory, BUFFER, EVERYTHING);
	if (!local || !remote)
		fail("memory");
}

#endif
