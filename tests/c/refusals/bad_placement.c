/*
 * ATOMIC WRITE and FLUSH (IBA A19): the rights they need, what is refused at once and on the way,
 * and that right ones do their work.
 */
#include "rows.h"

/*
 * rdma-core 44 has no FLUSH yet: its numbers, and its function behind the last member that 44
 * knows.
 */
enum {
	FLUSH_RIGHT = 1 << 8,
	PERSIST_RIGHT = 1 << 9,
	WITH_FLUSH = 1 << 11,
	GLOBAL = 1,
	PERSISTENT = 2,
	RANGE = 0,
	ALL_OF_MR = 1,
	WC_FLUSH = 8
};

static void wr_flush(struct ibv_qp_ex *qp, uint32_t rkey, uint64_t addr, size_t length,
		     uint8_t type, uint8_t level)
{
	void (*function)(struct ibv_qp_ex *, uint32_t, uint64_t, size_t, uint8_t, uint8_t);
	memcpy(&function, (char *)&qp->wr_atomic_write + sizeof(void *), sizeof(function));
	function(qp, rkey, addr, length, type, level);
}

enum { SIZE = 8192 };

static char *memory;
static struct ibv_mr *open_mr, *writable, *readable;

static struct ibv_qp *ex_qp(enum ibv_qp_type type, struct ibv_cq *cq, uint64_t ops)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq,
					    .recv_cq = cq,
					    .qp_type = type,
					    .sq_sig_all = 1,
					    .pd = pd,
					    .cap = { 8, 8, 1, 1, 0 },
					    .send_ops_flags = ops,
					    .comp_mask = IBV_QP_INIT_ATTR_PD |
							 IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	return ibv_create_qp_ex(context, &init);
}

/* A pair whose first end has both functions and whose second gives `rights`. */
static struct pair pair_with(int rights)
{
	struct pair pair = { .a_cq = new_cq(16), .b_cq = new_cq(16) };
	pair.a = ex_qp(IBV_QPT_RC, pair.a_cq, IBV_QP_EX_WITH_ATOMIC_WRITE | WITH_FLUSH);
	pair.b = new_qp(pd, pair.b_cq, IBV_QPT_RC);
	if (!pair.a)
		fail("a queue pair with both functions");
	connect_to(pair.a, pair.b->qp_num);
	connect_to(pair.b, pair.a->qp_num);
	struct ibv_qp_attr attr = { .qp_access_flags = rights };
	errno = ibv_modify_qp(pair.b, &attr, IBV_QP_ACCESS_FLAGS);
	if (errno)
		fail("rights of the second end");
	return pair;
}

static int write_word(struct pair pair, struct ibv_mr *mr, uint64_t offset, const void *value)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair.a);
	ibv_wr_start(qp);
	qp->wr_id = 100;
	qp->wr_flags = IBV_SEND_SIGNALED;
	qp->wr_atomic_write(qp, mr->rkey, (uintptr_t)memory + offset, value);
	return ibv_wr_complete(qp);
}

static int flush(struct pair pair, struct ibv_mr *mr, uint64_t offset, size_t length, int type,
		 int level)
{
	struct ibv_qp_ex *qp = ibv_qp_to_qp_ex(pair.a);
	ibv_wr_start(qp);
	qp->wr_id = 101;
	qp->wr_flags = IBV_SEND_SIGNALED;
	wr_flush(qp, mr->rkey, (uintptr_t)memory + offset, length, type, level);
	return ibv_wr_complete(qp);
}

static void at_once(void)
{
	const char *page = "man ibv_wr_post";
	struct pair pair = pair_with(EVERYTHING | FLUSH_RIGHT);
	uint64_t value = 1;
	row(page, EINVAL, write_word(pair, open_mr, 4, &value),
	    "ATOMIC WRITE to a misaligned address");
	row(page, EFAULT, write_word(pair, open_mr, 0, (void *)8),
	    "ATOMIC WRITE of a value that is not there");
	row(page, EINVAL, flush(pair, open_mr, 0, 8, 0, RANGE), "FLUSH to nowhere");
	row(page, EINVAL, flush(pair, open_mr, 0, 8, 4, RANGE), "FLUSH to an unknown placement");
	row(page, EINVAL, flush(pair, open_mr, 0, 8, GLOBAL, 2), "FLUSH of an unknown level");
	row(page, EINVAL, flush(pair, open_mr, 0, 1ull << 32, GLOBAL, RANGE),
	    "FLUSH of 2^32 bytes");
	row(page, EOPNOTSUPP, POINTER(ibv_destroy_qp, ex_qp(IBV_QPT_UC, pair.a_cq, WITH_FLUSH)),
	    "FLUSH on UC");
	row(page, EOPNOTSUPP,
	    POINTER(ibv_destroy_qp, ex_qp(IBV_QPT_UD, pair.a_cq, IBV_QP_EX_WITH_ATOMIC_WRITE)),
	    "ATOMIC WRITE on UD");
	row("ib_check_mr_access", EOPNOTSUPP,
	    POINTER(ibv_dereg_mr, ibv_reg_mr(pd, memory, SIZE, LOCAL | PERSIST_RIGHT)),
	    "memory that persists");
	struct ibv_qp_attr attr = { .qp_access_flags = EVERYTHING | FLUSH_RIGHT | PERSIST_RIGHT };
	row("man ibv_modify_qp", 0, ibv_modify_qp(pair.b, &attr, IBV_QP_ACCESS_FLAGS),
	    "a QP may permit what no memory does");
	struct ibv_device_attr_ex wide = { 0 };
	row("man ibv_query_device_ex", 0, ibv_query_device_ex(context, NULL, &wide),
	    "ask for the capabilities");
	equal("man ibv_query_device_ex", 5, wide.device_cap_flags_ex >> 38 & 7,
	      "flush to global visibility and atomic write, not to persistence");
	holds("nothing was posted", !write_word(pair, open_mr, 0, &value),
	      "an ATOMIC WRITE after all of them");
	completes("nothing was posted", pair.a_cq, 100, IBV_WC_SUCCESS,
		  "it is the first to complete");
	end_pair(pair);
}

static void on_the_way(void)
{
	uint64_t value = 0x55;
	static const struct {
		int qp_rights;
		enum ibv_wc_status writes, flushes;
		const char *what;
	} rights[] = {
		{ LOCAL, IBV_WC_REM_INV_REQ_ERR, IBV_WC_REM_INV_REQ_ERR, "a QP without rights" },
		{ LOCAL | IBV_ACCESS_REMOTE_WRITE, IBV_WC_SUCCESS, IBV_WC_REM_INV_REQ_ERR,
		  "a QP for WRITE" },
		{ LOCAL | FLUSH_RIGHT, IBV_WC_REM_INV_REQ_ERR, IBV_WC_SUCCESS, "a QP for FLUSH" }
	};
	for (unsigned i = 0; i < sizeof(rights) / sizeof(*rights); i++) {
		struct pair pair = pair_with(rights[i].qp_rights);
		write_word(pair, open_mr, 0, &value);
		completes("IBA A19.4.2", pair.a_cq, 100, rights[i].writes, "ATOMIC WRITE to %s",
			  rights[i].what);
		end_pair(pair);
		pair = pair_with(rights[i].qp_rights);
		flush(pair, open_mr, 0, 64, GLOBAL, RANGE);
		completes("IBA A19.4.1", pair.a_cq, 101, rights[i].flushes, "FLUSH to %s",
			  rights[i].what);
		end_pair(pair);
	}
	struct pair permitting = pair_with(EVERYTHING | FLUSH_RIGHT | PERSIST_RIGHT);
	flush(permitting, open_mr, 0, 64, GLOBAL, RANGE);
	completes("IBA A19.4.1", permitting.a_cq, 101, IBV_WC_SUCCESS,
		  "FLUSH to a QP that permits persistence too");
	flush(permitting, open_mr, 0, 64, PERSISTENT, RANGE);
	completes("IBA A19.4.1", permitting.a_cq, 101, IBV_WC_REM_ACCESS_ERR,
		  "FLUSH to persistence, which no memory permits");
	end_pair(permitting);
	struct {
		struct ibv_mr *mr;
		int is_flush, type, level;
		uint64_t offset, length;
		enum ibv_wc_status want;
		const char *what;
	} cases[] = {
		{ readable, 0, 0, 0, 0, 8, IBV_WC_REM_ACCESS_ERR,
		  "ATOMIC WRITE to memory for reading" },
		{ writable, 0, 0, 0, SIZE, 8, IBV_WC_REM_ACCESS_ERR,
		  "ATOMIC WRITE behind the end" },
		{ writable, 0, 0, 0, SIZE - 8, 8, IBV_WC_SUCCESS, "ATOMIC WRITE at the end" },
		{ writable, 1, GLOBAL, RANGE, 0, 64, IBV_WC_REM_ACCESS_ERR,
		  "FLUSH of memory without the right" },
		{ writable, 1, GLOBAL, ALL_OF_MR, 0, 64, IBV_WC_REM_ACCESS_ERR,
		  "FLUSH of all memory without the right" },
		{ open_mr, 1, GLOBAL, RANGE, 1, SIZE, IBV_WC_REM_ACCESS_ERR,
		  "FLUSH one byte over the end" },
		{ open_mr, 1, GLOBAL, RANGE, 0, SIZE, IBV_WC_SUCCESS, "FLUSH up to the end" },
		{ open_mr, 1, GLOBAL, ALL_OF_MR, 0, 1ull << 40, IBV_WC_SUCCESS,
		  "FLUSH of all, whatever the length" },
		{ open_mr, 1, PERSISTENT, RANGE, 0, 64, IBV_WC_REM_INV_REQ_ERR,
		  "FLUSH to persistence" },
		{ open_mr, 1, PERSISTENT | GLOBAL, ALL_OF_MR, 0, 64, IBV_WC_REM_INV_REQ_ERR,
		  "FLUSH to both" },
	};
	for (unsigned i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		struct pair pair = pair_with(EVERYTHING | FLUSH_RIGHT);
		if (cases[i].is_flush)
			flush(pair, cases[i].mr, cases[i].offset, cases[i].length, cases[i].type,
			      cases[i].level);
		else
			write_word(pair, cases[i].mr, cases[i].offset, &value);
		completes("IBA A19.4", pair.a_cq, cases[i].is_flush ? 101 : 100, cases[i].want,
			  "%s", cases[i].what);
		end_pair(pair);
	}
}

static void works(void)
{
	struct pair pair = pair_with(EVERYTHING | FLUSH_RIGHT);
	struct ibv_wc wc;
	unsigned right = 0;
	memset(memory, 0, SIZE);
	for (uint64_t i = 1; i <= 200; i++) {
		write_word(pair, open_mr, 64, &i);
		flush(pair, open_mr, 64, 8, GLOBAL, i % 2 ? RANGE : ALL_OF_MR);
		if (!wait_for(pair.a_cq, &wc, 5) || wc.status || wc.opcode != IBV_WC_ATOMIC_WRITE)
			break;
		if (!wait_for(pair.a_cq, &wc, 5) || wc.status || (int)wc.opcode != WC_FLUSH)
			break;
		right += *(volatile uint64_t *)(memory + 64) == i;
	}
	equal("IBA A19", 200, right, "each of 200 words is there when it is complete");
	struct ibv_sge sge = { (uintptr_t)memory, 8, open_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = 100, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_ATOMIC_WRITE
	};
	memcpy(memory, "12345678", 8);
	wr.wr.rdma.remote_addr = (uintptr_t)memory + 128;
	wr.wr.rdma.rkey = open_mr->rkey;
	post(pair.a, &wr);
	completes("man ibv_post_send", pair.a_cq, 100, IBV_WC_SUCCESS,
		  "ATOMIC WRITE by ibv_post_send");
	holds("man ibv_post_send", !memcmp(memory + 128, "12345678", 8), "its word is there");
	sge.length = 16;
	struct ibv_send_wr *bad;
	row("man ibv_post_send", EINVAL, ibv_post_send(pair.a, &wr, &bad),
	    "ATOMIC WRITE of 16 bytes");
	end_pair(pair);
}

int main(void)
{
	open_first_device();
	memory = aligned_alloc(4096, SIZE);
	open_mr = ibv_reg_mr(pd, memory, SIZE, EVERYTHING | FLUSH_RIGHT);
	writable = ibv_reg_mr(pd, memory, SIZE, LOCAL | IBV_ACCESS_REMOTE_WRITE);
	readable = ibv_reg_mr(pd, memory, SIZE, IBV_ACCESS_REMOTE_READ);
	if (!open_mr || !writable || !readable)
		fail("memory");
	at_once();
	on_the_way();
	works();
	ibv_dereg_mr(open_mr);
	ibv_dereg_mr(writable);
	ibv_dereg_mr(readable);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
