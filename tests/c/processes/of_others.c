/*
 * What two processes that know nothing of each other cannot share: a context whose descriptor one
 * hands to the other, and what belongs to an XRC domain over a file that both open.
 *
 *   of_others give NAME FILE  has a context, a domain over FILE, and a queue pair and a shared
 *                             receive queue in it; hands them out at the abstract socket NAME, and
 *                             has them until it is killed
 *   of_others take NAME FILE  tries to use them
 */
#include "hand_over.h"

#include <fcntl.h>
#include <unistd.h>

/* What goes along with the descriptor. */
struct numbers {
	uint32_t qp, srq;
};

static struct ibv_cq *cq;

static struct ibv_xrcd *try_domain(int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = IBV_XRCD_INIT_ATTR_FD |
							IBV_XRCD_INIT_ATTR_OFLAGS,
					   .fd = fd,
					   .oflags = oflags };
	return ibv_open_xrcd(context, &init);
}

static struct ibv_qp *half(enum ibv_qp_type type, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = type,
					    .comp_mask = xrcd ? IBV_QP_INIT_ATTR_XRCD
							      : IBV_QP_INIT_ATTR_PD,
					    .pd = pd,
					    .xrcd = xrcd,
					    .send_cq = cq,
					    .cap = { 8, 8, 2, 2, 64 },
					    .sq_sig_all = 1 };
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	if (!qp)
		fail("one half of XRC");
	return qp;
}

/* Attributes as if to RC. */
static void connect_half(struct ibv_qp *qp, uint32_t peer)
{
	for (enum ibv_qp_state next = IBV_QPS_INIT; next <= IBV_QPS_RTS; next++) {
		struct ibv_qp_attr attr;
		int mask = attributes(IBV_QPT_RC, next, peer, &attr);
		errno = ibv_modify_qp(qp, &attr, mask);
		if (errno)
			fail("an ordinary change of state");
	}
}

static struct ibv_srq *queue(struct ibv_xrcd *xrcd, uint32_t *number)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 },
					     .comp_mask =
						     IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD |
						     IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ,
					     .srq_type = IBV_SRQT_XRC,
					     .pd = pd,
					     .xrcd = xrcd,
					     .cq = cq };
	struct ibv_srq *srq = ibv_create_srq_ex(context, &init);
	if (!srq || ibv_get_srq_num(srq, number))
		fail("an XRC shared receive queue");
	return srq;
}

static struct ibv_qp *try_open(struct ibv_xrcd *xrcd, uint32_t number)
{
	struct ibv_qp_open_attr attr = { .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD |
						      IBV_QP_OPEN_ATTR_TYPE,
					 .qp_num = number,
					 .xrcd = xrcd,
					 .qp_type = IBV_QPT_XRC_RECV };
	return ibv_open_qp(context, &attr);
}

static void give(const char *name, int file)
{
	struct numbers numbers;
	struct ibv_xrcd *xrcd = try_domain(file, O_CREAT | O_EXCL);
	if (!xrcd)
		fail("an XRC domain");
	numbers.qp = half(IBV_QPT_XRC_RECV, xrcd)->qp_num;
	queue(xrcd, &numbers.srq);
	int listener = hand_over_at(name);
	printf("ready\n");
	if (!hand_over(listener, context->cmd_fd, &numbers, sizeof(numbers)))
		fail("hand the descriptor over");
	for (;;)
		pause();
}

static void sends_to(const char *source, struct ibv_qp *qp, uint32_t srqn, enum ibv_wc_status want,
		     const char *what)
{
	struct ibv_send_wr wr = { .wr_id = srqn, .opcode = IBV_WR_SEND };
	wr.qp_type.xrc.remote_srqn = srqn;
	post(qp, &wr);
	completes(source, cq, srqn, want, "%s", what);
}

static int take(const char *name, int file)
{
	const char *import = "man ibv_import_device", *domain = "ib_uverbs_open_xrcd",
		   *open = "man ibv_open_qp";
	struct numbers theirs;
	uint32_t number;
	int fd = fetch(name, &theirs, sizeof(theirs));
	row(import, EOPNOTSUPP, POINTER(ibv_close_device, ibv_import_device(fd)),
	    "the context of another process");
	row(import, EINVAL, POINTER(ibv_close_device, ibv_import_device(file)),
	    "a descriptor of no context");
	row(import, 0, POINTER(ibv_close_device, ibv_import_device(context->cmd_fd)),
	    "this process's own");
	row(domain, EAGAIN, POINTER(ibv_close_xrcd, try_domain(file, 0)),
	    "a file that has another process's domain only, without O_CREAT");
	struct ibv_xrcd *xrcd = try_domain(file, O_CREAT | O_EXCL);
	holds(domain, xrcd != NULL, "a domain of this process's own over the file, O_EXCL");
	struct ibv_qp *receive = half(IBV_QPT_XRC_RECV, xrcd), *send = half(IBV_QPT_XRC_SEND, NULL);
	row(open, 0, POINTER(ibv_destroy_qp, try_open(xrcd, receive->qp_num)),
	    "a queue pair of this process");
	row(open, EOPNOTSUPP, POINTER(ibv_destroy_qp, try_open(xrcd, theirs.qp)),
	    "a queue pair of another process");
	row(open, EINVAL, POINTER(ibv_destroy_qp, try_open(xrcd, theirs.qp ^ 1)),
	    "a number that the other process has not given");
	row(open, EINVAL, POINTER(ibv_destroy_qp, try_open(xrcd, receive->qp_num ^ 1)),
	    "a number that this process has not given");
	connect_half(send, receive->qp_num);
	connect_half(receive, send->qp_num);
	struct ibv_srq *srq = queue(xrcd, &number);
	struct ibv_recv_wr wr = { .wr_id = number }, *bad;
	if (ibv_post_srq_recv(srq, &wr, &bad))
		fail("post to the shared queue");
	equal("IBA A14", number >> 14, receive->qp_num >> 14,
	      "numbers of queues say whose they are, as those of queue pairs do");
	sends_to("IBA A14", send, number, IBV_WC_SUCCESS, "a queue of this process");
	completes("IBA A14", cq, number, IBV_WC_SUCCESS, "what it receives");
	sends_to("IBA A14.4", send, theirs.srq, IBV_WC_REM_INV_REQ_ERR,
		 "a queue of another process, which is unknown here");
	return finish();
}

int main(int argc, char **argv)
{
	int file = argc == 4 ? open(argv[3], O_RDONLY | O_CLOEXEC) : -1;
	if (file < 0)
		fail("give|take NAME FILE");
	open_first_device();
	cq = new_cq(64);
	if (!strcmp(argv[1], "give"))
		give(argv[2], file);
	return take(argv[2], file);
}
