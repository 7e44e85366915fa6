/*
 * A program that closes every descriptor it can name, in each of the ways there are, and goes on
 * with RDMA afterwards. What it opened itself must be closed then.
 */
#include "rows.h"

#include <fcntl.h>
#include <unistd.h>

static unsigned char source[4096], target[4096];

static void move(struct pair pair, struct ibv_mr *from, struct ibv_mr *to, const char *when)
{
	static unsigned char seed;
	memset(source, ++seed, sizeof(source));
	struct ibv_sge sge = { (uintptr_t)source, sizeof(source), from->lkey };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)target, to->rkey } };
	post(pair.a, &wr);
	completes("close(2)", pair.a_cq, 1, IBV_WC_SUCCESS, "a write after %s", when);
	holds("close(2)", !memcmp(source, target, sizeof(source)), "its data");
}

static void close_loop(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
}

static void close_by_range(void)
{
	if (close_range(3, ~0u, 0))
		fail("close_range");
}

static void close_from(void) { closefrom(3); }

static void replace_loop(void)
{
	for (int fd = 3; fd < 1024; fd++)
		dup2(1, fd);
	close_loop();
}

static const struct {
	const char *name;
	void (*run)(void);
} ways[] = {
	{ "a loop over close", close_loop },
	{ "close_range", close_by_range },
	{ "closefrom", close_from },
	{ "a loop over dup2", replace_loop },
};

/*
 * EBADF once a number is free. The engine's threads may have it for a moment, before they move what
 * they open to high numbers.
 */
static int is_gone(int fd)
{
	double end = seconds() + 10;
	while (fcntl(fd, F_GETFD) >= 0)
		if (seconds() > end)
			return 0;
	return errno;
}

int main(void)
{
	open_first_device();
	struct pair old = new_pair(IBV_QPT_RC);
	struct ibv_mr *from = ibv_reg_mr(pd, source, sizeof(source), EVERYTHING);
	struct ibv_mr *to = ibv_reg_mr(pd, target, sizeof(target), EVERYTHING);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *reporting = channel ? ibv_create_cq(context, 8, NULL, channel, 0) : NULL;
	if (!from || !to || !reporting)
		fail("memory and a completion channel");
	for (unsigned way = 0; way < sizeof(ways) / sizeof(*ways); way++) {
		int own = open("/dev/null", O_RDONLY);
		ways[way].run();
		row("close(2)", EBADF, is_gone(own), "the program's own after %s", ways[way].name);
		move(old, from, to, ways[way].name);
		/* What is made anew needs the registry and sockets. */
		struct pair fresh = new_pair(IBV_QPT_RC);
		move(fresh, from, to, ways[way].name);
		end_pair(fresh);

		/* The channel's descriptor is the library's as well. */
		struct ibv_cq *said;
		void *context_of_cq;
		fresh = (struct pair){ .a_cq = reporting, .b_cq = new_cq(8) };
		fresh.a = new_qp(pd, reporting, IBV_QPT_RC);
		fresh.b = new_qp(pd, fresh.b_cq, IBV_QPT_RC);
		connect_to(fresh.a, fresh.b->qp_num);
		connect_to(fresh.b, fresh.a->qp_num);
		ibv_req_notify_cq(reporting, 0);
		move(fresh, from, to, "arming");
		holds("ibv_get_cq_event(3)",
		      !ibv_get_cq_event(channel, &said, &context_of_cq) && said == reporting,
		      "the event");
		ibv_ack_cq_events(reporting, 1);
		ibv_destroy_qp(fresh.a);
		ibv_destroy_qp(fresh.b);
		ibv_destroy_cq(fresh.b_cq);
	}
	end_pair(old);
	row("ibv_close_device(3)", 0,
	    ibv_dereg_mr(from) | ibv_dereg_mr(to) | ibv_destroy_cq(reporting), "objects end");
	row("ibv_close_device(3)", 0, ibv_destroy_comp_channel(channel) | ibv_dealloc_pd(pd),
	    "the channel ends");
	row("ibv_close_device(3)", 0, ibv_close_device(context), "the device closes");
	int lowest = open("/dev/null", O_RDONLY);
	equal("close(2)", 3, lowest, "the lowest descriptor is free again");
	open_first_device();
	return finish();
}
