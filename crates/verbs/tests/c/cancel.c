/*
 * Threads that are cancelled: where they wait for an event they end, anywhere else in a verb they
 * do not.
 */
#include "common.h"
#include <pthread.h>

static struct ibv_context *context;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *qp;
static char memory[64];
static volatile int began;

static void *completion_event(void *unused)
{
	struct ibv_cq *told;
	void *cookie;

	(void)unused;
	began = 1;
	ibv_get_cq_event(channel, &told, &cookie);
	return NULL;
}

static void *async_event(void *unused)
{
	struct ibv_async_event event;

	(void)unused;
	began = 1;
	for (;;) {
		if (ibv_get_async_event(context, &event))
			return NULL;
		ibv_ack_async_event(&event);
	}
}

/* Posts and polls without a cancellation point of its own until it finds itself cancelled. */
static void *work(void *unused)
{
	struct ibv_wc wc;

	(void)unused;
	while (!failures) {
		STATUS(post(qp, IBV_WR_RDMA_WRITE, memory, 8, mr, memory + 32, mr->rkey), 0);
		while (!ibv_poll_cq(cq, 1, &wc))
			;
		CHECK(wc.status == IBV_WC_SUCCESS);
		began = 1;
		pthread_testcancel();
	}
	return NULL;
}

/* The same with messages and their receive requests. */
static void *messages(void *unused)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr receive = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_wc wc;

	(void)unused;
	while (!failures) {
		STATUS(ibv_post_recv(qp, &receive, &bad), 0);
		STATUS(post(qp, IBV_WR_SEND, memory + 32, 8, mr, NULL, 0), 0);
		for (int left = 2; left > 0; left -= ibv_poll_cq(cq, 1, &wc) > 0)
			;
		began = 1;
		pthread_testcancel();
	}
	return NULL;
}

static void cancelled(void *(*body)(void *))
{
	pthread_t thread;
	void *result;

	began = 0;
	CHECK(!pthread_create(&thread, NULL, body, NULL));
	while (!began)
		sched_yield();
	CHECK(!pthread_cancel(thread));
	CHECK(!pthread_join(thread, &result));
	CHECK(result == PTHREAD_CANCELED);
}

int main(void)
{
	struct ibv_qp_init_attr init;
	struct ibv_cq *told;
	struct ibv_pd *pd;
	void *cookie;

	context = open_context();
	pd = ibv_alloc_pd(context);
	channel = ibv_create_comp_channel(context);
	cq = ibv_create_cq(context, 16, NULL, channel, 0);
	init = basic_qp(cq);
	qp = ibv_create_qp(pd, &init);
	mr = ibv_reg_mr(pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	STATUS(connect_qp(qp, qp), 0);

	for (int i = 0; i < 20; i++) {
		cancelled(completion_event);
		cancelled(async_event);
		cancelled(work);
		cancelled(messages);
	}

	/* Nothing was lost: what those threads waited for still comes. */
	STATUS(ibv_req_notify_cq(cq, 0), 0);
	STATUS(post(qp, IBV_WR_RDMA_WRITE, memory, 8, mr, memory + 32, mr->rkey), 0);
	STATUS(ibv_get_cq_event(channel, &told, &cookie), 0);
	CHECK(told == cq);
	ibv_ack_cq_events(cq, 1);
	CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_destroy_comp_channel(channel), 0);
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
