/*
 * Every verb with wrong arguments, and the errno that its manual page, the kernel or the
 * specification names. Queue pairs and what is posted to them are in bad_queue_pairs.c; what goes
 * wrong later, as a completion, is in bad_completions.c; changes of QP states are in bad_states.c.
 */
#include "rows.h"

#define MAN(page) "man " page
static const char *uverbs = "Linux core/uverbs, rdma_core ERRNO 3";

static struct ibv_context *other;
static struct ibv_cq *cq;

static void device_and_port(void)
{
	struct ibv_port_attr port;
	struct ibv_device_attr_ex wide;
	struct ibv_gid_entry entry, table[256];
	union ibv_gid found;
	uint16_t pkey;
	const uint8_t ports[] = { 0, 2, 255 };
	for (unsigned i = 0; i < sizeof(ports); i++) {
		uint8_t p = ports[i];
		row(MAN("ibv_query_port"), EINVAL, ibv_query_port(context, p, &port),
		    "query port %d", p);
		equal(MAN("ibv_query_gid"), 1, ibv_query_gid(context, p, 0, &found) == -1,
		      "query GID of port %d", p);
		row(MAN("ibv_query_gid_ex"), EINVAL, ibv_query_gid_ex(context, p, 0, &entry, 0),
		    "query GID entry of port %d", p);
		equal(MAN("ibv_query_pkey"), 1, ibv_query_pkey(context, p, 0, &pkey) == -1,
		      "query P_Key of port %d", p);
		equal(MAN("ibv_get_pkey_index"), 1,
		      ibv_get_pkey_index(context, p, htobe16(0xffff)) == -1,
		      "P_Key index on port %d", p);
	}
	if (ibv_query_port(context, 1, &port))
		fail("query port 1");
	equal(MAN("ibv_query_gid"), 1, ibv_query_gid(context, 1, port.gid_tbl_len, &found) == -1,
	      "query GID behind the table");
	equal(MAN("ibv_query_gid"), 1, ibv_query_gid(context, 1, -1, &found) == -1, "query GID -1");
	row(MAN("ibv_query_gid_ex"), EINVAL,
	    ibv_query_gid_ex(context, 1, port.gid_tbl_len, &entry, 0),
	    "query GID entry behind the table");
	row(MAN("ibv_query_gid_ex"), ENODATA,
	    ibv_query_gid_ex(context, 1, port.gid_tbl_len - 1, &entry, 0),
	    "query an empty GID entry");
	row(MAN("ibv_query_gid_ex"), EINVAL, ibv_query_gid_ex(context, 1, 0, &entry, 1),
	    "query GID entry with a flag");
	row(MAN("ibv_query_gid_table"), EINVAL, -ibv_query_gid_table(context, table, 256, 1),
	    "query GID table with a flag");
	row(MAN("ibv_query_gid_table"), EINVAL, -ibv_query_gid_table(context, table, 0, 0),
	    "query GID table into no entries");
	equal(MAN("ibv_query_pkey"), 1, ibv_query_pkey(context, 1, port.pkey_tbl_len, &pkey) == -1,
	      "query P_Key behind the table");
	equal(MAN("ibv_query_pkey"), 1, ibv_query_pkey(context, 1, -1, &pkey) == -1,
	      "query P_Key -1");
	equal(MAN("ibv_get_pkey_index"), 1, ibv_get_pkey_index(context, 1, htobe16(0x1234)) == -1,
	      "index of an absent P_Key");
	struct ibv_query_device_ex_input input = { .comp_mask = 1 };
	row(MAN("ibv_query_device_ex"), EINVAL, ibv_query_device_ex(context, &input, &wide),
	    "query device with a comp_mask");
	struct ibv_values_ex values = { .comp_mask = 0 };
	row(MAN("ibv_query_rt_values_ex"), 0, ibv_query_rt_values_ex(context, &values),
	    "query no real-time value");
	row(MAN("ibv_open_device"), EINVAL, POINTER(ibv_close_device, ibv_open_device(NULL)),
	    "open no device");
	row(MAN("ibv_import_device"), EINVAL, POINTER(ibv_close_device, ibv_import_device(-1)),
	    "import descriptor -1");
	row(MAN("ibv_import_device"), EINVAL, POINTER(ibv_close_device, ibv_import_device(1)),
	    "import a descriptor that is no context");
}

static void domains(void)
{
	struct ibv_pd *domain = ibv_alloc_pd(context);
	void *memory = aligned_alloc(4096, 4096);
	struct ibv_mr *mr = ibv_reg_mr(domain, memory, 4096, 0);
	row(MAN("ibv_alloc_pd"), EBUSY, ibv_dealloc_pd(domain), "dealloc a PD with an MR");
	ibv_dereg_mr(mr);
	struct ibv_qp *qp = new_qp(domain, cq, IBV_QPT_RC);
	row(MAN("ibv_alloc_pd"), EBUSY, ibv_dealloc_pd(domain), "dealloc a PD with a QP");
	ibv_destroy_qp(qp);
	struct ibv_srq_init_attr init = { .attr = { 4, 1, 0 } };
	struct ibv_srq *srq = ibv_create_srq(domain, &init);
	row(MAN("ibv_alloc_pd"), EBUSY, ibv_dealloc_pd(domain), "dealloc a PD with an SRQ");
	ibv_destroy_srq(srq);
	struct ibv_parent_domain_init_attr around = { .pd = domain };
	struct ibv_pd *parent = ibv_alloc_parent_domain(context, &around);
	row(MAN("ibv_alloc_parent_domain"), EBUSY, ibv_dealloc_pd(domain),
	    "dealloc a PD with a parent domain");
	around.pd = parent;
	row(MAN("ibv_alloc_parent_domain"), EINVAL,
	    POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &around)),
	    "parent domain around a parent domain");
	row(MAN("ibv_alloc_pd"), 0, ibv_dealloc_pd(parent), "dealloc the parent domain");
	row(MAN("ibv_alloc_pd"), 0, ibv_dealloc_pd(domain), "dealloc the PD at last");
	around = (struct ibv_parent_domain_init_attr){ .pd = NULL };
	row(MAN("ibv_alloc_parent_domain"), EINVAL,
	    POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &around)),
	    "parent domain around nothing");
	around = (struct ibv_parent_domain_init_attr){ .pd = pd, .comp_mask = 1u << 20 };
	int got = POINTER(ibv_dealloc_pd, ibv_alloc_parent_domain(context, &around));
	equal(MAN("ibv_alloc_parent_domain"), 1, got == EINVAL || got == EOPNOTSUPP,
	      "parent domain with an unknown comp_mask");
	row(MAN("ibv_import_pd"), ENOENT,
	    POINTER(ibv_unimport_pd, ibv_import_pd(context, 0x7fffffff)), "import an unknown PD");
	row(MAN("ibv_import_mr"), ENOENT, POINTER(ibv_unimport_mr, ibv_import_mr(pd, 0x7fffffff)),
	    "import an unknown MR");
	struct ibv_td_init_attr td = { .comp_mask = 1 };
	row(MAN("ibv_alloc_td"), EINVAL, POINTER(ibv_dealloc_td, ibv_alloc_td(context, &td)),
	    "thread domain with a comp_mask");
	td.comp_mask = 0;
	struct ibv_td *thread = ibv_alloc_td(context, &td);
	around = (struct ibv_parent_domain_init_attr){ .pd = pd, .td = thread };
	parent = ibv_alloc_parent_domain(context, &around);
	if (!thread || !parent)
		fail("a parent domain with a thread domain");
	row(MAN("ibv_dealloc_td"), EBUSY, ibv_dealloc_td(thread),
	    "dealloc a thread domain with a parent domain");
	row(MAN("ibv_alloc_pd"), 0, ibv_dealloc_pd(parent), "dealloc the parent domain first");
	row(MAN("ibv_dealloc_td"), 0, ibv_dealloc_td(thread), "dealloc the thread domain");
	free(memory);
}

static int cq_of(int entries, struct ibv_comp_channel *channel, int vector)
{
	return POINTER(ibv_destroy_cq, ibv_create_cq(context, entries, NULL, channel, vector));
}

static void completion_queues(void)
{
	const char *page = MAN("ibv_create_cq");
	row(page, EINVAL, cq_of(0, NULL, 0), "CQ of 0 entries");
	row(page, EINVAL, cq_of(-1, NULL, 0), "CQ of -1 entries");
	row(page, EINVAL, cq_of(limits.max_cqe + 1, NULL, 0), "CQ of too many entries");
	row(page, EINVAL, cq_of(16, NULL, context->num_comp_vectors), "CQ on a vector too many");
	row(page, EINVAL, cq_of(16, NULL, -1), "CQ on vector -1");
	struct ibv_comp_channel *foreign = ibv_create_comp_channel(other);
	row(page, EINVAL, cq_of(16, foreign, 0), "CQ on the channel of another context");
	ibv_destroy_comp_channel(foreign);
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *used = ibv_create_cq(context, 4, NULL, channel, 0);
	row(MAN("ibv_create_comp_channel"), EBUSY, ibv_destroy_comp_channel(channel),
	    "destroy a channel that a CQ uses");
	page = MAN("ibv_resize_cq");
	row(page, EINVAL, ibv_resize_cq(used, 0), "resize a CQ to 0");
	row(page, EINVAL, ibv_resize_cq(used, -5), "resize a CQ to -5");
	row(page, EINVAL, ibv_resize_cq(used, limits.max_cqe + 1), "resize a CQ to too many");
	struct ibv_qp *qp = new_qp(pd, used, IBV_QPT_RC);
	row(page, EBUSY, ibv_destroy_cq(used), "destroy a CQ that a QP uses");
	struct ibv_recv_wr wr = { .wr_id = 1 }, *bad;
	must_change(qp, IBV_QPS_INIT, 0);
	for (int i = 0; i < 3; i++)
		if (ibv_post_recv(qp, &wr, &bad))
			fail("receives");
	must_change(qp, IBV_QPS_ERR, 0);
	row(page, EINVAL, ibv_resize_cq(used, 1), "resize a CQ below its content");
	row(page, 0, ibv_resize_cq(used, 64), "resize a CQ upwards");
	for (int i = 0; i < 3; i++)
		completes(page, used, 1, IBV_WC_WR_FLUSH_ERR, "completion %d survives the resize",
			  i);
	struct ibv_wc wc;
	equal(MAN("ibv_poll_cq"), 1, ibv_poll_cq(used, -1, &wc) < 0, "poll for -1 completions");
	row(MAN("ibv_poll_cq"), 0, ibv_poll_cq(used, 0, &wc), "poll for 0 completions");
	ibv_destroy_qp(qp);
	row(page, 0, ibv_destroy_cq(used), "destroy the CQ at last");
	row(page, 0, ibv_destroy_comp_channel(channel), "destroy the channel at last");
	page = MAN("ibv_create_cq_ex");
	struct ibv_cq_init_attr_ex init = { .cqe = 16, .wc_flags = 1ull << 40 };
	row(page, EOPNOTSUPP,
	    POINTER(ibv_destroy_cq, (struct ibv_cq *)ibv_create_cq_ex(context, &init)),
	    "CQ with unknown wc_flags");
	init = (struct ibv_cq_init_attr_ex){ .cqe = 16, .comp_mask = 1 << 20 };
	int got = POINTER(ibv_destroy_cq, (struct ibv_cq *)ibv_create_cq_ex(context, &init));
	equal(page, 1, got == EINVAL || got == EOPNOTSUPP, "CQ with an unknown comp_mask");
	init = (struct ibv_cq_init_attr_ex){ .cqe = 0 };
	row(page, EINVAL,
	    POINTER(ibv_destroy_cq, (struct ibv_cq *)ibv_create_cq_ex(context, &init)),
	    "extended CQ of 0 entries");
}

static int srq_of(unsigned max_wr, unsigned max_sge)
{
	struct ibv_srq_init_attr init = { .attr = { max_wr, max_sge, 0 } };
	return POINTER(ibv_destroy_srq, ibv_create_srq(pd, &init));
}

static void shared_queues(void)
{
	const char *page = MAN("ibv_create_srq");
	row("libmlx5", 0, srq_of(0, 1), "SRQ of 0 requests");
	row(page, EINVAL, srq_of(limits.max_srq_wr + 1, 1), "SRQ of too many requests");
	row(page, EINVAL, srq_of(8, limits.max_srq_sge + 1), "SRQ of too many entries");
	struct ibv_srq_init_attr init = { .attr = { 4, 2, 0 } };
	struct ibv_srq *srq = ibv_create_srq(pd, &init);
	if (!srq)
		fail("SRQ");
	struct ibv_srq_attr attr = { .srq_limit = init.attr.max_wr + 1 };
	page = MAN("ibv_modify_srq");
	row(page, EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), "SRQ limit above its size");
	row(page, EINVAL, ibv_modify_srq(srq, &attr, 1 << 6), "SRQ with an unknown mask bit");
	row(page, 0, ibv_modify_srq(srq, &attr, 0), "SRQ with an empty mask");
	attr = (struct ibv_srq_attr){ .max_wr = limits.max_srq_wr + 1 };
	row(page, EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR), "SRQ resized to too many");
	attr = (struct ibv_srq_attr){ .max_wr = 2 * init.attr.max_wr,
				      .srq_limit = limits.max_srq_wr };
	struct ibv_srq_attr after;
	row(page, EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT),
	    "SRQ resized with a wrong limit");
	holds(page, !ibv_query_srq(srq, &after) && after.max_wr == init.attr.max_wr,
	      "then its size is unchanged");
	page = MAN("ibv_post_srq_recv");
	struct ibv_sge sges[64] = { { 0 } };
	struct ibv_recv_wr wr = { .wr_id = 3, .sg_list = sges, .num_sge = init.attr.max_sge + 1 },
			   *bad = NULL;
	row(page, EINVAL, ibv_post_srq_recv(srq, &wr, &bad), "SRQ receive with too many entries");
	holds(page, bad == &wr, "bad_wr is that receive");
	wr.num_sge = -1;
	row(page, EINVAL, ibv_post_srq_recv(srq, &wr, &bad), "SRQ receive with -1 entries");
	wr.num_sge = 0;
	unsigned posted = 0;
	while (posted <= init.attr.max_wr && (errno = ibv_post_srq_recv(srq, &wr, &bad)) == 0)
		posted++;
	row(page, ENOMEM, errno, "SRQ receive into a full queue");
	holds(page, posted == init.attr.max_wr, "the SRQ takes as many as it says");
	attr = (struct ibv_srq_attr){ .max_wr = 1 };
	row(MAN("ibv_modify_srq"), EINVAL, ibv_modify_srq(srq, &attr, IBV_SRQ_MAX_WR),
	    "SRQ resized below its content");
	struct ibv_qp_init_attr uses = { .send_cq = cq,
					 .recv_cq = cq,
					 .srq = srq,
					 .qp_type = IBV_QPT_UC,
					 .cap = { 1, 1, 1, 1, 0 } };
	row(MAN("ibv_create_qp, NOTES"), EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, &uses)),
	    "UC QP with an SRQ");
	uses.qp_type = IBV_QPT_RC;
	struct ibv_qp *qp = ibv_create_qp(pd, &uses);
	row(MAN("ibv_create_srq"), EBUSY, ibv_destroy_srq(srq), "destroy an SRQ that a QP uses");
	must_change(qp, IBV_QPS_INIT, 0);
	wr.num_sge = 0;
	row(MAN("ibv_post_recv"), EINVAL, ibv_post_recv(qp, &wr, &bad),
	    "post a receive on a QP with an SRQ");
	ibv_destroy_qp(qp);
	row(page, 0, ibv_destroy_srq(srq), "destroy the SRQ at last");
	struct ibv_srq_init_attr_ex wide = { .attr = { 4, 1, 0 },
					     .comp_mask =
						     IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD,
					     .srq_type = IBV_SRQT_XRC,
					     .pd = pd };
	row(MAN("ibv_create_srq_ex"), EINVAL,
	    POINTER(ibv_destroy_srq, ibv_create_srq_ex(context, &wide)), "XRC SRQ of no domain");
	wide.srq_type = IBV_SRQT_TM;
	row(MAN("ibv_create_srq_ex"), EINVAL,
	    POINTER(ibv_destroy_srq, ibv_create_srq_ex(context, &wide)),
	    "tag-matching SRQ of no CQ");
}

/* The null region: zeros go out of it, nothing goes in, and it is a local key only. */
static void null_region(void)
{
	const char *page = MAN("ibv_alloc_null_mr");
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct pair pair = new_pair(IBV_QPT_RC);
	static uint64_t out[2] = { 7, 8 }, in[3] = { 1, 2, 3 };
	struct ibv_mr *own = ibv_reg_mr(pd, out, sizeof(out), LOCAL | IBV_ACCESS_REMOTE_READ);
	struct ibv_mr *far = ibv_reg_mr(pd, in, sizeof(in), EVERYTHING);
	if (!null || !own || !far)
		fail("regions");
	holds(page, null->length == SIZE_MAX && !null->addr && !null->rkey,
	      "the null region is everything, for its lkey");
	/* 8 bytes of nothing in front of real ones, at an address that need not be there. */
	struct ibv_sge gather[2] = { { -64, 8, null->lkey }, { (uintptr_t)&out[1], 8, own->lkey } };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = gather,
				  .num_sge = 2,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED,
				  .wr.rdma = { (uintptr_t)in, far->rkey } };
	post(pair.a, &wr);
	completes(page, pair.a_cq, 1, IBV_WC_SUCCESS, "write from the null region");
	holds(page, in[0] == 0 && in[1] == 8 && in[2] == 3, "zeros and what follows them arrived");
	/* Only the second half of the message is wanted. */
	struct ibv_sge scatter[2] = { { 0, 8, null->lkey }, { (uintptr_t)&in[2], 8, far->lkey } };
	struct ibv_recv_wr receive = { .wr_id = 2, .sg_list = scatter, .num_sge = 2 }, *bad;
	row(page, 0, ibv_post_recv(pair.b, &receive, &bad), "receive into the null region");
	gather[0] = (struct ibv_sge){ (uintptr_t)out, 16, own->lkey };
	wr.opcode = IBV_WR_SEND;
	wr.num_sge = 1;
	post(pair.a, &wr);
	completes(page, pair.b_cq, 2, IBV_WC_SUCCESS, "receive into the null region");
	completes(page, pair.a_cq, 1, IBV_WC_SUCCESS, "send to it");
	holds(page, in[0] == 0 && in[1] == 8 && in[2] == 8, "the second half arrived");
	gather[0] = (struct ibv_sge){ 4096, 16, null->lkey };
	wr.opcode = IBV_WR_RDMA_READ;
	wr.wr.rdma.remote_addr = (uintptr_t)out;
	wr.wr.rdma.rkey = own->rkey;
	post(pair.a, &wr);
	completes(page, pair.a_cq, 1, IBV_WC_SUCCESS, "read into the null region");
	wr.opcode = IBV_WR_RDMA_WRITE;
	wr.wr.rdma.rkey = null->lkey;
	post(pair.a, &wr);
	completes(page, pair.a_cq, 1, IBV_WC_REM_ACCESS_ERR, "write to the null region's lkey");
	row(page, IBV_REREG_MR_ERR_INPUT,
	    ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, EVERYTHING),
	    "register the null region again");
	end_pair(pair);
	row(page, 0, ibv_dereg_mr(null), "deregister the null region");
	ibv_dereg_mr(own);
	ibv_dereg_mr(far);
}

static uint64_t nanoseconds(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

static uint64_t device_clock(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };
	if (ibv_query_rt_values_ex(context, &values))
		fail("the device's clock");
	return values.raw_clock.tv_nsec;
}

/* When a completion came, by the device's clock and by the wall's. */
static void timestamps(void)
{
	const char *page = MAN("ibv_create_cq_ex");
	struct ibv_cq_init_attr_ex wanted = {
		.cqe = 4,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP |
			    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK
	};
	struct ibv_cq_ex *timed = ibv_create_cq_ex(context, &wanted);
	if (!timed)
		fail("a CQ with timestamps");
	struct ibv_qp *qp = new_qp(pd, ibv_cq_ex_to_cq(timed), IBV_QPT_RC);
	connect_to(qp, qp->qp_num);
	uint64_t clock = device_clock(), wall = nanoseconds();
	struct ibv_send_wr wr = { .wr_id = 5,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	struct ibv_poll_cq_attr nothing_more = { 0 };
	double end = seconds() + 10;
	post(qp, &wr);
	while ((errno = ibv_start_poll(timed, &nothing_more)) == ENOENT && seconds() < end)
		;
	if (errno || timed->wr_id != 5 || timed->status)
		fail("a write's completion");
	uint64_t ticks = ibv_wc_read_completion_ts(timed),
		 when = ibv_wc_read_completion_wallclock_ns(timed);
	ibv_end_poll(timed);
	holds(page, clock <= ticks && ticks <= device_clock(),
	      "the completion's time by the device's clock");
	holds(page, wall <= when + 1000 && when <= nanoseconds(),
	      "the completion's time by the wall's clock");
	ibv_destroy_qp(qp);
	ibv_destroy_cq(ibv_cq_ex_to_cq(timed));
}

/* What this device does not have: EOPNOTSUPP, never a success that means nothing. */
static void not_offered(void)
{
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	struct ibv_alloc_dm_attr dm = { .length = 4096, .comp_mask = 1 << 20 };
	struct ibv_modify_cq_attr moderate = { .attr_mask = IBV_CQ_ATTR_MODERATE,
					       .moderate = { 1, 1 } };
	struct ibv_qp_rate_limit_attr rate = { .rate_limit = 1 };
	row(MAN("ibv_attach_mcast"), EINVAL, ibv_attach_mcast(qp, &gid, 0),
	    "attach a connection to a multicast group");
	row(MAN("ibv_attach_mcast"), EINVAL, ibv_detach_mcast(qp, &gid, 0),
	    "detach a connection from a multicast group");
	int got = POINTER(ibv_free_dm, ibv_alloc_dm(context, &dm));
	equal(MAN("ibv_alloc_dm"), 1, got == EINVAL || got == EOPNOTSUPP,
	      "device memory with an unknown comp_mask");
	row(MAN("ibv_modify_cq"), EOPNOTSUPP, ibv_modify_cq(cq, &moderate), "moderate a CQ");
	row(MAN("ibv_modify_qp_rate_limit"), EOPNOTSUPP, ibv_modify_qp_rate_limit(qp, &rate),
	    "limit the rate of a QP");
	ibv_destroy_qp(qp);
}

/* Pointers to nothing. Hardware libraries crash on most; a program under test shall live. */
static void nothing(void)
{
	const char *ours = "the man pages: null";
	struct ibv_device_attr attr;
	struct ibv_port_attr port;
	struct ibv_qp_attr qp_attr;
	struct ibv_qp_init_attr init;
	struct ibv_srq_init_attr srq = { .attr = { 1, 1, 0 } };
	char memory[16];
	/* The compiler must not see that these are null: some declarations say that they are not.
	 */
	struct ibv_context *volatile hidden = NULL;
	struct ibv_context *no_context = hidden;
	row(ours, EINVAL, ibv_query_device(no_context, &attr), "query no device");
	row(ours, EINVAL, (ibv_query_port)(no_context, 1, (struct _compat_ibv_port_attr *)&port),
	    "query the port of no device");
	row(ours, EINVAL, POINTER(ibv_dealloc_pd, ibv_alloc_pd(no_context)), "PD of no device");
	row(ours, EINVAL, ibv_dealloc_pd(NULL), "dealloc no PD");
	row(ours, EINVAL, POINTER(ibv_dereg_mr, (ibv_reg_mr)(NULL, memory, 16, LOCAL)),
	    "MR in no PD");
	row(ours, EINVAL, POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(NULL, 0, 4096, 0, -1, LOCAL)),
	    "dma-buf MR in no PD");
	row(ours, EINVAL, ibv_dereg_mr(NULL), "deregister no MR");
	row(ours, EINVAL, POINTER(ibv_destroy_cq, ibv_create_cq(no_context, 1, NULL, NULL, 0)),
	    "CQ of no device");
	row(ours, EINVAL, ibv_destroy_cq(NULL), "destroy no CQ");
	row(ours, EINVAL, ibv_resize_cq(NULL, 1), "resize no CQ");
	row(ours, EINVAL, POINTER(ibv_destroy_comp_channel, ibv_create_comp_channel(no_context)),
	    "channel of no device");
	row(ours, EINVAL, ibv_destroy_comp_channel(NULL), "destroy no channel");
	row(ours, EINVAL, POINTER(ibv_destroy_srq, ibv_create_srq(NULL, &srq)), "SRQ in no PD");
	row(ours, EINVAL, POINTER(ibv_destroy_srq, ibv_create_srq(pd, NULL)),
	    "SRQ of no attributes");
	row(ours, EINVAL, ibv_destroy_srq(NULL), "destroy no SRQ");
	row(ours, EINVAL, POINTER(ibv_destroy_qp, ibv_create_qp(pd, NULL)), "QP of no attributes");
	row(ours, EINVAL, ibv_modify_qp(NULL, &qp_attr, IBV_QP_STATE), "modify no QP");
	row(ours, EINVAL, ibv_query_qp(NULL, &qp_attr, 0, &init), "query no QP");
	row(ours, EINVAL, ibv_destroy_qp(NULL), "destroy no QP");
	row(ours, EINVAL, POINTER(ibv_destroy_ah, ibv_create_ah(pd, NULL)), "AH of no attributes");
	row(ours, EINVAL, ibv_destroy_ah(NULL), "destroy no AH");
	struct ibv_qp *qp = new_qp(pd, cq, IBV_QPT_RC);
	struct ibv_recv_wr wr = { .num_sge = 1, .sg_list = NULL }, *bad;
	must_change(qp, IBV_QPS_INIT, 0);
	row(ours, EINVAL, ibv_modify_qp(qp, NULL, IBV_QP_STATE), "modify a QP with no attributes");
	row(ours, EINVAL, ibv_post_recv(qp, &wr, &bad), "receive into a list of nothing");
	row(ours, 0, ibv_post_recv(qp, NULL, &bad), "post no receive");
	ibv_destroy_qp(qp);
}

int main(void)
{
	open_first_device();
	other = ibv_open_device(context->device);
	cq = new_cq(64);
	if (!other)
		fail("a second context");
	row(uverbs, 0, other == context, "two opens give two contexts");
	device_and_port();
	domains();
	completion_queues();
	shared_queues();
	null_region();
	timestamps();
	not_offered();
	nothing();
	ibv_destroy_cq(cq);
	row(uverbs, 0, ibv_close_device(other), "close the second context");
	row(MAN("ibv_alloc_pd"), 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	row(uverbs, 0, ibv_close_device(context), "close the context");
	return finish();
}
