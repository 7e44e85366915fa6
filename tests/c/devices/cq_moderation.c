/*
 * Events of a completion queue that wait for a number of completions or for a time
 * (ibv_modify_cq(3)).
 *
 *   cq_moderation
 */
#include "rows.h"
#include <poll.h>

#define RULE "ibv_modify_cq(3)"

enum { MESSAGES = 64, PERIOD_US = 4000 };

static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_qp *near, *far;
static struct ibv_mr *mr;
static char bytes[64];

static int event_within(int milliseconds)
{
	struct pollfd waiting = { channel->fd, POLLIN, 0 };
	struct ibv_cq *of;
	void *own;
	if (poll(&waiting, 1, milliseconds) != 1)
		return 0;
	if (ibv_get_cq_event(channel, &of, &own) || of != cq)
		fail("the event");
	ibv_ack_cq_events(cq, 1);
	return 1;
}

static void moderate(uint16_t count, uint16_t period_us)
{
	struct ibv_modify_cq_attr attr = { .attr_mask = IBV_CQ_ATTR_MODERATE,
					   .moderate = { count, period_us } };
	row(RULE, 0, ibv_modify_cq(cq, &attr), "a count of %d and a period of %d us", count,
	    period_us);
}

static void complete(void)
{
	struct ibv_sge sge = { (uintptr_t)bytes, 8, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)bytes + 8, mr->rkey } };
	struct ibv_wc wc;
	post(near, &wr);
	if (!wait_for(cq, &wc, 20) || wc.status != IBV_WC_SUCCESS)
		fail("a completion");
}

/* How many events MESSAGES completions make, each asked for, and how long that takes. */
static int events(double *took)
{
	int count = 0, armed = 0;
	double begun = seconds();
	for (int i = 0; i < MESSAGES; i++) {
		if (!armed && ibv_req_notify_cq(cq, 0))
			fail("arming");
		armed = 1;
		complete();
		if (event_within(0)) {
			count++;
			armed = 0;
		}
	}
	*took = seconds() - begun;
	if (armed)
		count += event_within(10000);
	return count;
}

int main(void)
{
	double took;
	rnr_retries = 7;
	open_first_device();
	channel = ibv_create_comp_channel(context);
	cq = channel ? ibv_create_cq(context, 16, NULL, channel, 0) : NULL;
	mr = ibv_reg_mr(pd, bytes, sizeof(bytes), EVERYTHING);
	if (!cq || !mr)
		fail("objects");
	near = new_qp(pd, cq, IBV_QPT_RC);
	far = new_qp(pd, cq, IBV_QPT_RC);
	connect_to(near, far->qp_num);
	connect_to(far, near->qp_num);

	moderate(MESSAGES * 4, PERIOD_US);
	/* The first event ends a quiet time. */
	int count = events(&took);
	int most = 2 + took * 1e6 / PERIOD_US;
	holds(RULE, count >= 1 && count <= most, "no more events than there were periods");
	ibv_req_notify_cq(cq, 0);
	double begun = seconds();
	complete();
	holds(RULE, event_within(10000), "the event of the last completion comes");
	ibv_req_notify_cq(cq, 0);
	complete();
	holds(RULE, event_within(10000) && (seconds() - begun) * 1e6 >= PERIOD_US,
	      "and the next not before the period is over");
	moderate(0, 0);
	for (int i = 0; i < 10; i++) {
		ibv_req_notify_cq(cq, 0);
		complete();
		if (!event_within(10000))
			fail("an event for each completion");
	}
	return finish();
}
