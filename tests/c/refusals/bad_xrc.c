/*
 * Extended reliable connections (ibv_open_xrcd(3), ibv_create_srq_ex(3), ibv_open_qp(3)): what is
 * refused and how, who may name which queue, and that a receiving half lives as long as one handle
 * of it does.
 */
#include "rows.h"
#include <fcntl.h>
#include <unistd.h>

enum { BOTH = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS };

static struct ibv_cq *cq;
static char *memory;
static struct ibv_mr *mr;

static struct ibv_xrcd *try_domain(int mask, int fd, int oflags)
{
	struct ibv_xrcd_init_attr init = { .comp_mask = mask, .fd = fd, .oflags = oflags };
	return ibv_open_xrcd(context, &init);
}

static struct ibv_xrcd *domain(int fd)
{
	struct ibv_xrcd *xrcd = try_domain(BOTH, fd, O_CREAT);
	if (!xrcd)
		fail("an XRC domain");
	return xrcd;
}

static struct ibv_srq *try_queue(struct ibv_xrcd *xrcd, int mask)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 },
					     .comp_mask = mask,
					     .srq_type = IBV_SRQT_XRC,
					     .pd = pd,
					     .xrcd = xrcd,
					     .cq = cq };
	return ibv_create_srq_ex(context, &init);
}

enum {
	QUEUE = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
	IBV_SRQ_INIT_ATTR_CQ
};

static struct ibv_srq *queue(struct ibv_xrcd *xrcd, uint32_t *number)
{
	struct ibv_srq *srq = try_queue(xrcd, QUEUE);
	if (!srq || ibv_get_srq_num(srq, number))
		fail("an XRC shared receive queue");
	return srq;
}

static struct ibv_qp *try_half(enum ibv_qp_type type, int mask, struct ibv_xrcd *xrcd)
{
	struct ibv_qp_init_attr_ex init = { .qp_type = type,
					    .comp_mask = mask,
					    .pd = pd,
					    .xrcd = xrcd,
					    .send_cq = cq,
					    .cap = { 8, 8, 2, 2, 64 },
					    .sq_sig_all = 1 };
	return ibv_create_qp_ex(context, &init);
}

/* Attributes as perftest gives them: as if to RC. */
static void connect_half(struct ibv_qp *qp, uint32_t peer)
{
	static const enum ibv_qp_state way[] = { IBV_QPS_INIT, IBV_QPS_RTR, IBV_QPS_RTS };
	for (int i = 0; i < 3; i++) {
		struct ibv_qp_attr attr;
		int mask = attributes(IBV_QPT_RC, way[i], peer, &attr);
		errno = ibv_modify_qp(qp, &attr, mask);
		if (errno)
			fail("an ordinary change of state");
	}
}

struct halves {
	struct ibv_qp *send, *receive;
};

static struct halves halves(struct ibv_xrcd *xrcd)
{
	struct halves pair = { try_half(IBV_QPT_XRC_SEND, IBV_QP_INIT_ATTR_PD, NULL),
			       try_half(IBV_QPT_XRC_RECV, IBV_QP_INIT_ATTR_XRCD, xrcd) };
	if (!pair.send || !pair.receive)
		fail("both halves");
	connect_half(pair.send, pair.receive->qp_num);
	connect_half(pair.receive, pair.send->qp_num);
	return pair;
}

static void end(struct halves pair)
{
	ibv_destroy_qp(pair.send);
	ibv_destroy_qp(pair.receive);
}

static void fill(struct ibv_srq *srq, int requests)
{
	struct ibv_sge sge = { (uintptr_t)memory + 4096, 4096, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = 200, .sg_list = &sge, .num_sge = 1 }, *bad;
	while (requests--)
		if (ibv_post_srq_recv(srq, &wr, &bad))
			fail("post to the shared queue");
}

static void send_to(struct ibv_qp *qp, uint32_t srqn)
{
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 100, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};
	wr.qp_type.xrc.remote_srqn = srqn;
	post(qp, &wr);
}

/* The next two completions, in either order: of the request and of the receive. */
static void both_complete(const char *what, uint32_t receiver)
{
	int sent = 0, received = 0;
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		if (!wait_for(cq, &wc, 10) || wc.status)
			break;
		sent += wc.wr_id == 100 && wc.opcode == IBV_WC_SEND;
		received += wc.wr_id == 200 && wc.opcode == IBV_WC_RECV && wc.qp_num == receiver &&
			    wc.byte_len == 64;
	}
	holds(what, sent == 1 && received == 1,
	      "a SEND arrives in the queue it names and both ends complete");
}

static int domain_errno(int mask, int fd, int oflags)
{
	return POINTER(ibv_close_xrcd, try_domain(mask, fd, oflags));
}

static void domains(int file, int other)
{
	const char *page = "ib_uverbs_open_xrcd";
	row(page, ENOSYS, domain_errno(BOTH | IBV_XRCD_INIT_ATTR_RESERVED, file, O_CREAT),
	    "unknown comp_mask");
	row(page, EINVAL, domain_errno(IBV_XRCD_INIT_ATTR_FD, file, O_CREAT), "no oflags");
	row(page, EINVAL, domain_errno(IBV_XRCD_INIT_ATTR_OFLAGS, file, O_CREAT), "no fd");
	row(page, EINVAL, domain_errno(BOTH, file, O_CREAT | O_APPEND), "an unknown open flag");
	row(page, EBADF, domain_errno(BOTH, 12345, O_CREAT), "a descriptor that is not open");
	row(page, EBADF, domain_errno(BOTH, -2, O_CREAT), "descriptor -2");
	row(page, EAGAIN, domain_errno(BOTH, file, 0),
	    "a file that has no domain, without O_CREAT");
	row(page, 0, domain_errno(BOTH, -1, O_CREAT), "a domain without a file");
	struct ibv_xrcd *first = domain(file);
	row(page, 0, domain_errno(BOTH, file, 0), "the file's domain once more");
	row(page, EINVAL, domain_errno(BOTH, file, O_CREAT | O_EXCL), "the file's domain, O_EXCL");
	row(page, EAGAIN, domain_errno(BOTH, other, 0), "another file has none");
	row(page, 0, ibv_close_xrcd(first), "the last close");
	row(page, EAGAIN, domain_errno(BOTH, file, 0), "then the domain is gone");
	row(page, 0, domain_errno(BOTH, file, O_CREAT | O_EXCL), "and may be new");
}

static void queues(int file)
{
	struct ibv_xrcd *xrcd = domain(file), *again = domain(file);
	uint32_t number, second;
	row("man ibv_create_srq_ex", EINVAL,
	    POINTER(ibv_destroy_srq, try_queue(xrcd, QUEUE & ~IBV_SRQ_INIT_ATTR_XRCD)),
	    "no domain");
	row("man ibv_create_srq_ex", EINVAL,
	    POINTER(ibv_destroy_srq, try_queue(xrcd, QUEUE & ~IBV_SRQ_INIT_ATTR_CQ)), "no CQ");
	row("man ibv_create_srq_ex", EINVAL,
	    POINTER(ibv_destroy_srq, try_queue(xrcd, QUEUE & ~IBV_SRQ_INIT_ATTR_PD)), "no PD");
	row("man ibv_create_srq_ex", EINVAL, POINTER(ibv_destroy_srq, try_queue(NULL, QUEUE)),
	    "a null domain");
	struct ibv_srq *srq = queue(xrcd, &number), *two = queue(xrcd, &second);
	holds("man ibv_get_srq_num", number && number < 1 << 24 && number != second,
	      "numbers have 24 bits and differ");
	struct ibv_srq_init_attr basic = { .attr = { 4, 1, 0 } };
	struct ibv_srq *plain = ibv_create_srq(pd, &basic);
	row("man ibv_get_srq_num", EINVAL, ibv_get_srq_num(plain, &number),
	    "the number of a queue that is not of XRC");
	ibv_destroy_srq(plain);
	struct ibv_qp_init_attr uses = { .send_cq = cq,
					 .recv_cq = cq,
					 .srq = srq,
					 .qp_type = IBV_QPT_RC,
					 .cap = { 1, 1, 1, 1, 0 } };
	row("IBA A14", EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &uses)),
	    "an RC queue pair over an XRC queue");
	row("ib_uverbs_close_xrcd", EBUSY, ibv_close_xrcd(xrcd), "close a domain that has queues");
	row("ib_uverbs_close_xrcd", 0, ibv_close_xrcd(again), "close the other open of it");
	row("man ibv_destroy_cq", EBUSY, ibv_destroy_cq(cq), "destroy the CQ of an XRC queue");
	row("man ibv_destroy_srq", 0, ibv_destroy_srq(srq), "destroy the queue");
	row("man ibv_destroy_srq", 0, ibv_destroy_srq(two), "destroy the other");
	row("man ibv_close_xrcd", 0, ibv_close_xrcd(xrcd), "close the domain at last");
}

static int half_errno(enum ibv_qp_type type, int mask, struct ibv_xrcd *xrcd)
{
	return POINTER(ibv_destroy_qp, try_half(type, mask, xrcd));
}

static void queue_pairs(void)
{
	const char *page = "man ibv_create_qp_ex";
	struct ibv_xrcd *xrcd = domain(-1);
	enum { PD = IBV_QP_INIT_ATTR_PD, XRCD = IBV_QP_INIT_ATTR_XRCD };
	row(page, EINVAL, half_errno(IBV_QPT_XRC_RECV, 0, xrcd),
	    "a receiving half without a domain");
	row(page, EINVAL, half_errno(IBV_QPT_XRC_RECV, PD, xrcd),
	    "a receiving half with a PD instead");
	row(page, EINVAL, half_errno(IBV_QPT_XRC_RECV, XRCD, NULL),
	    "a receiving half with a null domain");
	row(page, EINVAL, half_errno(IBV_QPT_XRC_SEND, XRCD, xrcd),
	    "a sending half with an XRC domain");
	row(page, EINVAL, half_errno(IBV_QPT_RC, PD | XRCD, xrcd),
	    "an RC queue pair with an XRC domain");
	struct halves pair = halves(xrcd);
	row("ib_uverbs_close_xrcd", EBUSY, ibv_close_xrcd(xrcd),
	    "close a domain that has a queue pair");
	holds("man ibv_create_qp_ex",
	      !pair.receive->pd && !pair.receive->send_cq && !pair.send->recv_cq,
	      "absent parts are NULL");
	struct ibv_recv_wr receive_wr = { 0 }, *bad_receive;
	struct ibv_send_wr send_wr = { .opcode = IBV_WR_SEND }, *bad_send;
	row("man ibv_post_recv", EINVAL, ibv_post_recv(pair.receive, &receive_wr, &bad_receive),
	    "post a receive on the receiving half");
	row("man ibv_post_recv", EINVAL, ibv_post_recv(pair.send, &receive_wr, &bad_receive),
	    "post a receive on the sending half");
	row("man ibv_post_send", EINVAL, ibv_post_send(pair.receive, &send_wr, &bad_send),
	    "post a send on the receiving half");
	end(pair);
	row("man ibv_close_xrcd", 0, ibv_close_xrcd(xrcd), "close the domain at last");
}

static void traffic(void)
{
	struct ibv_xrcd *xrcd = domain(-1), *foreign = domain(-1);
	uint32_t number, theirs;
	struct ibv_srq *srq = queue(xrcd, &number), *other = queue(foreign, &theirs);
	struct halves pair = halves(xrcd);
	fill(srq, 8);
	fill(other, 1);
	send_to(pair.send, number);
	both_complete("IBA A14", pair.receive->qp_num);
	send_to(pair.send, theirs);
	completes("IBA A14", cq, 100, IBV_WC_REM_ACCESS_ERR, "a SEND to a queue of another domain");
	end(pair);
	pair = halves(xrcd);
	ibv_destroy_srq(other);
	send_to(pair.send, theirs);
	completes("IBA A14", cq, 100, IBV_WC_REM_INV_REQ_ERR, "a SEND to a queue that is gone");
	end(pair);
	/* The limit of the queue, as of any. */
	pair = halves(xrcd);
	struct ibv_srq_attr limit = { .srq_limit = 7 };
	if (ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT))
		fail("arm the limit");
	send_to(pair.send, number);
	both_complete("IBA A14", pair.receive->qp_num);
	struct ibv_async_event event = { 0 };
	while (event.event_type != IBV_EVENT_SRQ_LIMIT_REACHED &&
	       !ibv_get_async_event(context, &event)) {
		if (event.event_type == IBV_EVENT_SRQ_LIMIT_REACHED)
			holds("IBA 11.6.3.2", event.element.srq == srq,
			      "the limit's event names the queue");
		ibv_ack_async_event(&event);
	}
	end(pair);
	ibv_destroy_srq(srq);
	row("man ibv_close_xrcd", 0, ibv_close_xrcd(xrcd), "close the domain");
	row("man ibv_close_xrcd", 0, ibv_close_xrcd(foreign), "close the other");
}

static struct ibv_qp *try_open(int mask, uint32_t number, struct ibv_xrcd *xrcd,
			       enum ibv_qp_type type)
{
	struct ibv_qp_open_attr attr = { .comp_mask = mask,
					 .qp_num = number,
					 .xrcd = xrcd,
					 .qp_context = memory,
					 .qp_type = type };
	return ibv_open_qp(context, &attr);
}

static void shared(int file)
{
	const char *page = "man ibv_open_qp";
	enum { ALL = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE };
	struct ibv_xrcd *xrcd = domain(file), *again = domain(file), *foreign = domain(-1);
	uint32_t srqn;
	struct ibv_srq *srq = queue(xrcd, &srqn);
	struct halves pair = halves(xrcd);
	uint32_t number = pair.receive->qp_num;
	enum ibv_qp_type type = IBV_QPT_XRC_RECV;
#define OPEN(mask, number, xrcd, type) POINTER(ibv_destroy_qp, try_open(mask, number, xrcd, type))
	row(page, EOPNOTSUPP, OPEN(ALL | IBV_QP_OPEN_ATTR_RESERVED, number, xrcd, type),
	    "unknown comp_mask");
	row(page, EINVAL, OPEN(ALL & ~IBV_QP_OPEN_ATTR_NUM, number, xrcd, type), "no number");
	row(page, EINVAL, OPEN(ALL & ~IBV_QP_OPEN_ATTR_XRCD, number, xrcd, type), "no domain");
	row(page, EINVAL, OPEN(ALL & ~IBV_QP_OPEN_ATTR_TYPE, number, xrcd, type), "no type");
	row(page, EINVAL, OPEN(ALL, number, xrcd, IBV_QPT_RC), "type RC");
	row(page, EINVAL, OPEN(ALL, number, foreign, type), "through another domain");
	row(page, EINVAL, OPEN(ALL, pair.send->qp_num, xrcd, type), "the sending half");
	row(page, EINVAL, OPEN(ALL, number ^ 0x1fff, xrcd, type), "a number that is nobody's");
	struct ibv_qp *handle = try_open(ALL | IBV_QP_OPEN_ATTR_CONTEXT, number, again, type);
	if (!handle)
		fail("open the receiving half");
	holds(page, handle->qp_num == number && handle->qp_context == memory,
	      "the handle has the number and the context given");
	fill(srq, 4);
	send_to(pair.send, srqn);
	both_complete("two handles", number);
	row(page, 0, ibv_destroy_qp(pair.receive), "destroy the first handle");
	send_to(pair.send, srqn);
	both_complete("one handle left", number);
	equal(page, IBV_QPS_RTS, state_of(handle), "its state by the other handle");
	row(page, 0, ibv_destroy_qp(handle), "destroy the last handle");
	row(page, EINVAL, OPEN(ALL, number, xrcd, type), "then there is no such queue pair");
	ibv_destroy_qp(pair.send);
	ibv_destroy_srq(srq);
	row("man ibv_close_xrcd", 0,
	    ibv_close_xrcd(again) | ibv_close_xrcd(xrcd) | ibv_close_xrcd(foreign),
	    "all domains close");
}

int main(void)
{
	char first[] = "/tmp/bad-xrc-XXXXXX", second[] = "/tmp/bad-xrc-XXXXXX";
	int file = mkstemp(first), other = mkstemp(second);
	open_first_device();
	cq = new_cq(64);
	memory = calloc(1, 8192);
	mr = ibv_reg_mr(pd, memory, 8192, LOCAL);
	if (file < 0 || other < 0 || !mr)
		fail("files and memory");
	unlink(first);
	unlink(second);
	domains(file, other);
	queues(file);
	queue_pairs();
	traffic();
	shared(file);
	row("man ibv_destroy_cq", 0, ibv_destroy_cq(cq), "nothing uses the CQ any more");
	ibv_dereg_mr(mr);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
