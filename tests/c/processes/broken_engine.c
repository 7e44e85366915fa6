/*
 * What a program sees of an engine that a bug of ours ends or holds up. The library is one with
 * deliberate defects: the first turn of progress that takes payload goes wrong.
 *
 *   broken_engine panics    it panics, in the engine's own thread: the device ends, as a card's
 * firmware would
 *   broken_engine stands    it never ends: of a fork's wait for it the fork's own limit is the end
 *
 * Both print `fork took N us`.
 */
#include "rows.h"

#define FATAL "ibv_get_async_event(3)"

enum { RECEIVES = 4, FIRST_RECEIVE = 10, LENGTH = 4096 };

static char memory[LENGTH];
static struct ibv_mr *mr;

static struct ibv_send_wr write_request(struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ (uintptr_t)memory, LENGTH / 2, mr->lkey };
	return (struct ibv_send_wr){ .wr_id = 1,
				     .opcode = IBV_WR_RDMA_WRITE,
				     .sg_list = sge,
				     .num_sge = 1,
				     .wr.rdma = { (uintptr_t)memory + LENGTH / 2, mr->rkey } };
}

/* A write that nobody polls for: the engine's own thread takes it, and meets the defect. */
static struct pair meet_the_defect(void)
{
	struct ibv_sge sge;
	struct pair pair = new_pair(IBV_QPT_RC);
	mr = ibv_reg_mr(pd, memory, LENGTH, EVERYTHING);
	if (!mr)
		fail("a region");
	for (int i = 0; i < RECEIVES; i++)
		receive(pair.b, FIRST_RECEIVE + i, memory, LENGTH, mr->lkey);
	struct ibv_send_wr wr = write_request(&sge);
	post(pair.a, &wr);
	return pair;
}

/* Every call that needs the device answers EIO. */
static void refuses(struct pair pair)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_request(&sge), *bad_send;
	struct ibv_recv_wr recv = { .sg_list = &sge, .num_sge = 1 }, *bad_recv;
	struct ibv_port_attr port;
	row("ibv_post_send(3)", EIO, ibv_post_send(pair.a, &wr, &bad_send), "a request");
	row("ibv_post_recv(3)", EIO, ibv_post_recv(pair.b, &recv, &bad_recv), "a receive");
	row("ibv_query_port(3)", EIO, ibv_query_port(context, 1, &port), "a port's state");
	row("ibv_modify_qp(3)", EIO, change(pair.a, IBV_QPS_RESET, 0), "a change of state");
	row("ibv_alloc_pd(3)", EIO, POINTER(ibv_dealloc_pd, ibv_alloc_pd(context)), "a domain");
	row("ibv_create_cq(3)", EIO,
	    POINTER(ibv_destroy_cq, ibv_create_cq(context, 4, NULL, NULL, 0)),
	    "a completion queue");
	row("ibv_reg_mr(3)", EIO,
	    POINTER(ibv_dereg_mr, ibv_reg_mr(pd, memory, LENGTH, EVERYTHING)), "a region");
	row("ibv_destroy_qp(3)", EIO, ibv_destroy_qp(pair.a), "the end of a queue pair");
	row("ibv_dereg_mr(3)", EIO, ibv_dereg_mr(mr), "the end of a region");
}

/* Who sleeps until a completion comes is told of the flushed ones. */
static void wakes(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *told = NULL;
	void *nothing;
	row("ibv_get_cq_event(3)", 0, ibv_get_cq_event(channel, &told, &nothing) ? errno : 0,
	    "a completion queue's event comes");
	holds("ibv_get_cq_event(3)", told == cq, "it is the queue's that was asked for");
	ibv_ack_cq_events(cq, 1);
}

/* The shortest of some forks: who waited for the engine would do so each time. */
static unsigned long shortest_fork(void)
{
	unsigned long shortest = fork_us();
	for (int i = 1; i < 5; i++) {
		unsigned long took = fork_us();
		shortest = took < shortest ? took : shortest;
	}
	return shortest;
}

static void panics(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0);
	struct ibv_qp *bystander = new_qp(pd, cq, IBV_QPT_RC);
	struct ibv_async_event event = { 0 };
	struct ibv_wc wc;
	must_change(bystander, IBV_QPS_INIT, 0);
	receive(bystander, 2, NULL, 0, 0);
	if (ibv_req_notify_cq(cq, 0))
		fail("ask for an event");
	struct pair pair = meet_the_defect();
	row(FATAL, 0, ibv_get_async_event(context, &event) ? errno : 0, "an event comes");
	equal(FATAL, IBV_EVENT_DEVICE_FATAL, event.event_type, "which says that the device ended");
	ibv_ack_async_event(&event);
	wakes(channel, cq);
	completes("ibv_poll_cq(3)", cq, 2, IBV_WC_WR_FLUSH_ERR, "a bystander's receive");
	completes("ibv_poll_cq(3)", pair.a_cq, 1, IBV_WC_WR_FLUSH_ERR, "the write");
	for (int i = 0; i < RECEIVES; i++)
		completes("ibv_poll_cq(3)", pair.b_cq, FIRST_RECEIVE + i, IBV_WC_WR_FLUSH_ERR,
			  "receive %d", i);
	holds("ibv_poll_cq(3)", ibv_poll_cq(pair.a_cq, 1, &wc) <= 0, "nothing else completes");
	refuses(pair);
	printf("fork took %lu us\n", shortest_fork());
	row("ibv_close_device(3)", 0, ibv_close_device(context), "the context closes");
}

static void stands(void)
{
	enum { LIMIT_US = 100000 };
	double end = seconds() + 20;
	unsigned long took;
	meet_the_defect();
	/* until the turn is under way, which no call waits for */
	do
		took = fork_us();
	while (took < LIMIT_US && seconds() < end);
	/* it stands for ever: the shortest of some is what the machine adds nothing to */
	for (int i = 0; i < 3; i++) {
		unsigned long again = fork_us();
		took = again < took ? again : took;
	}
	printf("fork took %lu us\n", took);
}

int main(int argc, char **argv)
{
	/* whatever hangs is seen to hang */
	alarm(60);
	open_first_device();
	if (argc == 2 && !strcmp(argv[1], "panics")) {
		panics();
		return finish();
	}
	if (argc != 2 || strcmp(argv[1], "stands"))
		fail("arguments");
	stands();
	return 0;
}
