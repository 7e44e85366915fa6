/*
 * Raw packet queue pairs, flow rules, work queues and indirection tables: what is refused and how.
 * Without CAP_NET_RAW nothing of it but work queues is to be had.
 */
#include "flows.h"

#define MAN(page) "man " page

static struct ibv_cq *cq;

static int try_flow(struct ibv_qp *qp, const struct rule *rule)
{
	struct rule copy = *rule;
	return POINTER(ibv_destroy_flow, ibv_create_flow(qp, &copy.attr));
}

static void rules(struct ibv_qp *raw)
{
	const char *page = MAN("ibv_create_flow"), *kernel = "ib_uverbs_ex_create_flow";
	const uint8_t station[6] = { 2, 0, 0, 0, 0, 1 };
	struct ibv_qp *rc = new_qp(pd, cq, IBV_QPT_RC), *ud = new_qp(pd, cq, IBV_QPT_UD);
	struct rule plain = new_rule(IBV_FLOW_ATTR_NORMAL, 0), rule = plain;
	row(page, 0, try_flow(raw, &plain), "a rule that asks for nothing");
	row(kernel, EINVAL, try_flow(rc, &plain), "a rule of a connection");
	row(page, EOPNOTSUPP, try_flow(ud, &plain), "a rule of datagrams");
	rule.attr.comp_mask = 1;
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule with an unknown comp_mask");
	for (int port = 0; port <= 2; port += 2) {
		rule = plain;
		rule.attr.port = port;
		row(kernel, EINVAL, try_flow(raw, &rule), "a rule on port %d", port);
	}
	rule = new_rule(9, 0);
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule of type 9");
	rule = plain;
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_EGRESS;
	row(page, EOPNOTSUPP, try_flow(raw, &rule), "a rule of what leaves");
	rule.attr.flags = 1 << 3;
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule with an unknown flag");
	for (enum ibv_flow_attr_type type = IBV_FLOW_ATTR_ALL_DEFAULT;
	     type <= IBV_FLOW_ATTR_SNIFFER; type++) {
		rule = new_rule(type, 0);
		row(page, 0, try_flow(raw, &rule), "a rule of type %d", type);
		add_ethernet(&rule, station, 0x88b5);
		row(page, EINVAL, try_flow(raw, &rule), "a rule of type %d with a layer", type);
		rule = new_rule(type, 0);
		rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
		row(page, type == IBV_FLOW_ATTR_SNIFFER ? 0 : EINVAL, try_flow(raw, &rule),
		    "a rule of type %d that lets go on", type);
	}
	ibv_destroy_qp(rc);
	ibv_destroy_qp(ud);
}

static void layers(struct ibv_qp *raw)
{
	const char *page = MAN("ibv_create_flow"), *kernel = "ib_uverbs_ex_create_flow";
	const uint8_t station[6] = { 2, 0, 0, 0, 0, 1 };
	struct rule rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	for (int i = 0; i < 6; i++)
		add_ethernet(&rule, station, 0x88b5);
	row(page, 0, try_flow(raw, &rule), "6 layers");
	rule.attr.num_of_specs = 11;
	row(kernel, EINVAL, try_flow(raw, &rule), "11 layers");
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	struct ibv_flow_spec_ipv6 ipv6 = { .type = IBV_FLOW_SPEC_IPV6, .size = sizeof(ipv6) };
	add_layer(&rule, &ipv6, sizeof(ipv6));
	row(page, 0, try_flow(raw, &rule), "an IPv6 layer");
	add_ethernet(&rule, station, 0x0800);
	row("ib_uverbs_create_flow of mlx5", EINVAL, try_flow(raw, &rule),
	    "an IPv6 layer of type IPv4");
	ipv6.size--;
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	add_layer(&rule, &ipv6, sizeof(ipv6));
	row(kernel, EINVAL, try_flow(raw, &rule), "a layer that is too short");
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	struct ibv_flow_spec_action_drop drop = { .type = IBV_FLOW_SPEC_ACTION_DROP,
						  .size = sizeof(drop) };
	add_layer(&rule, &drop, sizeof(drop));
	row(page, 0, try_flow(raw, &rule), "a rule that drops");
	rule.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	row(page, EINVAL, try_flow(raw, &rule), "a rule that drops and lets go on");
	rule.attr.flags = 0;
	rule.attr.type = IBV_FLOW_ATTR_SNIFFER;
	row(page, EINVAL, try_flow(raw, &rule), "a sniffer that drops");
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	drop.size = 7;
	add_layer(&rule, &drop, 8);
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule that drops with a short action");
	struct ibv_flow_spec_counter_action shorter = { .type = IBV_FLOW_SPEC_ACTION_COUNT,
							.size = 8 };
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	add_layer(&rule, &shorter, sizeof(shorter));
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule that counts with a short action");
	rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	add_count(&rule, NULL);
	row(kernel, EINVAL, try_flow(raw, &rule), "a rule with no counters");
	struct {
		int type, want;
	} others[] = {
		{ IBV_FLOW_SPEC_ESP, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_VXLAN_TUNNEL, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_GRE, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_MPLS, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_ETH | IBV_FLOW_SPEC_INNER, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_ACTION_TAG, EOPNOTSUPP },
		{ IBV_FLOW_SPEC_ACTION_HANDLE, EOPNOTSUPP },
		{ 0x10, EINVAL },
		{ 0x2000, EINVAL },
		{ -1, EINVAL },
	};
	for (size_t i = 0; i < sizeof(others) / sizeof(*others); i++) {
		ipv6.type = others[i].type;
		ipv6.size = sizeof(ipv6);
		rule = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
		add_layer(&rule, &ipv6, sizeof(ipv6));
		row(kernel, others[i].want, try_flow(raw, &rule), "a layer of type 0x%x",
		    others[i].type);
	}
}

/* Rules, frames and the ends of raw packet queue pairs. */
static void raw_packets(struct ibv_qp *raw)
{
	struct rule rule = new_rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0);
	struct ibv_flow *flow = ibv_create_flow(raw, &rule.attr);
	if (!flow)
		fail("a default rule");
	row("ib_destroy_qp_user", EBUSY, ibv_destroy_qp(raw),
	    "destroy a queue pair that has a rule");
	row(MAN("ibv_create_flow"), 0, ibv_destroy_flow(flow), "destroy the rule");
	char frame[64] = { 0 };
	struct ibv_sge sge = { (uintptr_t)frame, 13, 0 };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_INLINE,
				  .sg_list = &sge,
				  .num_sge = 1 },
			   *bad;
	row(MAN("ibv_post_send"), EINVAL, ibv_post_send(raw, &wr, &bad),
	    "post a frame without a whole header");
	sge.length = 64;
	wr.opcode = IBV_WR_RDMA_WRITE;
	row(MAN("ibv_post_send"), EINVAL, ibv_post_send(raw, &wr, &bad), "post a WRITE of frames");
}

static int try_wq(int type, int max_wr, int max_sge, struct ibv_pd *domain, int mask, int flags)
{
	struct ibv_wq_init_attr init = { .wq_type = type,
					 .max_wr = max_wr,
					 .max_sge = max_sge,
					 .pd = domain,
					 .cq = cq,
					 .comp_mask = mask,
					 .create_flags = flags };
	return POINTER(ibv_destroy_wq, ibv_create_wq(context, &init));
}

static int modify(struct ibv_wq *wq, int mask, int next, int current)
{
	struct ibv_wq_attr attr = { .attr_mask = mask, .wq_state = next, .curr_wq_state = current };
	return ibv_modify_wq(wq, &attr);
}

static int post_to(struct ibv_wq *wq, uint64_t wr_id, int entries)
{
	struct ibv_sge sge[3] = { { 0 } };
	struct ibv_recv_wr wr = { .wr_id = wr_id, .sg_list = sge, .num_sge = entries }, *bad;
	return ibv_post_wq_recv(wq, &wr, &bad);
}

static struct ibv_wq *work_queues(void)
{
	const char *page = MAN("ibv_create_wq"), *states = MAN("ibv_modify_wq"),
		   *kernel = "ib_uverbs_ex_modify_wq";
	enum {
		STATE = IBV_WQ_ATTR_STATE,
		CURRENT = IBV_WQ_ATTR_CURR_STATE,
		FLAGS = IBV_WQ_ATTR_FLAGS
	};
	row(page, 0, try_wq(IBV_WQT_RQ, 2, 2, pd, 0, 0), "a work queue");
	row(page, EINVAL, try_wq(5, 2, 2, pd, 0, 0), "a work queue of type 5");
	row(page, EINVAL, try_wq(IBV_WQT_RQ, 0, 2, pd, 0, 0), "a work queue without requests");
	row(page, EINVAL, try_wq(IBV_WQT_RQ, limits.max_qp_wr + 1, 2, pd, 0, 0),
	    "a work queue of too many requests");
	row(page, EINVAL, try_wq(IBV_WQT_RQ, 2, limits.max_sge + 1, pd, 0, 0),
	    "a work queue of too many entries");
	row(page, EINVAL, try_wq(IBV_WQT_RQ, 2, 2, NULL, 0, 0), "a work queue without a domain");
	row(page, EOPNOTSUPP, try_wq(IBV_WQT_RQ, 2, 2, pd, 1 << 5, 0),
	    "a work queue with an unknown comp_mask");
	row(page, EOPNOTSUPP,
	    try_wq(IBV_WQT_RQ, 2, 2, pd, IBV_WQ_INIT_ATTR_FLAGS, IBV_WQ_FLAGS_CVLAN_STRIPPING),
	    "a work queue that strips tags");
	struct ibv_wq_init_attr init = {
		.wq_type = IBV_WQT_RQ, .max_wr = 2, .max_sge = 2, .pd = pd, .cq = cq
	};
	struct ibv_wq *wq = ibv_create_wq(context, &init);
	if (!wq)
		fail("a work queue");
	row("ib_destroy_cq_user", EBUSY, ibv_destroy_cq(cq), "destroy the CQ of a work queue");
	row(states, EINVAL, post_to(wq, 1, 1), "post in RESET");
	row(kernel, EINVAL, modify(wq, 0, IBV_WQS_RDY, 0), "change nothing");
	row(kernel, EINVAL, modify(wq, 1 << 5, IBV_WQS_RDY, 0), "change something unknown");
	row(kernel, EINVAL, modify(wq, STATE, 3, 0), "change to state 3");
	row(kernel, EINVAL, modify(wq, STATE | CURRENT, IBV_WQS_RDY, 7), "change from state 7");
	row(kernel, EINVAL, modify(wq, STATE, IBV_WQS_ERR, 0), "change from RESET to ERR");
	row(kernel, EINVAL, modify(wq, STATE | CURRENT, IBV_WQS_RDY, IBV_WQS_ERR),
	    "change from a state that it is not in");
	row(kernel, EOPNOTSUPP, modify(wq, STATE | FLAGS, IBV_WQS_RDY, 0), "change flags");
	row(states, 0, modify(wq, STATE | CURRENT, IBV_WQS_RDY, IBV_WQS_RESET),
	    "change from RESET to RDY");
	row(states, EINVAL, post_to(wq, 1, 3), "post more entries than the queue has");
	row(states, 0, post_to(wq, 1, 1), "post one of two");
	row(states, 0, post_to(wq, 2, 1), "post two of two");
	row(states, ENOMEM, post_to(wq, 3, 1), "post three of two");
	row(states, 0, modify(wq, STATE, IBV_WQS_ERR, 0), "change from RDY to ERR");
	completes(states, cq, 1, IBV_WC_WR_FLUSH_ERR, "the first request is flushed");
	completes(states, cq, 2, IBV_WC_WR_FLUSH_ERR, "the second request is flushed");
	row(states, 0, post_to(wq, 4, 1), "post in ERR");
	completes(states, cq, 4, IBV_WC_WR_FLUSH_ERR, "what is posted in ERR is flushed");
	row(kernel, EINVAL, modify(wq, STATE, IBV_WQS_RDY, 0), "change from ERR to RDY");
	row(states, 0, modify(wq, STATE, IBV_WQS_RESET, 0), "change from ERR to RESET");
	return wq;
}

static int try_table(uint32_t log, struct ibv_wq **wqs, uint32_t mask)
{
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = log,
						    .ind_tbl = wqs,
						    .comp_mask = mask };
	return POINTER(ibv_destroy_rwq_ind_table, ibv_create_rwq_ind_table(context, &init));
}

static struct ibv_rwq_ind_table *tables(struct ibv_wq *wq)
{
	const char *page = MAN("ibv_create_rwq_ind_table");
	struct ibv_wq *wqs[] = { wq, wq, NULL };
	row(page, 0, try_table(1, wqs, 0), "a table of two");
	row(page, EINVAL, try_table(14, wqs, 0), "a table of 2^14");
	row(page, EINVAL, try_table(-1, wqs, 0), "a table of 2^(2^32-1)");
	row(page, EINVAL, try_table(1, wqs + 1, 0), "a table of a queue and none");
	row(page, EINVAL, try_table(1, NULL, 0), "a table of nothing");
	row(page, EOPNOTSUPP, try_table(1, wqs, 1), "a table with an unknown comp_mask");
	struct ibv_rwq_ind_table_init_attr init = { .log_ind_tbl_size = 1, .ind_tbl = wqs };
	struct ibv_rwq_ind_table *table = ibv_create_rwq_ind_table(context, &init);
	if (!table)
		fail("a table");
	row("ib_destroy_wq_user", EBUSY, ibv_destroy_wq(wq),
	    "destroy a work queue that is in a table");
	return table;
}

static uint8_t key[40];

static struct ibv_qp_init_attr_ex spread(struct ibv_rwq_ind_table *table)
{
	return (struct ibv_qp_init_attr_ex){
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask =
			IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE,
		.pd = pd,
		.rwq_ind_tbl = table,
		.rx_hash_conf = { .rx_hash_function = IBV_RX_HASH_FUNC_TOEPLITZ,
				  .rx_hash_key_len = sizeof(key),
				  .rx_hash_key = key,
				  .rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 },
	};
}

static int try_spread(struct ibv_qp_init_attr_ex init)
{
	return POINTER(ibv_destroy_qp, ibv_create_qp_ex(context, &init));
}

static void spreading(struct ibv_rwq_ind_table *table)
{
	const char *page = "mlx5_ib_create_qp";
	struct ibv_qp_init_attr_ex init = spread(table), right = init;
	row(page, 0, try_spread(init), "a queue pair over a table");
	init.comp_mask &= ~IBV_QP_INIT_ATTR_RX_HASH;
	row(page, EINVAL, try_spread(init), "over a table without a hash");
	init = right;
	init.rwq_ind_tbl = NULL;
	row(page, EINVAL, try_spread(init), "over no table");
	init = right;
	init.qp_type = IBV_QPT_RC;
	row(page, EOPNOTSUPP, try_spread(init), "a connection over a table");
	init = right;
	init.send_cq = cq;
	row(page, EINVAL, try_spread(init), "over a table with a queue of its own");
	init = right;
	init.cap.max_recv_wr = 1;
	row(page, EINVAL, try_spread(init), "over a table with receives of its own");
	init = right;
	init.rx_hash_conf.rx_hash_key_len--;
	row(page, EINVAL, try_spread(init), "with a key of 39 bytes");
	init.rx_hash_conf.rx_hash_key = NULL;
	row(page, EINVAL, try_spread(init), "with no key");
	init = right;
	init.rx_hash_conf.rx_hash_function = 2;
	row(page, EOPNOTSUPP, try_spread(init), "with another function");
	init = right;
	init.rx_hash_conf.rx_hash_fields_mask = 1 << 8;
	row(page, EOPNOTSUPP, try_spread(init), "with an unknown field");
	init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_IPV4 | IBV_RX_HASH_DST_IPV6;
	row(page, EINVAL, try_spread(init), "with fields of both IPs");
	init.rx_hash_conf.rx_hash_fields_mask = IBV_RX_HASH_SRC_PORT_TCP | IBV_RX_HASH_DST_PORT_UDP;
	row(page, EINVAL, try_spread(init), "with ports of both protocols");
	init.rx_hash_conf.rx_hash_fields_mask = 0;
	row(page, EINVAL, try_spread(init), "with no field over two queues");
	struct ibv_qp *qp = ibv_create_qp_ex(context, &right);
	if (!qp)
		fail("a queue pair over a table");
	row("ib_destroy_rwq_ind_table", EBUSY, ibv_destroy_rwq_ind_table(table),
	    "destroy a table in use");
	struct ibv_sge sge = { 0 };
	struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
	row(page, EINVAL, ibv_post_recv(qp, &wr, &bad), "post a receive past the table");
	row(MAN("ibv_destroy_qp"), 0, ibv_destroy_qp(qp), "destroy the queue pair");
}

int main(void)
{
	open_first_device();
	cq = new_cq(16);
	struct ibv_qp *raw = raw_qp(cq);
	int refused = raw ? 0 : errno;
	struct ibv_wq *wq = work_queues();
	struct ibv_rwq_ind_table *table = tables(wq);
	if (raw) {
		rules(raw);
		layers(raw);
		raw_packets(raw);
		spreading(table);
		row(MAN("ibv_destroy_qp"), 0, ibv_destroy_qp(raw),
		    "destroy the queue pair of frames");
	} else {
		row("create_qp of ib_uverbs", EPERM, refused,
		    "a raw packet queue pair without CAP_NET_RAW");
		row("create_qp of ib_uverbs", EPERM, try_spread(spread(table)),
		    "a queue pair over a table without CAP_NET_RAW");
	}
	row(MAN("ibv_destroy_rwq_ind_table"), 0, ibv_destroy_rwq_ind_table(table),
	    "destroy the table");
	row(MAN("ibv_destroy_wq"), 0, ibv_destroy_wq(wq), "destroy the work queue");
	row(MAN("ibv_destroy_cq"), 0, ibv_destroy_cq(cq), "destroy the CQ");
	return finish();
}
