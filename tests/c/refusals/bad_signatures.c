/*
 * Block signatures of memory keys (mlx5dv_wr_set_mkey_sig_block(3)): what is refused at once, what
 * a check finds, what queue pairs that stop at it do, and that right ones pass. Argument `plain`:
 * on a device that is no ConnectX.
 */
#include "rows.h"
#include <infiniband/mlx5dv.h>

#define SET "mlx5dv_wr_set_mkey_sig_block(3)"
#define CHECK "mlx5dv_mkey_check(3)"
#define CANCEL "mlx5dv_qp_cancel_posted_send_wrs(3)"

/*
 * By a program of its own: CRC-16/T10-DIF of 1 to 9 and of 1, each with zeros up to 512 bytes, and
 * CRC-32C of 512 zeros.
 */
#define GUARD_0 "\x80\x3d"
#define GUARD_1 "\xb4\x5e"
#define GUARD_1_VALUE 0xb45e
#define ZEROS_CRC32C "\xc0\xed\xfc\x30"

enum {
	SIZE = 1 << 16,
	SIGNED = MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT | MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE
};

static char *memory;
static struct ibv_mr *mr;

static struct mlx5dv_mkey *new_key(uint32_t flags)
{
	struct mlx5dv_mkey_init_attr init = { .pd = pd, .create_flags = flags, .max_entries = 4 };
	return mlx5dv_create_mkey(&init);
}

static struct ibv_qp *configuring_qp(struct ibv_cq *cq, enum ibv_qp_type type, uint32_t flags)
{
	struct ibv_qp_init_attr_ex init = { .send_cq = cq,
					    .recv_cq = cq,
					    .qp_type = type,
					    .pd = pd,
					    .cap = { 16, 8, 2, 2, 512 },
					    .send_ops_flags = IBV_QP_EX_WITH_SEND,
					    .comp_mask = IBV_QP_INIT_ATTR_PD |
							 IBV_QP_INIT_ATTR_SEND_OPS_FLAGS };
	struct mlx5dv_qp_init_attr mlx5 = { .comp_mask = MLX5DV_QP_INIT_ATTR_MASK_QP_CREATE_FLAGS |
							 MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS,
					    .create_flags = flags,
					    .send_ops_flags = MLX5DV_QP_EX_WITH_MKEY_CONFIGURE };
	return mlx5dv_create_qp(context, &init, &mlx5);
}

static struct pair configuring_pair(uint32_t flags)
{
	struct pair pair = { .a_cq = new_cq(64), .b_cq = new_cq(64) };
	pair.a = configuring_qp(pair.a_cq, IBV_QPT_RC, flags);
	pair.b = configuring_qp(pair.b_cq, IBV_QPT_RC, 0);
	if (!pair.a || !pair.b)
		fail("queue pairs that configure keys");
	connect_to(pair.a, pair.b->qp_num);
	connect_to(pair.b, pair.a->qp_num);
	return pair;
}

static struct mlx5dv_qp_ex *dv(struct ibv_qp *qp)
{
	return mlx5dv_qp_ex_from_ibv_qp_ex(ibv_qp_to_qp_ex(qp));
}

static void begin(struct ibv_qp *qp, struct mlx5dv_mkey *key, int setters, uint32_t conf_flags)
{
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct mlx5dv_mkey_conf_attr attr = { .conf_flags = conf_flags };
	ibv_wr_start(ex);
	ex->wr_id = 50;
	ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
	mlx5dv_wr_mkey_configure(dv(qp), key, setters, &attr);
}

/*
 * A key over the first `length` bytes from `offset` on, with these signatures; what completing the
 * request gives.
 */
static int configure(struct ibv_qp *qp, struct mlx5dv_mkey *key, uint64_t offset, uint32_t length,
		     const struct mlx5dv_sig_block_attr *attr)
{
	struct ibv_sge sge = { (uintptr_t)memory + offset, length, mr->lkey };
	begin(qp, key, 3, 0);
	mlx5dv_wr_set_mkey_access_flags(dv(qp), EVERYTHING);
	mlx5dv_wr_set_mkey_layout_list(dv(qp), 1, &sge);
	mlx5dv_wr_set_mkey_sig_block(dv(qp), attr);
	return ibv_wr_complete(ibv_qp_to_qp_ex(qp));
}

static struct mlx5dv_sig_t10dif dif = { .bg_type = MLX5DV_SIG_T10DIF_CRC,
					.app_tag = 0xabcd,
					.ref_tag = 100,
					.flags = MLX5DV_SIG_T10DIF_FLAG_REF_REMAP };
static struct mlx5dv_sig_crc crc = { .type = MLX5DV_SIG_CRC_TYPE_CRC32C, .seed = UINT32_MAX };
static struct mlx5dv_sig_block_domain with_dif = { .sig_type = MLX5DV_SIG_TYPE_T10DIF,
						   .sig.dif = &dif };
static struct mlx5dv_sig_block_domain with_crc = { .sig_type = MLX5DV_SIG_TYPE_CRC,
						   .sig.crc = &crc };

static void capabilities(void)
{
	struct mlx5dv_context attr = { .comp_mask = MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD |
						    MLX5DV_CONTEXT_MASK_SWP };
	row("mlx5dv_query_device(3)", 0, mlx5dv_query_device(context, &attr),
	    "ask what signatures there are");
	equal("mlx5dv_query_device(3)", MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD, attr.comp_mask,
	      "they are answered, the other is not");
	equal("mlx5dv_query_device(3)", 0x1f, attr.sig_caps.block_size,
	      "blocks of 512, 520, 4048, 4096 and 4160 bytes");
	equal("mlx5dv_query_device(3)", 3, attr.sig_caps.block_prot, "T10-DIF and CRC");
	equal("mlx5dv_query_device(3)", 3, attr.sig_caps.t10dif_bg, "guards by CRC and checksum");
	equal("mlx5dv_query_device(3)", 7, attr.sig_caps.crc_type, "CRC32, CRC32C and CRC64");
	attr = (struct mlx5dv_context){ .sig_caps.block_size = 77 };
	mlx5dv_query_device(context, &attr);
	equal("mlx5dv_query_device(3)", 77, attr.sig_caps.block_size,
	      "what nobody asks for is not written");
}

static void refused(void)
{
	struct ibv_cq *cq = new_cq(16);
	row("man mlx5dv_create_mkey", EOPNOTSUPP,
	    POINTER(mlx5dv_destroy_mkey, new_key(MLX5DV_MKEY_INIT_ATTR_FLAGS_BLOCK_SIGNATURE)),
	    "a key with signatures that is not indirect");
	row("man mlx5dv_create_mkey", EOPNOTSUPP,
	    POINTER(mlx5dv_destroy_mkey, new_key(SIGNED | MLX5DV_MKEY_INIT_ATTR_FLAGS_CRYPTO)),
	    "a key with encryption");
	row("man mlx5dv_create_qp", EOPNOTSUPP,
	    POINTER(ibv_destroy_qp,
		    configuring_qp(cq, IBV_QPT_UC, MLX5DV_QP_CREATE_SIG_PIPELINING)),
	    "a UC queue pair that stops at signatures");
	ibv_destroy_cq(cq);

	struct pair pair = configuring_pair(0);
	struct mlx5dv_mkey *key = new_key(SIGNED),
			   *plain = new_key(MLX5DV_MKEY_INIT_ATTR_FLAGS_INDIRECT);
	struct mlx5dv_sig_block_attr good = { .wire = &with_dif, .check_mask = 0xff };
	struct mlx5dv_mkey_err err;
	row(CHECK, EINVAL, mlx5dv_mkey_check(plain, &err),
	    "check a key that was not made for signatures");
	row(CHECK, EINVAL, mlx5dv_mkey_check(key, NULL), "check a key into nothing");
	row(CHECK, 0, mlx5dv_mkey_check(key, &err), "check a key that was never used");
	equal(CHECK, MLX5DV_MKEY_NO_ERR, err.err_type, "nothing is wrong with it");
	row(SET, EINVAL, configure(pair.a, plain, 0, 512, &good),
	    "signatures of a key that was not made for them");
	row(SET, EINVAL, configure(pair.a, key, 0, 512, NULL), "no attributes");

	struct mlx5dv_sig_t10dif bad_dif = dif;
	struct mlx5dv_sig_crc bad_crc = crc;
	struct mlx5dv_sig_block_domain domain = with_dif, crc_domain = with_crc;
	struct mlx5dv_sig_block_attr attr;
	domain.sig.dif = &bad_dif;
	crc_domain.sig.crc = &bad_crc;
#define REFUSED(what, ...) \
	do { \
		bad_dif = dif, bad_crc = crc, domain.block_size = 0, domain.comp_mask = 0; \
		domain.sig_type = MLX5DV_SIG_TYPE_T10DIF, domain.sig.dif = &bad_dif; \
		attr = (struct mlx5dv_sig_block_attr){ .wire = &domain, .check_mask = 0xff }; \
		__VA_ARGS__; \
		row(SET, EINVAL, configure(pair.a, key, 0, 512, &attr), what); \
	} while (0)
	REFUSED("no domain", attr.wire = NULL);
	REFUSED("an unknown flag", attr.flags = 2);
	REFUSED("a comp_mask", attr.comp_mask = 1);
	REFUSED("a copy without a second domain",
		attr.flags = MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK);
	REFUSED("a copy between block sizes", attr.flags = MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK,
		attr.mem = &with_dif, domain.block_size = MLX5DV_BLOCK_SIZE_4096);
	REFUSED("a copy between types", attr.flags = MLX5DV_SIG_BLOCK_ATTR_FLAG_COPY_MASK,
		attr.mem = &with_crc);
	REFUSED("a domain's comp_mask", domain.comp_mask = 1);
	REFUSED("an unknown block size", domain.block_size = MLX5DV_BLOCK_SIZE_4160 + 1);
	REFUSED("an unknown type", domain.sig_type = 2);
	REFUSED("no T10-DIF", domain.sig.dif = NULL);
	REFUSED("no CRC", domain.sig_type = MLX5DV_SIG_TYPE_CRC, domain.sig.crc = NULL);
	REFUSED("an unknown guard", bad_dif.bg_type = 2);
	REFUSED("a guard's seed of 1", bad_dif.bg = 1);
	REFUSED("unknown flags of T10-DIF", bad_dif.flags = 8);
	REFUSED("an unknown CRC", attr.wire = &crc_domain, bad_crc.type = 3);
	REFUSED("a CRC's seed of 1", attr.wire = &crc_domain, bad_crc.seed = 1);
	REFUSED("a seed of 64 bits for a CRC of 32", attr.wire = &crc_domain,
		bad_crc.seed = UINT64_MAX);
	REFUSED("a seed of 32 bits for a CRC of 64", attr.wire = &crc_domain,
		bad_crc.type = MLX5DV_SIG_CRC_TYPE_CRC64_XP10);

	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(pair.a);
	begin(pair.a, key, 2, 0);
	mlx5dv_wr_set_mkey_sig_block(dv(pair.a), &good);
	mlx5dv_wr_set_mkey_sig_block(dv(pair.a), &good);
	row(SET, EINVAL, ibv_wr_complete(ex), "signatures set twice");
	begin(pair.a, key, 1, 0);
	mlx5dv_wr_set_mkey_sig_block(dv(pair.a), &good);
	mlx5dv_wr_set_mkey_sig_block(dv(pair.a), &good);
	row(SET, EINVAL, ibv_wr_complete(ex), "more setters than announced");
	begin(pair.a, key, 1, 0);
	row("mlx5dv_wr_mkey_configure(3)", EINVAL, ibv_wr_complete(ex),
	    "fewer setters than announced");
	begin(pair.a, key, 0, 2);
	row("mlx5dv_wr_mkey_configure(3)", EOPNOTSUPP, ibv_wr_complete(ex),
	    "an unknown flag of the request");
	begin(pair.a, key, 1, 0);
	mlx5dv_wr_set_mkey_access_flags(dv(pair.a), IBV_ACCESS_ON_DEMAND);
	row("mlx5dv_wr_mkey_configure(3)", EINVAL, ibv_wr_complete(ex),
	    "rights that a key cannot have");
	struct mlx5dv_crypto_attr crypto = { 0 };
	begin(pair.a, key, 1, 0);
	mlx5dv_wr_set_mkey_crypto(dv(pair.a), &crypto);
	row("mlx5dv_wr_set_mkey_crypto(3)", EINVAL, ibv_wr_complete(ex),
	    "encryption of a key that was not made for it");
	struct mlx5dv_mr_interleaved long_one = { (uintptr_t)memory, SIZE, 0, mr->lkey };
	begin(pair.a, key, 2, 0);
	mlx5dv_wr_set_mkey_sig_block(dv(pair.a), &good);
	mlx5dv_wr_set_mkey_layout_interleaved(dv(pair.a), SIZE, 1, &long_one);
	row(SET, EINVAL, ibv_wr_complete(ex), "signatures over 4 GiB");
	row(CANCEL, -EINVAL, mlx5dv_qp_cancel_posted_send_wrs(dv(pair.a), 50), "cancel in RTS");
	row(CANCEL, -EINVAL, mlx5dv_qp_cancel_posted_send_wrs(NULL, 50), "cancel of nothing");

	row(SET, 0, configure(pair.a, key, 0, 512, &good), "right ones after all of them");
	completes("nothing was posted", pair.a_cq, 50, IBV_WC_SUCCESS,
		  "they are the first to complete");
	begin(pair.a, key, 0, MLX5DV_MKEY_CONF_FLAG_RESET_SIG_ATTR);
	row("mlx5dv_wr_mkey_configure(3)", 0, ibv_wr_complete(ex), "a reset");
	completes("mlx5dv_wr_mkey_configure(3)", pair.a_cq, 50, IBV_WC_SUCCESS, "it completes");
	end_pair(pair);
	mlx5dv_destroy_mkey(key);
	mlx5dv_destroy_mkey(plain);
}

static void move(struct pair pair, enum ibv_wr_opcode opcode, struct ibv_sge sge, uint64_t addr,
		 uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = 60,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.wr.rdma.remote_addr = addr;
	wr.wr.rdma.rkey = rkey;
	post(pair.a, &wr);
	completes("mlx5dv_wr_set_mkey_sig_block(3)", pair.a_cq, 60, IBV_WC_SUCCESS,
		  "the bytes move");
}

/* The examples of the manual page, and tampering with each. */
static void examples(void)
{
	struct pair pair = configuring_pair(0);
	struct mlx5dv_mkey *near = new_key(SIGNED), *far = new_key(SIGNED);
	struct mlx5dv_mkey_err err;
	/* Example 2: the wire has T10-DIF, memory has not. */
	struct mlx5dv_sig_block_attr wire = { .wire = &with_dif, .check_mask = 0xff };
	char *data = memory, *passed = memory + 8192;
	memset(memory, 0, SIZE);
	for (int i = 0; i < 9; i++)
		data[i] = i + 1;
	data[512] = 1;
	configure(pair.b, far, 0, 1024, &wire);
	completes(SET, pair.b_cq, 50, IBV_WC_SUCCESS, "T10-DIF on the wire");
	struct ibv_sge plain = { (uintptr_t)passed, 1040, mr->lkey };
	move(pair, IBV_WR_RDMA_READ, plain, 0, far->rkey);
	holds("T10 SBC-3", !memcmp(passed + 512, GUARD_0 "\xab\xcd\0\0\0\x64", 8),
	      "the first field");
	holds("T10 SBC-3", !memcmp(passed + 1032, GUARD_1 "\xab\xcd\0\0\0\x65", 8),
	      "the second field");
	holds(SET, !memcmp(passed, data, 512) && !memcmp(passed + 520, data + 512, 512),
	      "the data");
	/* 2.1: written back to it, whole and tampered with. */
	memset(data, 0, 1024);
	move(pair, IBV_WR_RDMA_WRITE, plain, 0, far->rkey);
	mlx5dv_mkey_check(far, &err);
	equal(CHECK, MLX5DV_MKEY_NO_ERR, err.err_type, "it comes back whole");
	holds(SET, data[8] == 9 && data[512] == 1, "and stripped");
	static const struct {
		int byte;
		enum mlx5dv_mkey_err_type type;
		uint64_t actual, expected;
	} flips[] = { { 1039, MLX5DV_MKEY_SIG_BLOCK_BAD_REFTAG, 0x65, 0x64 },
		      { 1035, MLX5DV_MKEY_SIG_BLOCK_BAD_APPTAG, 0xabcd, 0xabcc },
		      { 1033, MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD, GUARD_1_VALUE, GUARD_1_VALUE ^ 1 } };
	for (unsigned i = 0; i < sizeof(flips) / sizeof(*flips); i++) {
		passed[flips[i].byte] ^= 1;
		move(pair, IBV_WR_RDMA_WRITE, plain, 0, far->rkey);
		row(CHECK, 0, mlx5dv_mkey_check(far, &err), "check after byte %d was flipped",
		    flips[i].byte);
		equal(CHECK, flips[i].type, err.err_type, "it is found");
		equal(CHECK, flips[i].actual, err.err.sig.actual_value, "what it should be");
		equal(CHECK, flips[i].expected, err.err.sig.expected_value, "what it says");
		equal(CHECK, 520, err.err.sig.offset, "where its block begins");
		mlx5dv_mkey_check(far, &err);
		equal(CHECK, MLX5DV_MKEY_NO_ERR, err.err_type, "it is told once");
		/*
		 * Only the first wrong part of a block is told: they were flipped from the last to
		 * the first.
		 */
	}
	/* Examples 1 and 1.1: memory has CRC32C, the wire has not. */
	struct mlx5dv_sig_block_attr in_memory = { .mem = &with_crc,
						   .check_mask = MLX5DV_SIG_MASK_CRC32C };
	configure(pair.a, near, 0, 1032, &in_memory);
	completes(SET, pair.a_cq, 50, IBV_WC_SUCCESS, "CRC32C in memory");
	memset(memory, 0, SIZE);
	struct ibv_sge signed_sge = { 0, 1024, near->lkey };
	move(pair, IBV_WR_RDMA_READ, signed_sge, (uintptr_t)memory + 4096, mr->rkey);
	holds("RFC 3720",
	      !memcmp(memory + 512, ZEROS_CRC32C, 4) && !memcmp(memory + 1028, ZEROS_CRC32C, 4),
	      "512 zeros get their CRC32C");
	memset(passed, 0xee, 2048);
	move(pair, IBV_WR_RDMA_WRITE, signed_sge, (uintptr_t)passed, mr->rkey);
	holds(SET, passed[0] == 0 && passed[1023] == 0 && (unsigned char)passed[1024] == 0xee,
	      "it is stripped on its way");
	mlx5dv_mkey_check(near, &err);
	equal(CHECK, MLX5DV_MKEY_NO_ERR, err.err_type, "and was right");
	memory[512 + 2] ^= 0x20;
	move(pair, IBV_WR_RDMA_WRITE, signed_sge, (uintptr_t)passed, mr->rkey);
	mlx5dv_mkey_check(near, &err);
	equal(CHECK, MLX5DV_MKEY_SIG_BLOCK_BAD_GUARD, err.err_type,
	      "a flipped bit of the CRC is found");
	equal(CHECK, 0, err.err.sig.offset, "in the first block");
	equal(CHECK, err.err.sig.actual_value ^ 0x200000, err.err.sig.expected_value,
	      "both values are told");
	end_pair(pair);
	mlx5dv_destroy_mkey(near);
	mlx5dv_destroy_mkey(far);
}

static void pipelining(void)
{
	struct pair pair = configuring_pair(MLX5DV_QP_CREATE_SIG_PIPELINING);
	struct mlx5dv_mkey *key = new_key(SIGNED);
	struct mlx5dv_sig_block_attr attr = { .mem = &with_crc,
					      .check_mask = MLX5DV_SIG_MASK_CRC32C };
	struct ibv_async_event event;
	struct ibv_wc wc;
	memset(memory, 1, SIZE);
	configure(pair.a, key, 0, 516, &attr);
	completes(SET, pair.a_cq, 50, IBV_WC_SUCCESS, "CRC32C in memory");
	receive(pair.b, 80, memory + 8192, 16, mr->lkey);
	struct ibv_sge data = { 0, 512, key->lkey }, answer = { (uintptr_t)memory, 16, mr->lkey };
	struct ibv_send_wr second = { .wr_id = 71,
				      .sg_list = &answer,
				      .num_sge = 1,
				      .opcode = IBV_WR_SEND,
				      .send_flags = IBV_SEND_SIGNALED | IBV_SEND_FENCE };
	struct ibv_send_wr first = { .wr_id = 70,
				     .next = &second,
				     .sg_list = &data,
				     .num_sge = 1,
				     .opcode = IBV_WR_RDMA_WRITE };
	first.wr.rdma.remote_addr = (uintptr_t)memory + 4096;
	first.wr.rdma.rkey = mr->rkey;
	post(pair.a, &first);
	if (ibv_get_async_event(context, &event))
		fail("an event");
	equal(CANCEL, IBV_EVENT_SQ_DRAINED, event.event_type,
	      "a bad signature drains the send queue");
	holds(CANCEL, event.element.qp == pair.a, "of its queue pair");
	ibv_ack_async_event(&event);
	equal(CANCEL, IBV_QPS_SQD, state_of(pair.a), "which is in SQD");
	equal(CANCEL, 0, ibv_poll_cq(pair.a_cq, 1, &wc), "the answer is not sent");
	equal(CANCEL, 0, ibv_poll_cq(pair.b_cq, 1, &wc), "and does not come");
	equal(CANCEL, 0, mlx5dv_qp_cancel_posted_send_wrs(dv(pair.a), 70),
	      "what was done is not cancelled");
	equal(CANCEL, 1, mlx5dv_qp_cancel_posted_send_wrs(dv(pair.a), 71), "the answer is");
	second.wr_id = 72;
	post(pair.a, &second);
	struct ibv_qp_attr on = { .qp_state = IBV_QPS_RTS, .cur_qp_state = IBV_QPS_SQD };
	row("man ibv_modify_qp", 0, ibv_modify_qp(pair.a, &on, IBV_QP_STATE | IBV_QP_CUR_STATE),
	    "it goes on");
	completes(CANCEL, pair.a_cq, 71, IBV_WC_SUCCESS, "the cancelled one completes");
	completes(CANCEL, pair.a_cq, 72, IBV_WC_SUCCESS, "and then another answer");
	completes(CANCEL, pair.b_cq, 80, IBV_WC_SUCCESS, "which is the only one that came");
	end_pair(pair);
	mlx5dv_destroy_mkey(key);
}

static void plain(void)
{
	struct mlx5dv_context attr = { .comp_mask = MLX5DV_CONTEXT_MASK_SIGNATURE_OFFLOAD };
	struct ibv_cq *cq = new_cq(16);
	row("mlx5dv_create_mkey(3)", EOPNOTSUPP, POINTER(mlx5dv_destroy_mkey, new_key(SIGNED)),
	    "no key with signatures");
	row("mlx5dv_create_qp(3)", EOPNOTSUPP,
	    POINTER(ibv_destroy_qp,
		    configuring_qp(cq, IBV_QPT_RC, MLX5DV_QP_CREATE_SIG_PIPELINING)),
	    "no queue pair that stops at one");
	row("mlx5dv_query_device(3)", EOPNOTSUPP, mlx5dv_query_device(context, &attr),
	    "nothing to ask");
	row(CANCEL, -EOPNOTSUPP, mlx5dv_qp_cancel_posted_send_wrs(NULL, 1), "nothing to cancel");
	ibv_destroy_cq(cq);
}

int main(int argc, char **argv)
{
	open_first_device();
	if (argc > 1) {
		plain();
		return finish();
	}
	memory = aligned_alloc(4096, SIZE);
	mr = ibv_reg_mr(pd, memory, SIZE, EVERYTHING);
	if (!mr)
		fail("memory");
	capabilities();
	refused();
	examples();
	pipelining();
	ibv_dereg_mr(mr);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
