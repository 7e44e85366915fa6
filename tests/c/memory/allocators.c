/*
 * Parent domains with the program's own allocator (ibv_alloc_parent_domain(3)): what it is asked
 * for and when it gets it back, what its refusals come to, and that the queues really live in what
 * it gives: a program that overwrites or unmaps it loses the queue, and only that.
 */
#include "rows.h"
#include <sys/mman.h>

static const char *page = "ibv_alloc_parent_domain(3)";

/* Resource codes: mlx5's, of no kernel driver. */
enum { QP_RESOURCE = 1, SRQ_RESOURCE = 4, CQ_RESOURCE = 5 };
enum answer { GIVE, USE_DEFAULT, REFUSE };

/* What the allocator does and has done. */
static struct allocator {
	enum answer answer;
	unsigned asked, given, taken, wrong;
	uint64_t resource;
	size_t size, alignment;
	char *last;
} allocator;

struct head {
	size_t length;
	uint64_t resource;
};

/* A mapping for itself, so that it can be unmapped; the page before it remembers what it was for.
 */
static void *alloc(struct ibv_pd *domain, void *pd_context, size_t size, size_t alignment,
		   uint64_t resource)
{
	struct allocator *own = pd_context;
	own->asked++;
	own->resource = resource;
	own->size = size;
	own->alignment = alignment;
	own->wrong +=
		!domain || domain->context != context || !size || (alignment & (alignment - 1));
	if (own->answer != GIVE)
		return own->answer == USE_DEFAULT ? IBV_ALLOCATOR_USE_DEFAULT : NULL;
	size_t length = (size + 2 * 4096 - 1) & ~4095ul;
	char *at = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (at == MAP_FAILED)
		fail("memory");
	*(struct head *)at = (struct head){ length, resource };
	own->given++;
	own->last = at + 4096;
	return own->last;
}

static void take_back(struct ibv_pd *domain, void *pd_context, void *memory, uint64_t resource)
{
	struct allocator *own = pd_context;
	struct head *head = (struct head *)((char *)memory - 4096);
	own->taken++;
	own->wrong += !domain || domain->context != context || head->resource != resource;
	munmap(head, head->length);
}

static struct ibv_pd *parent_of(struct ibv_pd *inner)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = inner,
		.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS |
			     IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT,
		.alloc = alloc,
		.free = take_back,
		.pd_context = &allocator,
	};
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &attr);
	if (!parent)
		fail("a parent domain with an allocator");
	return parent;
}

static struct ibv_cq *new_cq_in(struct ibv_pd *domain, int cqe)
{
	struct ibv_cq_init_attr_ex attr = { .cqe = cqe,
					    .wc_flags = IBV_WC_STANDARD_FLAGS,
					    .comp_mask = IBV_CQ_INIT_ATTR_MASK_PD,
					    .parent_domain = domain };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &attr);
	return cq ? ibv_cq_ex_to_cq(cq) : NULL;
}

static struct ibv_srq *new_srq_in(struct ibv_pd *domain, unsigned max_wr)
{
	struct ibv_srq_init_attr init = { .attr = { max_wr, 2, 0 } };
	return ibv_create_srq(domain, &init);
}

/* Whether the last memory given out holds `value` somewhere. */
static int holds_value(uint64_t value)
{
	for (size_t at = 0; at + 8 <= allocator.size; at++)
		if (!memcmp(allocator.last + at, &value, 8))
			return 1;
	return 0;
}

static void refusals(void)
{
	struct ibv_parent_domain_init_attr attr = {
		.pd = pd, .comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS
	};
	row(page, EINVAL, POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &attr)),
	    "no functions");
	attr.alloc = alloc;
	row(page, EINVAL, POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &attr)),
	    "no free");
	attr.alloc = NULL, attr.free = take_back;
	row(page, EINVAL, POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &attr)),
	    "no alloc");
	attr.comp_mask = IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	row(page, 0, POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &attr)),
	    "a context without functions");

	struct ibv_pd *parent = parent_of(pd);
	struct ibv_cq *cq = new_cq(8);
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = IBV_QPT_RC,
					 .cap = { limits.max_qp_wr + 1, 1, 1, 1, 0 } };
	row(page, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(parent, &init)),
	    "a QP beyond the limits");
	row(page, EINVAL, POINTER(ibv_destroy_srq, new_srq_in(parent, limits.max_srq_wr + 1)),
	    "an SRQ beyond the limits");
	row(page, EINVAL, POINTER(ibv_destroy_cq, new_cq_in(parent, limits.max_cqe + 1)),
	    "a CQ beyond the limits");
	equal(page, 0, allocator.asked, "nothing is allocated for what is refused");
	allocator.answer = REFUSE;
	init.cap.max_send_wr = 1;
	row(page, ENOMEM, POINTER(ibv_destroy_qp, ibv_create_qp(parent, &init)),
	    "no memory for a QP");
	row(page, ENOMEM, POINTER(ibv_destroy_srq, new_srq_in(parent, 4)), "no memory for an SRQ");
	row(page, ENOMEM, POINTER(ibv_destroy_cq, new_cq_in(parent, 4)), "no memory for a CQ");
	equal(page, 3, allocator.asked, "each asked once");
	allocator.answer = USE_DEFAULT;
	row(page, 0, POINTER(ibv_destroy_qp, ibv_create_qp(parent, &init)), "a QP in our memory");
	row(page, 0, POINTER(ibv_destroy_srq, new_srq_in(parent, 4)), "an SRQ in our memory");
	row(page, 0, POINTER(ibv_destroy_cq, new_cq_in(parent, 4)), "a CQ in our memory");
	equal(page, 0, allocator.taken, "what is ours is not freed there");
	ibv_destroy_cq(cq);
	row(page, 0, ibv_dealloc_pd(parent), "dealloc the parent domain");
	allocator = (struct allocator){ 0 };
}

static void lifetimes(void)
{
	struct ibv_pd *parent = parent_of(pd);
	struct ibv_cq *cq = new_cq_in(parent, 10);
	equal(page, CQ_RESOURCE, allocator.resource, "resource type of a CQ");
	equal(page, 1, allocator.size >= 10 * 32, "room for 10 completions");
	struct ibv_srq *srq = new_srq_in(parent, 10);
	equal(page, SRQ_RESOURCE, allocator.resource, "resource type of an SRQ");
	struct ibv_qp *qp = new_qp(parent, cq, IBV_QPT_RC);
	equal(page, QP_RESOURCE, allocator.resource, "resource type of a QP");
	equal(page, 1, allocator.size >= 8 * 64 + 8 * 32, "room for 8 inline sends and 8 receives");
	equal(page, 64, allocator.alignment, "alignment");
	equal(page, 3, allocator.given, "three objects, three pieces");
	row(page, EBUSY, ibv_dealloc_pd(parent), "dealloc a parent domain in use");
	ibv_destroy_qp(qp);
	equal(page, 1, allocator.taken, "the QP's memory is back");
	row("ibv_resize_cq(3)", 0, ibv_resize_cq(cq, 100), "resize the CQ");
	equal(page, 4, allocator.given, "a new ring");
	equal(page, 2, allocator.taken, "for the old one");
	struct ibv_srq_attr wider = { .max_wr = 50 };
	row("ibv_modify_srq(3)", 0, ibv_modify_srq(srq, &wider, IBV_SRQ_MAX_WR), "resize the SRQ");
	equal(page, 5, allocator.given, "a new queue");
	equal(page, 3, allocator.taken, "for the old one");
	allocator.answer = REFUSE;
	row("ibv_resize_cq(3)", ENOMEM, ibv_resize_cq(cq, 200), "resize the CQ without memory");
	equal("ibv_resize_cq(3)", 100, cq->cqe, "it stays");
	allocator.answer = GIVE;
	ibv_destroy_srq(srq);
	ibv_destroy_cq(cq);
	equal(page, 5, allocator.taken, "all is back");
	equal(page, 0, allocator.wrong, "every call was right");
	row(page, 0, ibv_dealloc_pd(parent), "dealloc the parent domain");
	allocator = (struct allocator){ 0 };
}

/* Completions wait in the program's memory; overwritten they are lost, and the queue says so. */
static void completions(char *memory, struct ibv_mr *mr)
{
	struct ibv_pd *parent = parent_of(pd);
	struct ibv_cq *cq = new_cq_in(parent, 16);
	char *ring = allocator.last;
	size_t size = allocator.size;
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	connect_to(qp, qp->qp_num);
	for (uint64_t id = 0x1122334455667700; id < 0x1122334455667704; id++)
		receive(qp, id, memory, 8, mr->lkey);
	must_change(qp, IBV_QPS_ERR, 0);
	allocator.last = ring, allocator.size = size;
	equal(page, 1, holds_value(0x1122334455667700), "a completion waits in the ring");
	struct ibv_wc wc;
	equal("ibv_poll_cq(3)", 1, ibv_poll_cq(cq, 1, &wc), "poll it");
	equal("ibv_poll_cq(3)", 0x1122334455667700, wc.wr_id, "its identifier");
	equal("ibv_poll_cq(3)", IBV_WC_WR_FLUSH_ERR, wc.status, "its status");
	uint64_t was = 0x1122334455667701, is = 0x99;
	for (size_t at = 0; at + 8 <= size; at++)
		if (!memcmp(ring + at, &was, 8))
			memcpy(ring + at, &is, 8);
	equal("ibv_poll_cq(3)", 1, ibv_poll_cq(cq, 1, &wc), "poll what was changed in the ring");
	equal(page, 0x99, wc.wr_id, "there is no other copy");
	memset(ring, 0xff, size);
	equal(page, 1, ibv_poll_cq(cq, 1, &wc) < 0, "poll what was overwritten");
	struct ibv_async_event event;
	row("ibv_get_async_event(3)", 0, ibv_get_async_event(context, &event), "an event");
	while (event.event_type != IBV_EVENT_CQ_ERR) {
		ibv_ack_async_event(&event);
		if (ibv_get_async_event(context, &event))
			fail("an event");
	}
	holds("ibv_get_async_event(3)", event.element.cq == cq, "CQ error of this CQ");
	ibv_ack_async_event(&event);
	ibv_destroy_qp(qp);
	row("ibv_destroy_cq(3)", 0, ibv_destroy_cq(cq), "destroy the lost CQ");
	equal(page, 1, allocator.taken, "its memory is back");
	ibv_dealloc_pd(parent);
	allocator = (struct allocator){ 0 };
}

/* Two connected QPs in the program's memory, each with its own classic CQ. */
static struct pair pair_in(struct ibv_pd *parent, char **a_memory, char **b_memory)
{
	struct pair pair = { .a_cq = new_cq(64), .b_cq = new_cq(64) };
	pair.a = new_qp(parent, pair.a_cq, IBV_QPT_RC);
	*a_memory = allocator.last;
	pair.b = new_qp(parent, pair.b_cq, IBV_QPT_RC);
	*b_memory = allocator.last;
	connect_to(pair.a, pair.b->qp_num);
	connect_to(pair.b, pair.a->qp_num);
	return pair;
}

static void requests(char *memory, struct ibv_mr *mr)
{
	struct ibv_pd *parent = parent_of(pd);
	char *a_memory, *b_memory;
	struct pair pair = pair_in(parent, &a_memory, &b_memory);
	size_t size = allocator.size;
	struct ibv_wc wc;

	/* More requests than places, inline and not, so that the slots go round. */
	for (int i = 0; i < 40; i++) {
		struct ibv_sge sge = { (uintptr_t)memory, 60, mr->lkey };
		struct ibv_send_wr wr = { .wr_id = i,
					  .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_SEND,
					  .send_flags = i & 1 ? IBV_SEND_INLINE : 0 };
		memset(memory, i, 60);
		receive(pair.b, 1000 + i, memory + 4096, 60, mr->lkey);
		post(pair.a, &wr);
		while (!ibv_poll_cq(pair.b_cq, 1, &wc))
			;
		if (wc.status || wc.wr_id != 1000 + i || memory[4096] != i ||
		    memory[4096 + 59] != i)
			fail("a message through the program's slots");
		while (!ibv_poll_cq(pair.a_cq, 1, &wc))
			;
		if (wc.status || wc.wr_id != i)
			fail("its completion");
	}
	holds(page, 1, "40 messages went through 8 slots");

	/* A receive request changed where it waits is received into what it says now. */
	receive(pair.b, 0x5566778899aabbcc, memory + 4096, 64, mr->lkey);
	allocator.last = b_memory, allocator.size = size;
	equal(page, 1, holds_value(0x5566778899aabbcc), "a receive request waits in the slots");
	uint64_t was = (uintptr_t)memory + 4096, is = was + 4096;
	for (size_t at = 0; at + 8 <= size; at++)
		if (!memcmp(b_memory + at, &was, 8))
			memcpy(b_memory + at, &is, 8);
	memset(memory + 4096, 0, 8192);
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};
	memset(memory, 7, 8);
	post(pair.a, &wr);
	while (!ibv_poll_cq(pair.b_cq, 1, &wc))
		;
	equal(page, 0x0700, memory[4096] | memory[8192] << 8, "it lands where the slot says");

	/*
	 * Gone memory: the receiver's QP fails by an event, the sender's request by a completion;
	 * nobody crashes.
	 */
	receive(pair.b, 1, memory + 4096, 64, mr->lkey);
	mmap(b_memory, (size + 4095) & ~4095ul, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
	     -1, 0);
	while (ibv_poll_cq(pair.a_cq, 1, &wc))
		;
	wr.wr_id = 2;
	post(pair.a, &wr);
	while (!ibv_poll_cq(pair.a_cq, 1, &wc))
		;
	equal(page, IBV_WC_REM_OP_ERR, wc.status, "a SEND towards lost receive slots");
	equal(page, IBV_QPS_ERR, state_of(pair.b), "state of the receiver");
	struct ibv_async_event event;
	do {
		if (ibv_get_async_event(context, &event))
			fail("an event");
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_QP_FATAL);
	holds("ibv_get_async_event(3)", event.element.qp == pair.b, "QP fatal of the receiver");
	ibv_destroy_qp(pair.b);
	struct ibv_qp *fresh = new_qp(parent, pair.a_cq, IBV_QPT_RC);
	mmap(allocator.last, (size + 4095) & ~4095ul, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	connect_to(fresh, fresh->qp_num);
	struct ibv_send_wr *bad_wr;
	struct ibv_recv_wr none = { .wr_id = 1 }, *bad_recv;
	row(page, EIO, ibv_post_send(fresh, &wr, &bad_wr), "post a send into lost slots");
	row(page, EIO, ibv_post_recv(fresh, &none, &bad_recv), "post a receive into lost slots");
	ibv_destroy_qp(fresh);

	/* A send request that waits, since its queue is drained, when its slot goes. */
	fresh = new_qp(parent, pair.a_cq, IBV_QPT_RC);
	connect_to(fresh, fresh->qp_num);
	must_change(fresh, IBV_QPS_SQD, 0);
	post(fresh, &wr);
	mmap(allocator.last, (size + 4095) & ~4095ul, PROT_NONE,
	     MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	struct ibv_qp_attr again = { .qp_state = IBV_QPS_RTS };
	row("ibv_modify_qp(3)", 0, ibv_modify_qp(fresh, &again, IBV_QP_STATE), "let it go on");
	completes(page, pair.a_cq, 2, IBV_WC_LOC_QP_OP_ERR, "a send request in a lost slot");
	ibv_destroy_qp(fresh);
	pair.b = NULL;
	end_pair(pair);
	equal(page, allocator.given, allocator.taken, "all is back");
	ibv_dealloc_pd(parent);
	allocator = (struct allocator){ 0 };
}

/*
 * A shared receive queue whose memory is gone fails by an event; the QP on it goes on without
 * receives.
 */
static void shared(char *memory, struct ibv_mr *mr)
{
	struct ibv_pd *parent = parent_of(pd);
	struct ibv_srq *srq = new_srq_in(parent, 8);
	char *slots = allocator.last;
	size_t size = (allocator.size + 4095) & ~4095ul;
	struct ibv_cq *cq = new_cq(64);
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .srq = srq,
					 .qp_type = IBV_QPT_RC,
					 .sq_sig_all = 1,
					 .cap = { 8, 0, 1, 0, 0 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		fail("a QP on the shared queue");
	connect_to(qp, qp->qp_num);
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey };
	struct ibv_recv_wr recv = { .wr_id = 0x0102030405060708, .sg_list = &sge, .num_sge = 1 },
			   *bad;
	row("ibv_post_srq_recv(3)", 0, ibv_post_srq_recv(srq, &recv, &bad),
	    "post to the shared queue");
	equal(page, 1, holds_value(0x0102030405060708), "the request waits in the slots");
	mmap(slots, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	struct ibv_send_wr wr = {
		.wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND
	};
	post(qp, &wr);
	struct ibv_wc wc;
	while (!ibv_poll_cq(cq, 1, &wc))
		;
	equal(page, IBV_WC_RNR_RETRY_EXC_ERR, wc.status, "a SEND finds no receive");
	struct ibv_async_event event;
	do {
		if (ibv_get_async_event(context, &event))
			fail("an event");
		ibv_ack_async_event(&event);
	} while (event.event_type != IBV_EVENT_SRQ_ERR);
	holds("ibv_get_async_event(3)", event.element.srq == srq, "error of the shared queue");
	row(page, EIO, ibv_post_srq_recv(srq, &recv, &bad), "post to the lost queue");
	ibv_destroy_qp(qp);
	row("ibv_destroy_srq(3)", 0, ibv_destroy_srq(srq), "destroy the lost queue");
	equal(page, 1, allocator.taken, "its memory is back");
	ibv_destroy_cq(cq);
	ibv_dealloc_pd(parent);
	allocator = (struct allocator){ 0 };
}

int main(void)
{
	open_first_device();
	char *memory =
		mmap(NULL, BUFFER, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, BUFFER, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		fail("a registration");
	refusals();
	lifetimes();
	completions(memory, mr);
	requests(memory, mr);
	shared(memory, mr);
	ibv_dereg_mr(mr);
	return finish();
}
