/* Every verb with wrong arguments: the error is the documented one and the program lives. */
#include "common.h"

#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova

static struct ibv_context *context, *other;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static char *page;
static long page_size;

static void nulls(void)
{
	struct ibv_srq_attr srq_attr = { .max_wr = 1 };
	struct ibv_port_attr port_attr;
	union ibv_gid gid;
	uint16_t pkey;

	ibv_free_device_list(NULL);
	CHECK(!ibv_get_device_name(NULL));
	CHECK(ibv_get_device_guid(NULL) == 0);
	REFUSED(ibv_open_device(NULL), EINVAL);
	STATUS(ibv_close_device(NULL), EINVAL);
	REFUSED(ibv_import_device(-1), EINVAL);
	REFUSED(ibv_import_device(0), EINVAL);
	STATUS(ibv_query_device(NULL, NULL), EINVAL);
	STATUS(ibv_query_device(context, NULL), EINVAL);
	STATUS(ibv_query_port(NULL, 1, (void *)&port_attr), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 0, NULL), EINVAL);
	MINUS_ONE(ibv_query_gid(NULL, 1, 0, &gid), EINVAL);
	MINUS_ONE(ibv_query_pkey(NULL, 1, 0, &pkey), EINVAL);
	REFUSED(ibv_alloc_pd(NULL), EINVAL);
	STATUS(ibv_dealloc_pd(NULL), EINVAL);
	REFUSED(ibv_reg_mr(NULL, page, 8, 0), EINVAL);
	STATUS(ibv_dereg_mr(NULL), EINVAL);
	STATUS(ibv_rereg_mr(NULL, 0, pd, page, 8, 0), IBV_REREG_MR_ERR_INPUT);
	REFUSED(ibv_create_comp_channel(NULL), EINVAL);
	STATUS(ibv_destroy_comp_channel(NULL), EINVAL);
	MINUS_ONE(ibv_get_cq_event(NULL, NULL, NULL), EINVAL);
	ibv_ack_cq_events(NULL, 1);
	MINUS_ONE(ibv_get_async_event(NULL, NULL), EINVAL);
	ibv_ack_async_event(NULL);
	REFUSED(ibv_create_cq(NULL, 1, NULL, NULL, 0), EINVAL);
	STATUS(ibv_resize_cq(NULL, 1), EINVAL);
	STATUS(ibv_destroy_cq(NULL), EINVAL);
	REFUSED(ibv_create_srq(NULL, NULL), EINVAL);
	REFUSED(ibv_create_srq(pd, NULL), EINVAL);
	STATUS(ibv_modify_srq(NULL, &srq_attr, 0), EINVAL);
	STATUS(ibv_query_srq(NULL, &srq_attr), EINVAL);
	STATUS(ibv_destroy_srq(NULL), EINVAL);
	REFUSED(ibv_create_qp(NULL, NULL), EINVAL);
	REFUSED(ibv_create_qp(pd, NULL), EINVAL);
	STATUS(ibv_modify_qp(NULL, NULL, 0), EINVAL);
	STATUS(ibv_query_qp(NULL, NULL, 0, NULL), EINVAL);
	STATUS(ibv_destroy_qp(NULL), EINVAL);
	CHECK(!ibv_qp_to_qp_ex(NULL));
	REFUSED(ibv_create_ah(NULL, NULL), EINVAL);
	REFUSED(ibv_create_ah(pd, NULL), EINVAL);
	STATUS(ibv_destroy_ah(NULL), EINVAL);
	MINUS_ONE(ibv_init_ah_from_wc(context, 1, NULL, NULL, NULL), EINVAL);
	REFUSED(ibv_create_ah_from_wc(pd, NULL, NULL, 1), EINVAL);
	STATUS(ibv_attach_mcast(NULL, NULL, 0), EINVAL);
	STATUS(ibv_detach_mcast(NULL, NULL, 0), EINVAL);
}

static void ports(void)
{
	struct ibv_gid_entry entries[256];
	struct ibv_port_attr attr;
	struct ibv_gid_entry entry;
	union ibv_gid gid;
	uint16_t pkey;

	for (int port = 0; port <= 2; port += 2) {
		STATUS(ibv_query_port(context, port, (void *)&attr), EINVAL);
		MINUS_ONE(ibv_query_gid(context, port, 0, &gid), EINVAL);
		STATUS(ibv_query_gid_ex(context, port, 0, &entry, 0), EINVAL);
		MINUS_ONE(ibv_query_pkey(context, port, 0, &pkey), EINVAL);
	}
	MINUS_ONE(ibv_query_gid(context, 1, -1, &gid), EINVAL);
	MINUS_ONE(ibv_query_gid(context, 1, 256, &gid), EINVAL);
	STATUS(ibv_query_gid(context, 1, 255, &gid), 0);
	STATUS(ibv_query_gid_ex(context, 1, 255, &entry, 0), ENODATA);
	STATUS(ibv_query_gid_ex(context, 1, 0, &entry, 1), EINVAL);
	CHECK(ibv_query_gid_table(context, entries, 256, 0) >= 1);
	CHECK(ibv_query_gid_table(context, entries, 0, 0) == -EINVAL);
	MINUS_ONE(ibv_query_pkey(context, 1, 1, &pkey), EINVAL);
	CHECK(ibv_get_pkey_index(context, 1, htons(0xffff)) == 0);
	MINUS_ONE(ibv_get_pkey_index(context, 1, htons(0x1234)), EINVAL);
}

static void regions(void)
{
	int memfd = memfd_create("not a dma-buf", 0);
	struct ibv_mr *mr;
	char *readonly = mmap(NULL, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *gone = mmap(NULL, page_size, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	munmap(gone, page_size);
	REFUSED(ibv_reg_mr(pd, page, 8, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, 8, IBV_ACCESS_REMOTE_ATOMIC), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, 8, 1 << 15), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, 0, IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, 0, 0), EINVAL);
	REFUSED(ibv_reg_mr(pd, page, SIZE_MAX, 0), EINVAL);
	REFUSED(ibv_reg_mr(pd, gone, 8, 0), EFAULT);
	REFUSED(ibv_reg_mr(pd, readonly, 8, IBV_ACCESS_LOCAL_WRITE), EFAULT);
	REFUSED(ibv_reg_mr_iova(pd, page, 8, 1, 0), EINVAL);

	/*
	 * The order: page offset, the rights of a dma-buf, the common rules, the descriptor, its
	 * size.
	 */
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, page_size, 1, -1, 0), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, page_size, 0, -1, IBV_ACCESS_ON_DEMAND), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, page_size, 0, -1, IBV_ACCESS_REMOTE_WRITE), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, page_size, 0, -1, 0), EBADF);
	REFUSED(ibv_reg_dmabuf_mr(pd, UINT64_MAX - page_size + 1, 2 * page_size, 0, -1, 0), EINVAL);
	REFUSED(ibv_reg_dmabuf_mr(pd, 0, page_size, 0, memfd, 0), EINVAL);
	close(memfd);

	mr = ibv_reg_mr(pd, readonly, 8, IBV_ACCESS_REMOTE_READ);
	CHECK(mr);
	STATUS(ibv_rereg_mr(mr, 8, pd, page, 8, 0), IBV_REREG_MR_ERR_INPUT);
	STATUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, NULL, 8, 0),
	       IBV_REREG_MR_ERR_INPUT);
	STATUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION, pd, page, 0, 0),
	       IBV_REREG_MR_ERR_INPUT);
	STATUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_PD, pd, page, 8, IBV_ACCESS_LOCAL_WRITE),
	       IBV_REREG_MR_ERR_INPUT);
	STATUS(ibv_rereg_mr(mr, 0, pd, NULL, 0, 0), IBV_REREG_MR_ERR_CMD);
	errno = 0;
	STATUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_ACCESS, pd, NULL, 0, IBV_ACCESS_LOCAL_WRITE),
	       IBV_REREG_MR_ERR_CMD);
	CHECK(errno == EACCES);
	STATUS(ibv_rereg_mr(mr, IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_ACCESS, pd,
			    page, 16, IBV_ACCESS_LOCAL_WRITE),
	       0);
	CHECK(mr->addr == page && mr->length == 16);
	STATUS(ibv_dealloc_pd(pd), EBUSY);
	STATUS(ibv_dereg_mr(mr), 0);
	munmap(readonly, page_size);
}

static void advice(void)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, page, 8, 0);
	struct ibv_sge range = { (uintptr_t)page, 8, mr->lkey };

	STATUS(ibv_advise_mr(pd, 99, 0, &range, 1), EOPNOTSUPP);
	STATUS(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 1 << 7, &range, 1), EINVAL);
	STATUS(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1), ENOENT);
	range.lkey ^= 0xff00;
	STATUS(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &range, 1), ENOENT);
	STATUS(ibv_dereg_mr(mr), 0);
	mr = ibv_alloc_null_mr(pd);
	CHECK(mr);
	STATUS(ibv_dereg_mr(mr), 0);
	REFUSED(ibv_alloc_mw(pd, 0), EINVAL);
	REFUSED(ibv_alloc_mw(pd, 3), EINVAL);
	REFUSED(context->ops.alloc_mw(NULL, IBV_MW_TYPE_1), EINVAL);
	STATUS(context->ops.dealloc_mw(NULL), EINVAL);
	STATUS(context->ops.bind_mw(NULL, NULL, NULL), EINVAL);
}

static void device_memory(void)
{
	struct ibv_alloc_dm_attr attr = { .length = 64 };
	struct ibv_dm *dm = ibv_alloc_dm(context, &attr);
	struct ibv_mr *mr;
	uint32_t word = 7;

	CHECK(dm);
	attr.length = 1 << 30;
	REFUSED(ibv_alloc_dm(context, &attr), ENOMEM);
	attr.length = 0;
	REFUSED(ibv_alloc_dm(context, &attr), EINVAL);
	STATUS(ibv_memcpy_to_dm(dm, 64, &word, 4), EFAULT);
	STATUS(ibv_memcpy_to_dm(dm, 2, &word, 4), EINVAL);
	STATUS(ibv_memcpy_to_dm(dm, 60, (void *)8, 4), EFAULT);
	STATUS(ibv_memcpy_to_dm(dm, 60, &word, 4), 0);
	word = 0;
	STATUS(ibv_memcpy_from_dm(&word, dm, 60, 4), 0);
	CHECK(word == 7);
	REFUSED(ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_LOCAL_WRITE), EINVAL);
	REFUSED(ibv_reg_dm_mr(pd, dm, 4, 64, IBV_ACCESS_ZERO_BASED), EINVAL);
	mr = ibv_reg_dm_mr(pd, dm, 0, 64, IBV_ACCESS_ZERO_BASED | IBV_ACCESS_LOCAL_WRITE);
	CHECK(mr);
	STATUS(ibv_free_dm(dm), EBUSY);
	STATUS(ibv_dereg_mr(mr), 0);
	STATUS(ibv_free_dm(dm), 0);
}

static void queues(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(other);
	struct ibv_cq_init_attr_ex attr_ex = { .cqe = 4, .wc_flags = 1ULL << 40 };
	struct ibv_srq_init_attr srq_init = { .attr = { .max_wr = 1 << 30, .max_sge = 1 } };
	struct ibv_cq *foreign;
	struct ibv_srq *srq;
	struct ibv_srq_attr attr;

	REFUSED(ibv_create_cq(context, 0, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, -1, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, INT32_MAX, NULL, NULL, 0), EINVAL);
	REFUSED(ibv_create_cq(context, 4, NULL, NULL, 1), EINVAL);
	REFUSED(ibv_create_cq(context, 4, NULL, NULL, -1), EINVAL);
	REFUSED(ibv_create_cq(context, 4, NULL, channel, 0), EINVAL);
	REFUSED(ibv_create_cq_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.wc_flags = IBV_WC_EX_WITH_CVLAN;
	REFUSED(ibv_create_cq_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.wc_flags = 0;
	attr_ex.comp_mask = 1 << 9;
	REFUSED(ibv_create_cq_ex(context, &attr_ex), EOPNOTSUPP);
	attr_ex.comp_mask = IBV_CQ_INIT_ATTR_MASK_FLAGS;
	attr_ex.flags = IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN;
	REFUSED(ibv_create_cq_ex(context, &attr_ex), EOPNOTSUPP);

	foreign = ibv_create_cq(other, 4, NULL, channel, 0);
	CHECK(foreign);
	STATUS(ibv_destroy_comp_channel(channel), EBUSY);
	STATUS(ibv_resize_cq(foreign, 0), EINVAL);
	STATUS(ibv_resize_cq(foreign, 8), 0);
	CHECK(foreign->cqe >= 8);
	STATUS(ibv_destroy_cq(foreign), 0);
	STATUS(ibv_destroy_comp_channel(channel), 0);

	REFUSED(ibv_create_srq(pd, &srq_init), EINVAL);
	srq_init.attr.max_wr = 4;
	srq_init.attr.max_sge = 1000;
	REFUSED(ibv_create_srq(pd, &srq_init), EINVAL);
	srq_init.attr.max_sge = 1;
	srq = ibv_create_srq(pd, &srq_init);
	CHECK(srq);
	attr.srq_limit = srq_init.attr.max_wr + 1;
	STATUS(ibv_modify_srq(srq, &attr, IBV_SRQ_LIMIT), EINVAL);
	STATUS(ibv_modify_srq(srq, &attr, 1 << 5), EINVAL);
	STATUS(ibv_destroy_srq(srq), 0);
}

static void pairs(void)
{
	struct ibv_qp_init_attr init = basic_qp(cq);
	struct ibv_cq *foreign = ibv_create_cq(other, 4, NULL, NULL, 0);
	struct ibv_qp_init_attr_ex ex = { .comp_mask = IBV_QP_INIT_ATTR_PD |
						       IBV_QP_INIT_ATTR_CREATE_FLAGS,
					  .pd = pd,
					  .send_cq = cq,
					  .recv_cq = cq,
					  .qp_type = IBV_QPT_RC,
					  .create_flags = IBV_QP_CREATE_SCATTER_FCS };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTS };
	struct ibv_recv_wr recv = { .num_sge = 33 }, *bad_recv;
	struct ibv_send_wr send = { .opcode = IBV_WR_SEND }, *bad_send = NULL;
	struct ibv_qp *qp;

	init.send_cq = NULL;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init.send_cq = foreign;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init = basic_qp(cq);
	init.qp_type = 77;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	init.qp_type = IBV_QPT_XRC_RECV;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	REFUSED(ibv_open_xrcd(context, NULL), EINVAL);
	REFUSED(ibv_open_qp(context, NULL), EINVAL);
	init.qp_type = IBV_QPT_DRIVER;
	REFUSED(ibv_create_qp(pd, &init), EOPNOTSUPP);
	init = basic_qp(cq);
	init.cap.max_send_wr = UINT32_MAX;
	REFUSED(ibv_create_qp(pd, &init), EINVAL);
	REFUSED(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	ex.send_ops_flags = IBV_QP_EX_WITH_TSO;
	REFUSED(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	ex.qp_type = IBV_QPT_UC;
	ex.send_ops_flags = IBV_QP_EX_WITH_RDMA_READ;
	REFUSED(ibv_create_qp_ex(context, &ex), EOPNOTSUPP);
	STATUS(ibv_destroy_cq(foreign), 0);

	init = basic_qp(cq);
	qp = ibv_create_qp(pd, &init);
	CHECK(qp && init.cap.max_send_wr >= 8 && init.cap.max_inline_data >= 64);
	STATUS(ibv_destroy_cq(cq), EBUSY);
	STATUS(ibv_dealloc_pd(pd), EBUSY);
	STATUS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	CHECK(qp->state == IBV_QPS_RESET);
	attr.qp_state = 99;
	STATUS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	attr.qp_state = IBV_QPS_INIT;
	STATUS(ibv_modify_qp(qp, &attr, IBV_QP_STATE), EINVAL);
	STATUS(ibv_modify_qp(qp, &attr, 1 << 30), EOPNOTSUPP);
	STATUS(ibv_post_send(qp, &send, &bad_send), EINVAL);
	CHECK(bad_send == &send);
	STATUS(post_receive(qp, page, 8, NULL), EINVAL);
	STATUS(connect_qp(qp, qp), 0);
	STATUS(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	recv.num_sge = -1;
	STATUS(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	recv.num_sge = 1;
	STATUS(ibv_post_recv(qp, &recv, &bad_recv), EINVAL);
	recv.num_sge = 0;
	for (uint32_t i = 0; i < init.cap.max_recv_wr; i++)
		STATUS(ibv_post_recv(qp, &recv, &bad_recv), 0);
	STATUS(ibv_post_recv(qp, &recv, &bad_recv), ENOMEM);
	send.opcode = IBV_WR_TSO;
	STATUS(ibv_post_send(qp, &send, &bad_send), EINVAL);
	send.opcode = IBV_WR_SEND;
	send.send_flags = 1 << 20;
	STATUS(ibv_post_send(qp, &send, &bad_send), EINVAL);
	send.send_flags = IBV_SEND_INLINE;
	send.sg_list = &(struct ibv_sge){ 8, 8, 0 };
	send.num_sge = 1;
	STATUS(ibv_post_send(qp, &send, &bad_send), EFAULT);
	send.sg_list = &(struct ibv_sge){ (uintptr_t)page, init.cap.max_inline_data + 1, 0 };
	STATUS(ibv_post_send(qp, &send, &bad_send), EINVAL);
	STATUS(ibv_destroy_qp(qp), 0);
}

static void addresses(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1 };
	struct ibv_ah *ah;

	CHECK(!ibv_query_gid(context, 1, 0, &attr.grh.dgid));
	ah = ibv_create_ah(pd, &attr);
	CHECK(ah);
	STATUS(ibv_dealloc_pd(pd), EBUSY);
	STATUS(ibv_destroy_ah(ah), 0);
	attr.port_num = 2;
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
	attr.port_num = 1;
	attr.is_global = 0;
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
	attr.is_global = 1;
	attr.grh.sgid_index = 255;
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
	attr.grh.sgid_index = 0;
	memset(&attr.grh.dgid, 0, 16);
	REFUSED(ibv_create_ah(pd, &attr), EINVAL);
}

/* Work collected by ibv_wr_* that does not fit as a whole is not posted at all. */
static void batches(void)
{
	struct ibv_qp_init_attr basic = basic_qp(cq);
	struct ibv_qp_init_attr_ex init = {
		.send_cq = cq,
		.recv_cq = cq,
		.cap = basic.cap,
		.qp_type = IBV_QPT_RC,
		.pd = pd,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ibv_mr *mr =
		ibv_reg_mr(pd, page, page_size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct ibv_qp *qp = ibv_create_qp_ex(context, &init);
	struct ibv_qp_ex *ex = ibv_qp_to_qp_ex(qp);
	struct ibv_wc wc;

	STATUS(connect_qp(qp, qp), 0);
	for (int round = 0; round < 2; round++) {
		int fits = round, count = fits ? 8 : 9;

		ibv_wr_start(ex);
		for (int i = 0; i < count; i++) {
			ex->wr_id = i;
			ex->wr_flags = IBV_SEND_SIGNALED;
			ibv_wr_rdma_write(ex, mr->rkey, (uintptr_t)page + 8);
			ibv_wr_set_sge(ex, mr->lkey, (uintptr_t)page, 8);
		}
		STATUS(ibv_wr_complete(ex), fits ? 0 : ENOMEM);
		for (int i = 0; fits && i < count; i++) {
			wc = next_completion(cq);
			CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i);
		}
	}
	STATUS(ibv_poll_cq(cq, 1, &wc), 0);
	STATUS(ibv_destroy_qp(qp), 0);
	STATUS(ibv_dereg_mr(mr), 0);
}

int main(void)
{
	page_size = sysconf(_SC_PAGESIZE);
	page = mmap(NULL, page_size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	context = open_context();
	other = open_context();
	pd = ibv_alloc_pd(context);
	cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	CHECK(pd && cq);
	nulls();
	ports();
	regions();
	advice();
	device_memory();
	queues();
	pairs();
	addresses();
	batches();
	STATUS(ibv_destroy_cq(cq), 0);
	STATUS(ibv_dealloc_pd(pd), 0);
	STATUS(ibv_close_device(other), 0);
	STATUS(ibv_close_device(context), 0);
	return failures != 0;
}
