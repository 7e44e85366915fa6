/* Completion and asynchronous events of one process talking to itself. */
#include "common.h"
#include <pthread.h>

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[64];
static struct ibv_mr *mr;

static int readable(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, 5000) == 1;
}

static int quiet(int fd)
{
	struct pollfd poll_fd = { .fd = fd, .events = POLLIN };

	return poll(&poll_fd, 1, 0) == 0;
}

static void *destroy(void *cq) { return (void *)(intptr_t)ibv_destroy_cq(cq); }

static void completions(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	int cookie;
	struct ibv_cq *cq = ibv_create_cq(context, 16, &cookie, channel, 0), *told;
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	void *told_cookie, *destroyed;
	pthread_t thread;

	STATUS(connect_qp(qp, qp), 0);
	CHECK(!fcntl(channel->fd, F_SETFL, fcntl(channel->fd, F_GETFL) | O_NONBLOCK));
	MINUS_ONE(ibv_get_cq_event(channel, &told, &told_cookie), EAGAIN);

	/* Armed for any completion: exactly one event, however many completions. */
	STATUS(ibv_req_notify_cq(cq, 0), 0);
	STATUS(post_receive(qp, memory, 8, mr), 0);
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	CHECK(readable(channel->fd));
	MINUS_ONE(ibv_get_cq_event(channel, NULL, &told_cookie), EINVAL);
	MINUS_ONE(ibv_get_cq_event(channel, &told, NULL), EINVAL);
	MINUS_ONE(ibv_get_async_event(context, NULL), EINVAL);
	STATUS(ibv_get_cq_event(channel, &told, &told_cookie), 0);
	CHECK(told == cq && told_cookie == &cookie);
	CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
	CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
	MINUS_ONE(ibv_get_cq_event(channel, &told, &told_cookie), EAGAIN);

	/* Armed for solicited ones: an ordinary message does not wake, a solicited one does. */
	STATUS(ibv_req_notify_cq(cq, 1), 0);
	STATUS(post_receive(qp, memory, 8, mr), 0);
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	next_completion(cq);
	next_completion(cq);
	CHECK(quiet(channel->fd));
	STATUS(post_receive(qp, memory, 8, mr), 0);
	wr.send_flags |= IBV_SEND_SOLICITED;
	STATUS(ibv_post_send(qp, &wr, &bad), 0);
	CHECK(readable(channel->fd));
	STATUS(ibv_get_cq_event(channel, &told, &told_cookie), 0);
	next_completion(cq);
	next_completion(cq);

	/*
	 * Destroying waits for the acknowledgement of both events, and takes undelivered ones
	 * along.
	 */
	STATUS(ibv_req_notify_cq(cq, 0), 0);
	STATUS(post_receive(qp, memory, 8, mr), 0);
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	CHECK(readable(channel->fd));
	STATUS(ibv_destroy_qp(qp), 0);
	ibv_ack_cq_events(cq, 1);
	CHECK(!pthread_create(&thread, NULL, destroy, cq));
	CHECK(pthread_tryjoin_np(thread, &destroyed) == EBUSY);
	ibv_ack_cq_events(cq, 1);
	CHECK(!pthread_join(thread, &destroyed) && !destroyed);
	CHECK(quiet(channel->fd));
	STATUS(ibv_destroy_comp_channel(channel), 0);
}

static void limit(void)
{
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &srq_init);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_srq_attr attr = { .srq_limit = 2 };
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	struct ibv_async_event event;
	struct ibv_qp *qp;

	init.srq = srq;
	qp = ibv_create_qp(pd, &init);
	STATUS(connect_qp(qp, qp), 0);
	STATUS(ibv_post_srq_recv(srq, &wr, &bad), 0);
	STATUS(ibv_post_srq_recv(srq, &wr, &bad), 0);
	STATUS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	CHECK(quiet(context->async_fd));
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	next_completion(cq);
	next_completion(cq);
	CHECK(readable(context->async_fd));
	STATUS(ibv_get_async_event(context, &event), 0);
	while (event.event_type == IBV_EVENT_COMM_EST) {
		ibv_ack_async_event(&event);
		STATUS(ibv_get_async_event(context, &event), 0);
	}
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	STATUS(ibv_query_srq(srq, &attr), 0);
	CHECK(attr.srq_limit == 0);
	ibv_ack_async_event(&event);

	/* Once for each time that it is armed: not at the next request, but when armed anew. */
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	next_completion(cq);
	next_completion(cq);
	CHECK(quiet(context->async_fd));
	STATUS(ibv_post_srq_recv(srq, &wr, &bad), 0);
	attr.srq_limit = 1;
	STATUS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), 0);
	STATUS(post(qp, IBV_WR_SEND, memory, 8, mr, NULL, 0), 0);
	next_completion(cq);
	next_completion(cq);
	STATUS(ibv_get_async_event(context, &event), 0);
	CHECK(event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED && event.element.srq == srq);
	ibv_ack_async_event(&event);

	/* The queue pair that leaves its shared queue says so once. */
	struct ibv_qp_attr error = { .qp_state = IBV_QPS_ERR };
	STATUS(ibv_modify_qp(qp, &error, IBV_QP_STATE), 0);
	STATUS(ibv_get_async_event(context, &event), 0);
	CHECK(event.event_type == IBV_EVENT_QP_LAST_WQE_REACHED && event.element.qp == qp);
	ibv_ack_async_event(&event);
	STATUS(ibv_modify_qp(qp, &error, IBV_QP_STATE), 0);
	CHECK(quiet(context->async_fd));

	STATUS(ibv_destroy_srq(srq), EBUSY);
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_destroy_srq(srq), 0);
	STATUS(ibv_destroy_cq(cq), 0);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	STATUS(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init), 0);
	return attr.qp_state;
}

/*
 * What found a place can be polled. Every queue pair of the CQ that could complete something ends,
 * the idle ones too, and says so once; one in RESET and one of another CQ go on.
 */
static void overrun(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 1, NULL, NULL, 0),
		      *other = ibv_create_cq(context, 1, NULL, NULL, 0);
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_qp *busy = ibv_create_qp(pd, &init), *idle = ibv_create_qp(pd, &init),
		      *fresh = ibv_create_qp(pd, &init);
	struct ibv_qp_init_attr apart = basic_qp(other);
	struct ibv_qp *healthy = ibv_create_qp(pd, &apart);
	int cq_errors = 0, busy_ends = 0, idle_ends = 0;
	struct ibv_wc wc;

	STATUS(connect_qp(busy, busy), 0);
	STATUS(connect_qp(idle, idle), 0);
	STATUS(connect_qp(healthy, healthy), 0);
	for (int i = 0; i < 4; i++)
		STATUS(post(busy, IBV_WR_RDMA_WRITE, memory, 8, mr, memory, mr->rkey), 0);
	while (!cq_errors || !busy_ends || !idle_ends) {
		struct ibv_async_event event;

		CHECK(readable(context->async_fd));
		STATUS(ibv_get_async_event(context, &event), 0);
		cq_errors += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
		busy_ends += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == busy;
		idle_ends += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == idle;
		CHECK(event.event_type != IBV_EVENT_QP_FATAL ||
		      (event.element.qp != fresh && event.element.qp != healthy));
		ibv_ack_async_event(&event);
	}
	CHECK(cq_errors == 1 && busy_ends == 1 && idle_ends == 1);
	CHECK(state_of(busy) == IBV_QPS_ERR && state_of(idle) == IBV_QPS_ERR);
	CHECK(state_of(fresh) == IBV_QPS_RESET && state_of(healthy) == IBV_QPS_RTS);
	for (int i = 0; i < 2; i++)
		CHECK(ibv_poll_cq(cq, 1, &wc) == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(quiet(context->async_fd));
	STATUS(post(healthy, IBV_WR_RDMA_WRITE, memory, 8, mr, memory, mr->rkey), 0);
	next_completion(other);
	STATUS(ibv_destroy_qp(busy), 0);
	STATUS(ibv_destroy_qp(idle), 0);
	STATUS(ibv_destroy_qp(fresh), 0);
	STATUS(ibv_destroy_qp(healthy), 0);
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_destroy_cq(other), 0);
}

int main(void)
{
	context = open_context();
	pd = ibv_alloc_pd(context);
	mr = ibv_reg_mr(pd, memory, sizeof(memory),
			IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	CHECK(pd && mr);
	completions();
	limit();
	overrun();
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
