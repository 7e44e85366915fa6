/*
 * Tag matching (ibv_create_srq_ex(3), ibv_post_srq_ops(3), infiniband/tm_types.h): what is refused
 * and how, what each message and each operation on the list completes with, and the rendezvous that
 * the HCA serves itself.
 */
#include "rows.h"
#include <endian.h>
#include <infiniband/tm_types.h>

enum {
	TM_QUEUE = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_CQ |
	IBV_SRQ_INIT_ATTR_TM
};
enum { TAGS = 4, SIGNALED = IBV_OPS_SIGNALED, SYNC = IBV_OPS_SIGNALED | IBV_OPS_TM_SYNC };

static struct ibv_cq_ex *cq_ex;
static struct ibv_cq *cq, *sender_cq;
static struct ibv_tm_caps caps;
static char *here, *there;
static struct ibv_mr *here_mr, *there_mr;

static struct ibv_srq *try_queue(int mask, struct ibv_cq *at, uint32_t tags, uint32_t ops)
{
	struct ibv_srq_init_attr_ex init = { .attr = { 16, 1, 0 },
					     .comp_mask = mask,
					     .srq_type = IBV_SRQT_TM,
					     .pd = pd,
					     .cq = at,
					     .tm_cap = { tags, ops } };
	return ibv_create_srq_ex(context, &init);
}

static struct ibv_srq *queue(void)
{
	struct ibv_srq *srq = try_queue(TM_QUEUE, cq, TAGS, 16);
	if (!srq)
		fail("a queue that matches tags");
	return srq;
}

static void creation(void)
{
	const char *page = "man ibv_create_srq_ex";
#define QUEUE(mask, at, tags, ops) POINTER(ibv_destroy_srq, try_queue(mask, at, tags, ops))
	row(page, EINVAL, QUEUE(TM_QUEUE & ~IBV_SRQ_INIT_ATTR_CQ, cq, TAGS, 1), "no CQ");
	row(page, EINVAL, QUEUE(TM_QUEUE & ~IBV_SRQ_INIT_ATTR_TM, cq, TAGS, 1),
	    "no size of the list");
	row(page, EINVAL, QUEUE(TM_QUEUE & ~IBV_SRQ_INIT_ATTR_PD, cq, TAGS, 1), "no PD");
	row(page, EINVAL, QUEUE(TM_QUEUE, NULL, TAGS, 1), "a null CQ");
	row(page, EINVAL, QUEUE(TM_QUEUE, cq, 0, 1), "a list of no tags");
	row(page, EINVAL, QUEUE(TM_QUEUE, cq, caps.max_num_tags + 1, 1),
	    "more tags than the device has");
	row(page, EINVAL, QUEUE(TM_QUEUE, cq, TAGS, caps.max_ops + 1),
	    "more operations than the device has");
	row("mlx5_create_srq_ex", EINVAL, QUEUE(TM_QUEUE, sender_cq, TAGS, 1),
	    "a CQ that is not extended");
	row(page, EOPNOTSUPP, QUEUE(TM_QUEUE | IBV_SRQ_INIT_ATTR_XRCD, cq, TAGS, 1),
	    "an XRC domain besides");
	row(page, 0, QUEUE(TM_QUEUE, cq, caps.max_num_tags, caps.max_ops),
	    "all that the device has");
	struct ibv_srq *srq = queue();
	uint32_t number;
	row("man ibv_get_srq_num", EINVAL, ibv_get_srq_num(srq, &number),
	    "the number of a queue that is not of XRC");
	struct ibv_qp_init_attr init = {
		.send_cq = sender_cq, .recv_cq = sender_cq, .srq = srq, .cap = { 1, 1, 1, 1, 0 }
	};
	init.qp_type = IBV_QPT_UD;
	row("tm_caps.flags", EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &init)),
	    "a UD queue pair over it");
	init.qp_type = IBV_QPT_UC;
	row("tm_caps.flags", EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &init)),
	    "a UC queue pair over it");
	row("man ibv_destroy_cq", EBUSY, ibv_destroy_cq(cq), "destroy its CQ");
	row("man ibv_destroy_srq", 0, ibv_destroy_srq(srq), "destroy it");
}

static struct ibv_sge entry;

static struct ibv_ops_wr add(uint64_t tag, void *at, uint32_t length, uint32_t lkey, int flags)
{
	struct ibv_ops_wr wr = { .wr_id = 500, .opcode = IBV_WR_TAG_ADD, .flags = flags };
	entry = (struct ibv_sge){ (uintptr_t)at, length, lkey };
	wr.tm.add.recv_wr_id = tag;
	wr.tm.add.sg_list = &entry;
	wr.tm.add.num_sge = 1;
	wr.tm.add.tag = tag;
	wr.tm.add.mask = ~0ull;
	return wr;
}

static int apply(struct ibv_srq *srq, struct ibv_ops_wr *wr)
{
	struct ibv_ops_wr *bad = NULL;
	int found = ibv_post_srq_ops(srq, wr, &bad);
	if (found && bad != wr)
		fail("bad_wr names the operation refused");
	return found;
}

/* A row about the next completion of the queue: of what, with what outcome and flags. */
static void completion(const char *source, uint64_t wr_id, int opcode, int status, unsigned flags,
		       unsigned length, const char *what)
{
	struct ibv_wc wc = { 0 };
	char found[120], wanted[120];
	int got = wait_for(cq, &wc, 10);
	if (wc.status)
		wc.opcode = opcode;
	snprintf(found, sizeof(found), "%d: opcode %d %s flags %#x length %u of %lu", got,
		 wc.opcode, ibv_wc_status_str(wc.status), wc.wc_flags, wc.byte_len, (long)wc.wr_id);
	snprintf(wanted, sizeof(wanted), "1: opcode %d %s flags %#x length %u of %lu", opcode,
		 ibv_wc_status_str(status), flags, length, (long)wr_id);
	verdict(!strcmp(found, wanted), what, found, wanted, source);
}

static void silence(const char *source, const char *what)
{
	struct ibv_wc wc;
	holds(source, ibv_poll_cq(cq, 1, &wc) == 0, what);
}

static void operations(void)
{
	const char *page = "man ibv_post_srq_ops";
	struct ibv_srq_init_attr basic = { .attr = { 4, 1, 0 } };
	struct ibv_srq *plain = ibv_create_srq(pd, &basic), *srq = queue();
	struct ibv_ops_wr wr = add(1, there, 64, there_mr->lkey, SIGNALED), second, *bad = NULL;
	row("mlx5_post_srq_ops", EINVAL, apply(plain, &wr), "a queue that does not match tags");
	ibv_destroy_srq(plain);
	wr.opcode = 3;
	row(page, EINVAL, apply(srq, &wr), "an unknown operation");
	wr = add(1, there, 64, there_mr->lkey, SIGNALED | 1 << 2);
	row(page, EINVAL, apply(srq, &wr), "an unknown flag");
	wr = add(1, there, 64, there_mr->lkey, SIGNALED);
	wr.tm.add.num_sge = -1;
	row(page, EINVAL, apply(srq, &wr), "-1 entries");
	wr.tm.add.num_sge = caps.max_sge + 1;
	row(page, EINVAL, apply(srq, &wr), "more entries than the device has");
	wr.tm.add.num_sge = 1;
	wr.tm.add.sg_list = NULL;
	row(page, EINVAL, apply(srq, &wr), "no list of entries");
	silence(page, "what is refused completes nothing");
	wr = add(1, there, 64, there_mr->lkey, SIGNALED);
	second = wr;
	second.opcode = 9;
	wr.next = &second;
	row(page, EINVAL, ibv_post_srq_ops(srq, &wr, &bad), "a good operation and a wrong one");
	holds(page, bad == &second, "bad_wr names the wrong one");
	completion(page, 500, IBV_WC_TM_ADD, 0, 0, 0, "the good one is done");
	wr.next = NULL;
	uint32_t handle = wr.tm.handle;
	for (int i = 1; i < TAGS; i++) {
		wr.flags = 0;
		row(page, 0, apply(srq, &wr), "buffer %d, without a completion", i);
	}
	silence(page, "no completion was asked for");
	row(page, ENOMEM, apply(srq, &wr), "one more than the list holds");
	wr = (struct ibv_ops_wr){
		.wr_id = 501, .opcode = IBV_WR_TAG_DEL, .flags = SIGNALED, .tm.handle = handle
	};
	row(page, 0, apply(srq, &wr), "remove a buffer");
	completion(page, 501, IBV_WC_TM_DEL, 0, 0, 0, "it is removed");
	row(page, 0, apply(srq, &wr), "remove it once more");
	completion(page, 501, IBV_WC_TM_DEL, IBV_WC_TM_ERR, 0, 0, "it is not there");
	wr.flags = 0;
	row(page, 0, apply(srq, &wr), "remove it once more, without a completion");
	silence(page, "no completion was asked for");
	wr = (struct ibv_ops_wr){ .wr_id = 502, .opcode = IBV_WR_TAG_SYNC, .flags = SYNC };
	row(page, 0, apply(srq, &wr), "say that no unexpected message came");
	completion(page, 502, IBV_WC_TM_SYNC, 0, 0, 0, "the counts are equal");
	ibv_destroy_srq(srq);
}

/* A queue pair over the queue, and the one that sends to it. */
struct ends {
	struct ibv_srq *srq;
	struct ibv_qp *to, *from;
};

static struct ends ends(int reads)
{
	struct ends ends = { .srq = queue(), .from = new_qp(pd, sender_cq, IBV_QPT_RC) };
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .srq = ends.srq,
					 .qp_type = IBV_QPT_RC,
					 .cap = { 0, 0, 0, 0, 0 } };
	ends.to = ibv_create_qp(pd, &init);
	if (!ends.to)
		fail("a queue pair over the queue");
	connect_to(ends.from, ends.to->qp_num);
	must_change(ends.to, IBV_QPS_INIT, ends.from->qp_num);
	must_change(ends.to, IBV_QPS_RTR, ends.from->qp_num);
	struct ibv_qp_attr attr;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_RTS, ends.from->qp_num, &attr);
	attr.max_rd_atomic = reads;
	if (ibv_modify_qp(ends.to, &attr, mask))
		fail("an ordinary change of state");
	return ends;
}

static void end(struct ends ends)
{
	ibv_destroy_qp(ends.from);
	ibv_destroy_qp(ends.to);
	ibv_destroy_srq(ends.srq);
	struct ibv_wc wc;
	while (ibv_poll_cq(cq, 1, &wc) > 0 || ibv_poll_cq(sender_cq, 1, &wc) > 0)
		;
}

static void ordinary(struct ibv_srq *srq, uint64_t wr_id)
{
	struct ibv_sge sge = { (uintptr_t)there + 4096, 512, there_mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = &sge, .num_sge = 1 }, *bad;
	if (ibv_post_srq_recv(srq, &wr, &bad))
		fail("an ordinary request");
}

static void buffer(struct ends ends, uint64_t tag, uint32_t length)
{
	struct ibv_ops_wr wr = add(tag, there, length, there_mr->lkey, 0);
	if (apply(ends.srq, &wr))
		fail("a tagged buffer");
}

static void send_message(struct ends ends, int op, uint64_t tag, uint32_t length)
{
	struct ibv_tmh header = { .opcode = op, .app_ctx = htobe32(77), .tag = htobe64(tag) };
	memcpy(here, &header, sizeof(header));
	struct ibv_sge sge = { (uintptr_t)here, length, here_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 100, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};
	post(ends.from, &wr);
}

static void rendezvous(struct ends ends, uint64_t tag, uint32_t length, uint32_t rkey)
{
	struct ibv_rvh asked = { htobe64((uintptr_t)here + 4096), htobe32(rkey), htobe32(length) };
	memcpy(here + sizeof(struct ibv_tmh), &asked, sizeof(asked));
	send_message(ends, IBV_TMH_RNDV, tag, sizeof(struct ibv_tmh) + sizeof(asked));
}

static void eager(void)
{
	const char *page = "tm_types.h";
	enum { BOTH = IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID };
	struct ends to = ends(1);
	row("man ibv_destroy_srq", EBUSY, ibv_destroy_srq(to.srq),
	    "destroy a queue that a queue pair uses");
	buffer(to, 7, 100);
	send_message(to, IBV_TMH_EAGER, 7, 116);
	completes(page, sender_cq, 100, IBV_WC_SUCCESS, "an eager message is sent");
	struct ibv_poll_cq_attr none = { 0 };
	while (ibv_start_poll(cq_ex, &none) == ENOENT)
		;
	struct ibv_wc_tm_info info = { 0 };
	ibv_wc_read_tm_info(cq_ex, &info);
	equal(page, 7, info.tag, "the tag of the message");
	equal(page, 77, info.priv, "the sender's word");
	equal(page, IBV_WC_TM_RECV, ibv_wc_read_opcode(cq_ex), "it is a message with a tag");
	equal(page, BOTH, ibv_wc_read_wc_flags(cq_ex), "it has met a buffer and lies there");
	equal(page, 100, ibv_wc_read_byte_len(cq_ex), "without its header");
	ibv_end_poll(cq_ex);
	holds(page, !memcmp(there, here + 16, 100), "its bytes are those sent");
	ordinary(to.srq, 300);
	send_message(to, IBV_TMH_EAGER, 8, 16);
	completion(page, 300, IBV_WC_TM_RECV, 0, 0, 16, "an unexpected message arrives whole");
	struct ibv_ops_wr wr = add(8, there, 100, there_mr->lkey, SIGNALED);
	row(page, 0, apply(to.srq, &wr), "post a buffer before saying so");
	completion("man ibv_post_srq_ops", 500, IBV_WC_TM_ADD, 0, IBV_WC_TM_SYNC_REQ, 0,
		   "the counts differ");
	ordinary(to.srq, 301);
	send_message(to, IBV_TMH_EAGER, 8, 16);
	completion("man ibv_post_srq_ops", 301, IBV_WC_TM_RECV, 0, 0, 16, "the buffer waits");
	wr = (struct ibv_ops_wr){
		.wr_id = 502, .opcode = IBV_WR_TAG_SYNC, .flags = SYNC, .tm.unexpected_cnt = 2
	};
	row(page, 0, apply(to.srq, &wr), "say that both were handled");
	completion("man ibv_post_srq_ops", 502, IBV_WC_TM_SYNC, 0, 0, 0, "the counts are equal");
	send_message(to, IBV_TMH_EAGER, 8, 20);
	completion("man ibv_post_srq_ops", 8, IBV_WC_TM_RECV, 0, BOTH, 4,
		   "the buffer takes the next message");
	ordinary(to.srq, 302);
	send_message(to, IBV_TMH_NO_TAG, 8, 15);
	completion(page, 302, IBV_WC_TM_NO_TAG, 0, 0, 15,
		   "a message too short for a header has no tag");
	end(to);
	to = ends(1);
	buffer(to, 7, 8);
	send_message(to, IBV_TMH_EAGER, 7, 25);
	completion("IBA 9.9.3", 7, 0, IBV_WC_LOC_LEN_ERR, 0, 0, "a message longer than its buffer");
	completes("IBA 9.9.3", sender_cq, 100, IBV_WC_REM_INV_REQ_ERR, "its sender");
	end(to);
}

static void rendezvous_rows(void)
{
	const char *page = "tm_types.h";
	struct ends to = ends(1);
	buffer(to, 7, 4096);
	receive(to.from, 200, here + 8192, 64, here_mr->lkey);
	rendezvous(to, 7, 4000, here_mr->rkey);
	completion(page, 7, IBV_WC_TM_RECV, 0, IBV_WC_TM_MATCH, 0,
		   "a rendezvous has met its buffer");
	completion(page, 7, IBV_WC_TM_RECV, 0, IBV_WC_TM_DATA_VALID, 4000, "its data is there");
	holds(page, !memcmp(there, here + 4096, 4000), "its bytes are the sender's");
	completes(page, sender_cq, 100, IBV_WC_SUCCESS, "the request is sent");
	completes(page, sender_cq, 200, IBV_WC_SUCCESS, "the sender gets a FIN");
	struct ibv_tmh fin = { .opcode = IBV_TMH_FIN, .app_ctx = htobe32(77), .tag = htobe64(7) };
	holds(page, !memcmp(here + 8192, &fin, sizeof(fin)), "with its own tag and word");
	buffer(to, 8, 64);
	rendezvous(to, 8, 64, here_mr->rkey ^ 0xff00);
	completion(page, 8, IBV_WC_TM_RECV, 0, IBV_WC_TM_MATCH, 0,
		   "a rendezvous with a wrong key has met its buffer");
	completion("IBA 9.9.2", 8, 0, IBV_WC_REM_ACCESS_ERR, 0, 0, "nothing comes");
	equal("IBA 10.3.1", IBV_QPS_ERR, state_of(to.to), "the queue pair is in error");
	end(to);
	to = ends(1);
	buffer(to, 7, 63);
	rendezvous(to, 7, 64, here_mr->rkey);
	completion("IBA 9.9.3", 7, 0, IBV_WC_LOC_LEN_ERR, 0, 0,
		   "a rendezvous longer than its buffer");
	end(to);
	to = ends(1);
	struct ibv_ops_wr wr = add(7, there, 64, there_mr->lkey ^ 0xff00, 0);
	row(page, 0, apply(to.srq, &wr), "a buffer with a wrong key");
	rendezvous(to, 7, 64, here_mr->rkey);
	completion(page, 7, IBV_WC_TM_RECV, 0, IBV_WC_TM_MATCH, 0, "meets a rendezvous");
	completion("IBA 9.9.2", 7, 0, IBV_WC_LOC_PROT_ERR, 0, 0, "and takes nothing");
	end(to);
	to = ends(0);
	buffer(to, 7, 64);
	rendezvous(to, 7, 64, here_mr->rkey);
	completion("mlx5", 7, 0, IBV_WC_TM_RNDV_INCOMPLETE, IBV_WC_TM_MATCH | IBV_WC_TM_DATA_VALID,
		   32, "a queue pair without READs leaves the rendezvous to the program");
	holds("mlx5", !memcmp(there, here, 32), "which finds the request in the buffer");
	end(to);
}

/* A CQ with two places gets a third completion of the list. */
static void overrun(void)
{
	const char *page = "IBA 11.6.3.2";
	struct ibv_cq_init_attr_ex small = { .cqe = 1 };
	struct ibv_cq *roomy = cq;
	cq = ibv_cq_ex_to_cq(ibv_create_cq_ex(context, &small));
	struct ibv_srq *srq = queue();
	struct ibv_qp_init_attr init = {
		.send_cq = roomy, .recv_cq = roomy, .srq = srq, .qp_type = IBV_QPT_RC
	};
	struct ibv_qp *qp = ibv_create_qp(pd, &init), *peer = new_qp(pd, sender_cq, IBV_QPT_RC);
	if (!qp)
		fail("a queue pair over the queue");
	connect_to(qp, peer->qp_num);
	for (int i = 0; i < 3; i++) {
		struct ibv_ops_wr wr = { .wr_id = 502, .opcode = IBV_WR_TAG_SYNC, .flags = SYNC };
		row("man ibv_post_srq_ops", 0, apply(srq, &wr), "operation %d", i);
	}
	int of_cq = 0, of_srq = 0, of_qp = 0;
	while (!of_cq || !of_srq || !of_qp) {
		struct ibv_async_event event;
		if (ibv_get_async_event(context, &event))
			fail("an event");
		of_cq += event.event_type == IBV_EVENT_CQ_ERR && event.element.cq == cq;
		of_srq += event.event_type == IBV_EVENT_SRQ_ERR && event.element.srq == srq;
		of_qp += event.event_type == IBV_EVENT_QP_FATAL && event.element.qp == qp;
		ibv_ack_async_event(&event);
	}
	holds(page, of_cq == 1 && of_srq == 1 && of_qp == 1,
	      "CQ, queue and queue pair report the loss, each once");
	equal(page, IBV_QPS_ERR, state_of(qp), "the queue pair is in error");
	for (int i = 0; i < 2; i++)
		completion(page, 502, IBV_WC_TM_SYNC, 0, 0, 0, "what found a place is there");
	struct ibv_wc wc;
	equal(page, -1, ibv_poll_cq(cq, 1, &wc), "then polling fails");
	ibv_destroy_qp(qp);
	ibv_destroy_qp(peer);
	ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	cq = roomy;
}

int main(void)
{
	open_first_device();
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(context, NULL, &attr))
		fail("extended attributes");
	caps = attr.tm_caps;
	holds("man ibv_query_device_ex",
	      caps.flags == IBV_TM_CAP_RC && caps.max_num_tags && caps.max_ops && caps.max_sge,
	      "the device matches tags on RC");
	equal("man ibv_query_device_ex", 64, caps.max_rndv_hdr_size,
	      "length of a rendezvous request");
	struct ibv_cq_init_attr_ex extended = {
		.cqe = 64, .wc_flags = IBV_WC_EX_WITH_TM_INFO | IBV_WC_STANDARD_FLAGS
	};
	cq_ex = ibv_create_cq_ex(context, &extended);
	sender_cq = new_cq(64);
	here = calloc(1, 16384);
	there = calloc(1, 16384);
	here_mr = ibv_reg_mr(pd, here, 16384, LOCAL | IBV_ACCESS_REMOTE_READ);
	there_mr = ibv_reg_mr(pd, there, 16384, LOCAL);
	if (!cq_ex || !here_mr || !there_mr)
		fail("queues and memory");
	cq = ibv_cq_ex_to_cq(cq_ex);
	for (int i = 16; i < 8192; i++)
		here[i] = i * 7;
	creation();
	operations();
	eager();
	rendezvous_rows();
	overrun();
	return finish();
}
