/*
 * What fails only on the way: requests that were posted rightly and complete with the error that
 * the specification names (IBA 10.6.3, 9.7.5, table 61). Both ends are queue pairs of this process,
 * each with its own completion queue and, where that is the point, its own protection domain.
 * Unreliable services are in bad_unreliable.c.
 */
#include "requests.h"

static struct ibv_pd *foreign;

/*
 * Waits until a QP is in the error state: what the far side does follows its answer closely but not
 * at once.
 */
static void becomes_error(struct ibv_qp *qp, const char *what)
{
	double limit = seconds() + 5;
	while (state_of(qp) != IBV_QPS_ERR && seconds() < limit)
		;
	equal("IBA 9.9.3, 10.3.1.7", IBV_QPS_ERR, state_of(qp), "%s is in ERR", what);
}

/*
 * Posts one request on a fresh reliable pair, wants `status`, and that a request behind it is
 * flushed.
 */
static void fails(const char *source, enum ibv_wc_status status, struct ibv_send_wr wr,
		  const char *what)
{
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	struct ibv_send_wr next = request(IBV_WR_RDMA_WRITE, &sge);
	next.wr_id = 101;
	wr.next = &next;
	post(pair.a, &wr);
	completes(source, pair.a_cq, 100, status, "%s", what);
	completes("IBA 10.3.1.7", pair.a_cq, 101, IBV_WC_WR_FLUSH_ERR, "%s: the next is flushed",
		  what);
	becomes_error(pair.a, "the requester");
	if (status != IBV_WC_LOC_PROT_ERR)
		becomes_error(pair.b, "the responder");
	untouched(what);
	end(pair);
}

static void remote_keys(void)
{
	const char *source = "IBA 9.7.4.1.5, 9.9.3";
	struct ibv_sge sge;
	struct ibv_mr *gone = ibv_reg_mr(pd, remote_memory, BUFFER, EVERYTHING);
	uint32_t stale = gone->rkey;
	ibv_dereg_mr(gone);
	struct ibv_mr *theirs = ibv_reg_mr(foreign, remote_memory, BUFFER, EVERYTHING);
	struct ibv_mr *plain = ibv_reg_mr(pd, remote_memory, BUFFER, LOCAL);
	static const struct {
		enum ibv_wr_opcode opcode;
		const char *name;
	} operations[] = { { IBV_WR_RDMA_WRITE, "WRITE" },
			   { IBV_WR_RDMA_WRITE_WITH_IMM, "WRITE with immediate" },
			   { IBV_WR_RDMA_READ, "READ" },
			   { IBV_WR_ATOMIC_FETCH_AND_ADD, "fetch and add" },
			   { IBV_WR_ATOMIC_CMP_AND_SWP, "compare and swap" } };
	const struct {
		uint32_t key;
		const char *name;
	} keys[] = { { stale, "a stale key" },
		     { 0, "key 0" },
		     { 0xff, "key 255, by which UCX means none" },
		     { stale ^ 0x5000, "a key that never was" },
		     { remote->rkey ^ 1, "a key with another tag" },
		     { theirs->rkey, "a key of another PD" },
		     { plain->rkey, "a key without remote access" } };
	char what[100];
	for (unsigned o = 0; o < sizeof(operations) / sizeof(*operations); o++) {
		int atomic = operations[o].opcode >= IBV_WR_ATOMIC_CMP_AND_SWP;
		for (unsigned k = 0; k < sizeof(keys) / sizeof(*keys); k++) {
			struct ibv_send_wr wr = request(operations[o].opcode, &sge);
			atomic ? (wr.wr.atomic.rkey = keys[k].key)
			       : (wr.wr.rdma.rkey = keys[k].key);
			snprintf(what, sizeof(what), "%s under %s", operations[o].name,
				 keys[k].name);
			fails(source, IBV_WC_REM_ACCESS_ERR, wr, what);
		}
		/*
		 * The last byte lies one behind the registration, the first one before it, the
		 * range ends nowhere.
		 */
		uint64_t start = (uintptr_t)remote_memory,
			 places[] = { start + BUFFER - sge.length + (atomic ? 8 : 1),
				      start - (atomic ? 8 : 1), -8ull };
		for (unsigned p = 0; p < 3; p++) {
			struct ibv_send_wr wr = request(operations[o].opcode, &sge);
			atomic ? (wr.wr.atomic.remote_addr = places[p])
			       : (wr.wr.rdma.remote_addr = places[p]);
			snprintf(what, sizeof(what), "%s %s", operations[o].name,
				 p == 0	  ? "over the end"
				 : p == 1 ? "before the start"
					  : "across the end of the address space");
			fails(source, IBV_WC_REM_ACCESS_ERR, wr, what);
		}
	}
	struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
	wr.wr.atomic.remote_addr += 4;
	fails("IBA 9.7.4.1.6", IBV_WC_REM_INV_REQ_ERR, wr, "atomic on a misaligned word");
	/* Many packets: the refusal comes for the first, while others are on their way. */
	wr = request(IBV_WR_RDMA_WRITE, &sge);
	sge.length = BUFFER;
	wr.wr.rdma.rkey = stale;
	fails(source, IBV_WC_REM_ACCESS_ERR, wr, "a long WRITE under a stale key");
	wr = request(IBV_WR_RDMA_WRITE, &sge);
	sge.length = BUFFER;
	wr.wr.rdma.remote_addr += 1;
	fails(source, IBV_WC_REM_ACCESS_ERR, wr, "a long WRITE one byte over the end");
	ibv_dereg_mr(theirs);
	ibv_dereg_mr(plain);
}

static void local_keys(void)
{
	const char *source = "IBA 10.6.3, 10.10.3.2";
	struct ibv_mr *gone = ibv_reg_mr(pd, local_memory, BUFFER, LOCAL);
	uint32_t stale = gone->lkey;
	ibv_dereg_mr(gone);
	struct ibv_mr *theirs = ibv_reg_mr(foreign, local_memory, BUFFER, LOCAL);
	struct ibv_mr *readable = ibv_reg_mr(pd, local_memory, BUFFER, IBV_ACCESS_REMOTE_READ);
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_SEND, IBV_WR_RDMA_WRITE,
						      IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD };
	static const char *const names[] = { "SEND", "WRITE", "READ", "fetch and add" };
	char what[100];
	for (int o = 0; o < 4; o++) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(opcodes[o], &sge);
		sge.lkey = stale;
		snprintf(what, sizeof(what), "%s under a stale local key", names[o]);
		fails(source, IBV_WC_LOC_PROT_ERR, wr, what);
		sge.lkey = theirs->lkey;
		snprintf(what, sizeof(what), "%s under a local key of another PD", names[o]);
		fails(source, IBV_WC_LOC_PROT_ERR, wr, what);
		sge.lkey = local->lkey;
		sge.addr += BUFFER - sge.length + 1;
		snprintf(what, sizeof(what), "%s from one byte over the end", names[o]);
		fails(source, IBV_WC_LOC_PROT_ERR, wr, what);
		sge.addr = -4ull;
		snprintf(what, sizeof(what), "%s from across the end of the address space",
			 names[o]);
		fails(source, IBV_WC_LOC_PROT_ERR, wr, what);
		if (o < 2)
			continue;
		sge.addr = (uintptr_t)local_memory;
		sge.lkey = readable->lkey;
		snprintf(what, sizeof(what), "%s into memory without local write", names[o]);
		fails(source, IBV_WC_LOC_PROT_ERR, wr, what);
	}
	ibv_dereg_mr(theirs);
	ibv_dereg_mr(readable);
}

/* A SEND that the receiver cannot take. */
static void receives(void)
{
	struct ibv_sge sge;
	static const struct {
		uint32_t sent, room;
		int bad_key;
		enum ibv_wc_status at_sender, at_receiver;
		const char *what;
	} cases[] = {
		{ 65, 64, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
		  "a SEND one byte too long" },
		{ 100000, 50000, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
		  "a SEND too long in a later packet" },
		{ 1, 0, 0, IBV_WC_REM_INV_REQ_ERR, IBV_WC_LOC_LEN_ERR,
		  "a SEND to a receive of no byte" },
		{ 64, 64, 1, IBV_WC_REM_OP_ERR, IBV_WC_LOC_PROT_ERR,
		  "a SEND to a receive with a wrong key" },
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pair pair = pair_of(IBV_QPT_RC);
		struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
		sge.length = cases[i].sent;
		receive(pair.b, 200, remote_memory, cases[i].room,
			cases[i].bad_key ? 0x12345 : remote->lkey);
		receive(pair.b, 201, remote_memory, 64, remote->lkey);
		post(pair.a, &wr);
		completes("IBA 9.9.3", pair.a_cq, 100, cases[i].at_sender, "%s, at the sender",
			  cases[i].what);
		completes("IBA 9.9.3", pair.b_cq, 200, cases[i].at_receiver, "%s, at the receiver",
			  cases[i].what);
		completes("IBA 10.3.1.7", pair.b_cq, 201, IBV_WC_WR_FLUSH_ERR,
			  "%s, the next receive", cases[i].what);
		becomes_error(pair.b, "the receiver");
		end(pair);
	}
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	double before = seconds();
	post(pair.a, &wr);
	completes("IBA 9.7.5.2.8", pair.a_cq, 100, IBV_WC_RNR_RETRY_EXC_ERR,
		  "a SEND that no receive awaits");
	holds("man ibv_modify_qp: rnr_retry 1, 10 us", seconds() - before < 2,
	      "the patience is as asked for");
	end(pair);
}

/* What the QP, not the key, forbids. */
static void queue_pair_rights(void)
{
	static const enum ibv_wr_opcode opcodes[] = { IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ,
						      IBV_WR_ATOMIC_FETCH_AND_ADD,
						      IBV_WR_ATOMIC_CMP_AND_SWP };
	static const char *const names[] = { "WRITE", "READ", "fetch and add", "compare and swap" };
	for (int o = 0; o < 4; o++) {
		struct pair pair = pair_of(IBV_QPT_RC);
		struct ibv_qp_attr attr = { .qp_access_flags = LOCAL };
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(opcodes[o], &sge);
		if (ibv_modify_qp(pair.b, &attr, IBV_QP_ACCESS_FLAGS))
			fail("take rights from a QP");
		post(pair.a, &wr);
		completes("IBA 9.7.4.1.4", pair.a_cq, 100, IBV_WC_REM_INV_REQ_ERR,
			  "%s to a QP that forbids it", names[o]);
		becomes_error(pair.b, "the responder");
		untouched("IBA 9.7.4.1.4");
		end(pair);
	}
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(IBV_WR_SEND_WITH_INV, &sge);
	receive(pair.b, 200, remote_memory, 64, remote->lkey);
	wr.invalidate_rkey = remote->rkey;
	post(pair.a, &wr);
	completes("IBA 10.6.7.2.4", pair.a_cq, 100, IBV_WC_REM_ACCESS_ERR,
		  "SEND that invalidates the key of an MR");
	struct ibv_wc wc;
	holds("IBA 10.6.7.2.4",
	      wait_for(pair.b_cq, &wc, 5) && wc.wr_id == 200 && wc.status != IBV_WC_SUCCESS,
	      "its receive completes with an error");
	end(pair);
	/* A responder without resources for READs. */
	pair = pair_of(IBV_QPT_RC);
	must_change(pair.b, IBV_QPS_RESET, 0);
	must_change(pair.b, IBV_QPS_INIT, 0);
	struct ibv_qp_attr attr;
	int mask = attributes(IBV_QPT_RC, IBV_QPS_RTR, pair.a->qp_num, &attr);
	attr.max_dest_rd_atomic = 0;
	if (ibv_modify_qp(pair.b, &attr, mask))
		fail("RTR without responder resources");
	wr = request(IBV_WR_RDMA_READ, &sge);
	post(pair.a, &wr);
	completes("IBA 9.7.4.1.8", pair.a_cq, 100, IBV_WC_REM_INV_REQ_ERR,
		  "READ to a QP without responder resources");
	end(pair);
}

static void lost_peer(void)
{
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	ibv_destroy_qp(pair.b);
	pair.b = NULL;
	double before = seconds();
	for (int i = 0; i < 4; i++, wr.wr_id++)
		post(pair.a, &wr);
	completes("IBA 9.7.6.1.3", pair.a_cq, 100, IBV_WC_RETRY_EXC_ERR,
		  "WRITE to a QP that is destroyed");
	/* Timeout code 12 is 16.8 ms and may last four times as long; four of them. */
	holds("IBA 9.7.6.1.3", seconds() - before < 3, "the patience is as asked for");
	for (int i = 1; i < 4; i++)
		completes("IBA 10.3.1.7", pair.a_cq, 100 + i, IBV_WC_WR_FLUSH_ERR,
			  "request %d behind it", i);
	untouched("a destroyed QP");
	end(pair);
	pair = pair_of(IBV_QPT_RC);
	must_change(pair.b, IBV_QPS_ERR, 0);
	wr = request(IBV_WR_RDMA_WRITE, &sge);
	post(pair.a, &wr);
	completes("IBA 9.7.6.1.3", pair.a_cq, 100, IBV_WC_RETRY_EXC_ERR, "WRITE to a QP in ERR");
	untouched("a QP in ERR");
	end(pair);
}

static void flush(void)
{
	const char *source = "IBA 10.3.1.7";
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(IBV_WR_SEND, &sge);
	/* The peer is silent: what is posted stays. */
	must_change(pair.b, IBV_QPS_RESET, 0);
	for (int i = 0; i < 5; i++)
		receive(pair.a, 300 + i, local_memory, 64, local->lkey);
	for (int i = 0; i < 6; i++, wr.wr_id++) {
		wr.send_flags = i % 2 ? IBV_SEND_SIGNALED : 0;
		post(pair.a, &wr);
	}
	must_change(pair.a, IBV_QPS_ERR, 0);
	/* Order holds within a queue; both report to one CQ here. */
	unsigned sends = 0, receives = 0, right = 1;
	struct ibv_wc wc;
	while (sends + receives < 11 && wait_for(pair.a_cq, &wc, 2)) {
		right &= wc.status == IBV_WC_WR_FLUSH_ERR;
		if (wc.wr_id >= 300)
			right &= wc.wr_id == 300 + receives++;
		else
			right &= wc.wr_id == 100 + sends++;
	}
	equal(source, 6, sends, "all six requests flush");
	equal(source, 5, receives, "all five receives flush");
	holds(source, right, "each once, in the order of its queue, as WR_FLUSH_ERR");
	wr.wr_id = 110;
	post(pair.a, &wr);
	completes(source, pair.a_cq, 110, IBV_WC_WR_FLUSH_ERR, "a request posted in ERR");
	receive(pair.a, 310, local_memory, 64, local->lkey);
	completes(source, pair.a_cq, 310, IBV_WC_WR_FLUSH_ERR, "a receive posted in ERR");
	end(pair);
	pair = pair_of(IBV_QPT_RC);
	for (int i = 0; i < 3; i++)
		receive(pair.a, 300 + i, local_memory, 64, local->lkey);
	must_change(pair.a, IBV_QPS_RESET, 0);
	holds("IBA 10.3.1.2", !wait_for(pair.a_cq, &wc, 0.05),
	      "RESET discards without completions");
	end(pair);
}

/* What a right request needs to be right: a whole queue of them completes once each and in order.
 */
static void in_order(void)
{
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	for (int round = 0; round < 50; round++) {
		struct ibv_send_wr wrs[8];
		for (int i = 0; i < 8; i++) {
			wrs[i] = request(IBV_WR_RDMA_WRITE, &sge);
			wrs[i].wr_id = 8 * round + i;
			wrs[i].next = i < 7 ? &wrs[i + 1] : NULL;
		}
		post(pair.a, wrs);
		for (int i = 0; i < 8; i++)
			completes("IBA 10.8.5.1", pair.a_cq, 8 * round + i, IBV_WC_SUCCESS,
				  "request %d of round %d", i, round);
	}
	end(pair);
}

/* Each atomic takes effect once. */
static void atomics_count_once(void)
{
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	uint64_t sum = 0, before = 0;
	memset(remote_memory, 0, 8);
	for (int i = 0; i < 200; i++) {
		struct ibv_send_wr wr = request(IBV_WR_ATOMIC_FETCH_AND_ADD, &sge);
		struct ibv_wc wc;
		post(pair.a, &wr);
		if (!wait_for(pair.a_cq, &wc, 10) || wc.status != IBV_WC_SUCCESS)
			break;
		memcpy(&before, local_memory, 8);
		sum += before == (uint64_t)i;
	}
	equal("IBA 9.4.5", 200, sum, "each of 200 atomics gives the value before it");
	end(pair);
}

/* After all of it an ordinary pair does ordinary work. */
static void works_still(void)
{
	struct pair pair = pair_of(IBV_QPT_RC);
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(IBV_WR_RDMA_WRITE, &sge);
	sge.length = BUFFER;
	post(pair.a, &wr);
	completes("an ordinary pair", pair.a_cq, 100, IBV_WC_SUCCESS, "an ordinary WRITE");
	holds("an ordinary pair", !memcmp(local_memory, remote_memory, BUFFER),
	      "all bytes arrived");
	end(pair);
}

int main(void)
{
	open_with_memories();
	foreign = ibv_alloc_pd(context);
	if (!foreign)
		fail("a second PD");
	remote_keys();
	local_keys();
	receives();
	queue_pair_rights();
	lost_peer();
	flush();
	in_order();
	atomics_count_once();
	works_still();
	ibv_dereg_mr(local);
	ibv_dereg_mr(remote);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(foreign), "nothing is left in the other PD");
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
