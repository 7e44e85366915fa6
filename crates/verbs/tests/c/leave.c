/*
 * A receiver that ends as soon as it sees the last message: the sender's request completes all the
 * same.
 */
#include "common.h"
#include <sched.h>

static char memory[64];

struct end {
	struct ibv_context *context;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
};

static struct end open_end(void)
{
	struct end end = { .context = open_context() };
	struct ibv_pd *pd = ibv_alloc_pd(end.context);
	struct ibv_qp_init_attr init;

	end.channel = ibv_create_comp_channel(end.context);
	end.cq = ibv_create_cq(end.context, 16, NULL, end.channel, 0);
	init = basic_qp(end.cq);
	end.qp = ibv_create_qp(pd, &init);
	end.mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE);
	CHECK(end.qp && end.mr);
	return end;
}

/* The QP number of the other process, told as ours is told to it. */
static struct ibv_qp exchange(struct ibv_qp *qp, int from, int to)
{
	struct ibv_qp peer = { 0 };

	CHECK(write(to, &qp->qp_num, sizeof(qp->qp_num)) == sizeof(qp->qp_num));
	CHECK(read(from, &peer.qp_num, sizeof(peer.qp_num)) == sizeof(peer.qp_num));
	return peer;
}

/* How a receiver ends. */
enum { ORDINARILY, TIDILY, QUICKLY, WAYS };

static void receive_and_leave(int from, int to, int how)
{
	struct end end = open_end();
	struct ibv_qp peer = exchange(end.qp, from, to);
	struct ibv_cq *told;
	void *cookie;

	STATUS(connect_qp(end.qp, &peer), 0);
	STATUS(post_receive(end.qp, memory, sizeof(memory), end.mr), 0);
	STATUS(ibv_req_notify_cq(end.cq, 0), 0);
	CHECK(write(to, "r", 1) == 1);
	STATUS(ibv_get_cq_event(end.channel, &told, &cookie), 0);
	if (how == TIDILY)
		STATUS(ibv_destroy_qp(end.qp), 0);
	if (how == QUICKLY)
		_exit(failures);
	exit(failures);
}

/* Whoever is woken runs at once, before the engine's thread that woke it goes on. */
static void share_one_cpu(void)
{
	cpu_set_t first;
	int cpu = sched_getcpu();

	CPU_ZERO(&first);
	CPU_SET(cpu, &first);
	CHECK(!sched_setaffinity(0, sizeof(first), &first));
}

int main(void)
{
	share_one_cpu();

	struct end end = open_end();
	struct ibv_qp_init_attr init = basic_qp(end.cq);

	for (int round = 0; round < 60; round++) {
		int down[2], up[2], status;
		struct ibv_qp peer, *qp;
		char ready;
		pid_t child;

		CHECK(!pipe(down) && !pipe(up));
		child = fork();
		if (!child)
			receive_and_leave(down[0], up[1], round % WAYS);
		qp = ibv_create_qp(end.qp->pd, &init);
		peer = exchange(qp, up[0], down[1]);
		STATUS(connect_qp(qp, &peer), 0);
		CHECK(read(up[0], &ready, 1) == 1);
		STATUS(post(qp, IBV_WR_SEND, memory, 8, end.mr, NULL, 0), 0);
		STATUS(next_completion(end.cq).status, IBV_WC_SUCCESS);
		CHECK(waitpid(child, &status, 0) == child && status == 0);
		STATUS(ibv_destroy_qp(qp), 0);
		close(down[0]), close(down[1]), close(up[0]), close(up[1]);
	}
	return failures != 0;
}
