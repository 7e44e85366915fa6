/*
 * Frames between raw packet queue pairs of one process over loopback: which rule takes what, what
 * its counters say, and how an indirection table spreads. The sender has a context of its own: mlx5
 * keeps frames from their own context. No frame is shorter than Ethernet's least.
 */
#include "flows.h"

enum { ROOM = 2048, SLOTS = 64, LEAST = 60, OURS = 0x88b5, OTHERS = 0x88b6 };

static const uint8_t station[6] = { 2, 0, 0, 0, 0, 1 };
static char *memory;
static struct ibv_mr *mr, *senders_mr;

struct end {
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

static struct end sender, first, second;

static struct end new_end(void)
{
	struct end end = { .cq = new_cq(2 * SLOTS) };
	end.qp = raw_qp(end.cq);
	if (!end.qp)
		fail("a raw packet queue pair");
	return end;
}

static struct ibv_mr *new_mr(void)
{
	struct ibv_mr *made = ibv_reg_mr(pd, memory, 2 * ROOM, LOCAL);
	if (!made)
		fail("registered memory");
	return made;
}

/* In a context of its own, which then is the one of all that follows. */
static void open_end(struct end *end, struct ibv_mr **registered)
{
	open_first_device();
	*end = new_end();
	*registered = new_mr();
}

static void give_room(struct end *end, int frames)
{
	while (frames--)
		receive(end->qp, 0, memory + ROOM, ROOM, mr->lkey);
}

static void send_bytes(uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)memory, length, senders_mr->lkey };
	struct ibv_send_wr wr = { .opcode = IBV_WR_SEND, .sg_list = &sge, .num_sge = 1 };
	struct ibv_wc wc;
	post(sender.qp, &wr);
	if (!wait_for(sender.cq, &wc, 10) || wc.status)
		fail("a frame leaves");
}

/* A frame to the station. */
static void send_frame(uint16_t type, uint32_t length)
{
	uint16_t network = htons(type);
	memset(memory, 0, length);
	memcpy(memory, station, 6);
	memcpy(memory + 12, &network, 2);
	send_bytes(length);
}

/* A row: the next frame that the queue pair gets has this length. */
static void gets(struct end *end, uint32_t length, const char *what)
{
	struct ibv_wc wc = { 0 };
	int got = wait_for(end->cq, &wc, 10);
	equal("man ibv_create_flow", length, got && !wc.status ? wc.byte_len : 0, "%s", what);
}

static void counted(struct ibv_counters *counters, uint64_t packets, uint64_t bytes,
		    const char *what)
{
	uint64_t values[2] = { -1, -1 };
	row("man ibv_read_counters", 0, ibv_read_counters(counters, values, 2, 0),
	    "read the counters %s", what);
	equal("man ibv_read_counters", packets, values[1], "packets %s", what);
	equal("man ibv_read_counters", bytes, values[0], "bytes %s", what);
}

static struct ibv_counters *new_counters(void)
{
	struct ibv_counters_init_attr init = { 0 };
	struct ibv_counters *counters = ibv_create_counters(context, &init);
	if (!counters)
		fail("counters");
	return counters;
}

static struct ibv_counters *packets_and_bytes(void)
{
	struct ibv_counters *counters = new_counters();
	struct ibv_counter_attach_attr bytes = { .counter_desc = IBV_COUNTER_BYTES, .index = 0 };
	struct ibv_counter_attach_attr packets = { .counter_desc = IBV_COUNTER_PACKETS,
						   .index = 1 };
	errno = ibv_attach_counters_point_flow(counters, &bytes, NULL);
	if (errno || (errno = ibv_attach_counters_point_flow(counters, &packets, NULL)))
		fail("what is counted");
	return counters;
}

static int try_flow(struct rule rule)
{
	return POINTER(ibv_destroy_flow, ibv_create_flow(first.qp, &rule.attr));
}

/* What binds a rule to counters wrongly. */
static void refusals(struct ibv_counters *counters)
{
	const char *page = "mlx5 parse_flow_attr";
	struct ibv_counters *empty = new_counters();
	struct rule plain = new_rule(IBV_FLOW_ATTR_NORMAL, 0), rule = plain;
	add_count(&rule, empty);
	row(page, EINVAL, try_flow(rule), "a rule with counters that count nothing");
	rule = plain;
	add_count(&rule, counters);
	row(page, 0, try_flow(rule), "a rule with counters");
	add_count(&rule, counters);
	row(page, EINVAL, try_flow(rule), "a rule with counters twice");
	row("man ibv_destroy_counters", 0, ibv_destroy_counters(empty),
	    "destroy counters of no rule");
}

static struct ibv_flow *new_flow(struct end *end, struct rule rule, const char *what)
{
	struct ibv_flow *flow = ibv_create_flow(end->qp, &rule.attr);
	if (!flow)
		fail(what);
	return flow;
}

static void counting(void)
{
	struct ibv_counters *counters = packets_and_bytes(), *rest = packets_and_bytes();
	struct ibv_counter_attach_attr more = { .counter_desc = IBV_COUNTER_BYTES, .index = 2 };
	uint64_t values[2];
	refusals(counters);
	struct rule ours = new_rule(IBV_FLOW_ATTR_NORMAL, 1),
		    all = new_rule(IBV_FLOW_ATTR_NORMAL, 5);
	add_ethernet(&ours, station, OURS);
	add_count(&ours, counters);
	add_count(&all, rest);
	struct ibv_flow *takes = new_flow(&first, ours, "a rule that counts"),
			*leftovers = new_flow(&second, all, "a rule for the rest that counts");
	row("mlx5_attach_counters_point_flow", EBUSY,
	    ibv_attach_counters_point_flow(counters, &more, NULL),
	    "count more once a rule is there");
	row("man ibv_destroy_counters", EBUSY, ibv_destroy_counters(counters),
	    "destroy counters of a rule");
	counted(counters, 0, 0, "before any frame");
	give_room(&first, SLOTS);
	give_room(&second, SLOTS);
	for (uint32_t length = 100; length <= 300; length += 100) {
		send_frame(OURS, length);
		gets(&first, length, "the rule takes what it asks for");
	}
	send_frame(OTHERS, 80);
	gets(&second, 80, "the other rule takes the rest");
	counted(counters, 3, 600, "of the rule");
	counted(rest, 1, 80, "of the other rule");

	struct rule others = new_rule(IBV_FLOW_ATTR_NORMAL, 1);
	others.attr.flags = IBV_FLOW_ATTR_FLAGS_DONT_TRAP;
	add_ethernet(&others, station, OTHERS);
	add_count(&others, counters);
	struct ibv_flow *passes = new_flow(&first, others, "a rule that lets go on");
	send_frame(OTHERS, 65);
	gets(&first, 65, "a rule that lets go on gets a frame");
	gets(&second, 65, "and so does the next");
	counted(counters, 4, 665, "of two rules");
	counted(rest, 2, 145, "of the other rule after both");

	row("man ibv_destroy_flow", 0, ibv_destroy_flow(takes), "destroy the rule");
	send_frame(OURS, 70);
	gets(&second, 70, "what no rule asks for any more is left over");
	counted(counters, 4, 665, "without the rule");
	row("man ibv_destroy_flow", 0, ibv_destroy_flow(passes), "destroy the other rule");

	struct rule drops = new_rule(IBV_FLOW_ATTR_NORMAL, 0);
	struct ibv_flow_spec_action_drop drop = { .type = IBV_FLOW_SPEC_ACTION_DROP,
						  .size = sizeof(drop) };
	add_ethernet(&drops, station, OURS);
	add_layer(&drops, &drop, sizeof(drop));
	add_count(&drops, counters);
	struct ibv_flow *drain = new_flow(&first, drops, "a rule that drops");
	send_frame(OURS, 90);
	send_frame(OTHERS, LEAST);
	gets(&second, LEAST, "what is dropped comes nowhere");
	counted(counters, 5, 755, "of the rule that drops");
	row("man ibv_destroy_flow", 0, ibv_destroy_flow(drain), "destroy the rule that drops");
	row("UVERBS_METHOD_COUNTERS_READ", EINVAL, ibv_read_counters(counters, values, 2, 0),
	    "read the counters of no rule");
	row("man ibv_destroy_counters", 0, ibv_destroy_counters(counters), "destroy the counters");
	row("man ibv_destroy_flow", 0, ibv_destroy_flow(leftovers),
	    "destroy the rule for the rest");
	row("man ibv_destroy_counters", 0, ibv_destroy_counters(rest), "destroy its counters");
}

/*
 * What no other rule takes. The stock driver of mlx5 refuses it over this adapter, so only a
 * process asks for it.
 */
static void defaulting(void)
{
	struct ibv_counters *rest = packets_and_bytes();
	struct rule ours = new_rule(IBV_FLOW_ATTR_NORMAL, 1),
		    all = new_rule(IBV_FLOW_ATTR_ALL_DEFAULT, 0);
	add_ethernet(&ours, station, OURS);
	add_count(&all, rest);
	struct ibv_flow *takes = new_flow(&first, ours, "a rule"),
			*leftovers = new_flow(&second, all, "a default rule");
	send_frame(OURS, 100);
	gets(&first, 100, "a rule takes what it asks for");
	send_frame(OTHERS, 80);
	gets(&second, 80, "the default rule takes the rest");
	counted(rest, 1, 80, "of the default rule");
	row("man ibv_destroy_flow", 0, ibv_destroy_flow(takes), "destroy the rule");
	row("man ibv_destroy_flow", 0, ibv_destroy_flow(leftovers), "destroy the default rule");
	row("man ibv_destroy_counters", 0, ibv_destroy_counters(rest),
	    "destroy counters of no rule any more");
}

/* An empty UDP datagram between documentation addresses. */
static void send_datagram(uint16_t port)
{
	static const uint8_t headers[] = {
		2, 0,  0,  0, 0, 1,   2, 0, 0, 0,   0, 2, 8, 0, 0x45, 0, 0, 28, 0, 0, 0x40,
		0, 64, 17, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2, 0, 0,    0, 9, 0,	8, 0, 0,
	};
	uint16_t network = htons(port);
	memset(memory, 0, LEAST);
	memcpy(memory, headers, sizeof(headers));
	memcpy(memory + 34, &network, 2);
	send_bytes(LEAST);
}

struct spread {
	struct ibv_cq *cq[2];
	struct ibv_wq *wq[2];
	struct ibv_rwq_ind_table *table;
	struct ibv_qp *qp;
};

static struct spread new_spread(void)
{
	static uint8_t key[40];
	struct spread spread;
	for (int i = 0; i < 2; i++) {
		spread.cq[i] = new_cq(SLOTS);
		struct ibv_wq_init_attr init = { .wq_type = IBV_WQT_RQ,
						 .max_wr = SLOTS,
						 .max_sge = 1,
						 .pd = pd,
						 .cq = spread.cq[i] };
		struct ibv_wq_attr ready = { .attr_mask = IBV_WQ_ATTR_STATE,
					     .wq_state = IBV_WQS_RDY };
		struct ibv_sge sge = { (uintptr_t)memory + ROOM, ROOM, mr->lkey };
		struct ibv_recv_wr wr = { .sg_list = &sge, .num_sge = 1 }, *bad;
		spread.wq[i] = ibv_create_wq(context, &init);
		if (!spread.wq[i] || (errno = ibv_modify_wq(spread.wq[i], &ready)))
			fail("a work queue at work");
		for (int n = 0; n < SLOTS; n++)
			if ((errno = ibv_post_wq_recv(spread.wq[i], &wr, &bad)))
				fail("a receive of a work queue");
	}
	struct ibv_rwq_ind_table_init_attr table = { .log_ind_tbl_size = 1, .ind_tbl = spread.wq };
	spread.table = ibv_create_rwq_ind_table(context, &table);
	/*
	 * Bit 46 of the key is the lowest of the hash for the 16th bit of the input: even ports go
	 * left, odd ones right.
	 */
	key[5] = 0x02;
	struct ibv_qp_init_attr_ex init = {
		.qp_type = IBV_QPT_RAW_PACKET,
		.comp_mask =
			IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE,
		.pd = pd,
		.rwq_ind_tbl = spread.table,
		.rx_hash_conf = { IBV_RX_HASH_FUNC_TOEPLITZ, sizeof(key), key,
				  IBV_RX_HASH_SRC_PORT_UDP },
	};
	spread.qp = spread.table ? ibv_create_qp_ex(context, &init) : NULL;
	if (!spread.qp)
		fail("a queue pair over a table");
	return spread;
}

static void spreading(void)
{
	struct spread spread = new_spread();
	struct rule rule = new_rule(IBV_FLOW_ATTR_NORMAL, 1);
	struct ibv_counters *counters = packets_and_bytes();
	add_ethernet(&rule, station, 0x0800);
	add_count(&rule, counters);
	struct ibv_flow *flow = ibv_create_flow(spread.qp, &rule.attr);
	if (!flow)
		fail("a flow rule over a table");
	for (int port = 1000; port < 1016; port++) {
		struct ibv_wc wc = { 0 };
		send_datagram(port);
		int got = wait_for(spread.cq[port % 2], &wc, 10);
		holds("Microsoft, RSS hashing functions",
		      got && wc.status == IBV_WC_SUCCESS && wc.byte_len == LEAST,
		      "the hash chooses the work queue");
		/* mlx5 has the rule's tag there, which is none. */
		holds("man ibv_poll_cq", wc.qp_num == spread.wq[port % 2]->wq_num || !wc.qp_num,
		      "whose number it is");
		holds("Microsoft, RSS hashing functions",
		      ibv_poll_cq(spread.cq[1 - port % 2], 1, &wc) == 0, "and no other");
	}
	counted(counters, 16, 16 * LEAST, "of the rule over a table");
	struct ibv_wq_attr error = { .attr_mask = IBV_WQ_ATTR_STATE, .wq_state = IBV_WQS_ERR };
	row("man ibv_modify_wq", 0, ibv_modify_wq(spread.wq[0], &error), "a work queue to ERR");
	for (int n = 8; n < SLOTS; n++)
		completes("man ibv_modify_wq", spread.cq[0], 0, IBV_WC_WR_FLUSH_ERR,
			  "what waits in it is flushed");
	ibv_destroy_flow(flow);
	ibv_destroy_counters(counters);
	ibv_destroy_qp(spread.qp);
	ibv_destroy_rwq_ind_table(spread.table);
	for (int i = 0; i < 2; i++) {
		ibv_destroy_wq(spread.wq[i]);
		row("man ibv_destroy_cq", 0, ibv_destroy_cq(spread.cq[i]),
		    "destroy the CQ of a work queue");
	}
}

int main(int argc, char **argv)
{
	memory = aligned_alloc(4096, 2 * ROOM);
	open_end(&sender, &senders_mr);
	open_end(&first, &mr);
	second = new_end();
	counting();
	if (argc > 1 && !strcmp(argv[1], "defaults"))
		defaulting();
	spreading();
	return finish();
}
