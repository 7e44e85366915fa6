/*
 * What the programs about flow rules share: raw packet queue pairs, rules with layers behind them,
 * frames on loopback. They need CAP_NET_RAW in a network of their own.
 */
#ifndef FLOWS_H
#define FLOWS_H

#include "rows.h"
#include <arpa/inet.h>

/* A rule and the layers that follow it in memory. */
struct rule {
	struct ibv_flow_attr attr;
	unsigned char layers[256];
} __attribute__((packed, aligned(8)));

static inline struct rule new_rule(enum ibv_flow_attr_type type, int priority)
{
	return (struct rule){ .attr = { .type = type,
					.size = sizeof(struct ibv_flow_attr),
					.priority = priority,
					.port = 1 } };
}

static inline void add_layer(struct rule *rule, const void *layer, size_t size)
{
	memcpy((char *)rule + rule->attr.size, layer, size);
	rule->attr.size += size;
	rule->attr.num_of_specs++;
}

/* Frames to `station` of this type. */
static inline void add_ethernet(struct rule *rule, const uint8_t *station, uint16_t type)
{
	struct ibv_flow_spec_eth eth = { .type = IBV_FLOW_SPEC_ETH,
					 .size = sizeof(eth),
					 .val.ether_type = htons(type),
					 .mask.ether_type = 0xffff };
	memcpy(eth.val.dst_mac, station, 6);
	memset(eth.mask.dst_mac, 0xff, 6);
	add_layer(rule, &eth, sizeof(eth));
}

/* What the rule meets is counted. */
static inline void add_count(struct rule *rule, struct ibv_counters *counters)
{
	struct ibv_flow_spec_counter_action action = { .type = IBV_FLOW_SPEC_ACTION_COUNT,
						       .size = sizeof(action),
						       .counters = counters };
	add_layer(rule, &action, sizeof(action));
}

/* A queue pair for frames that is ready, or NULL with errno. */
static inline struct ibv_qp *raw_qp(struct ibv_cq *cq)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .qp_type = IBV_QPT_RAW_PACKET,
					 .sq_sig_all = 1,
					 .cap = { 64, 64, 2, 2, 64 } };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);
	if (!qp)
		return NULL;
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PORT);
	for (attr.qp_state = IBV_QPS_RTR; !errno && attr.qp_state <= IBV_QPS_RTS; attr.qp_state++)
		errno = ibv_modify_qp(qp, &attr, IBV_QP_STATE);
	if (errno)
		fail("a raw packet queue pair at work");
	return qp;
}

#endif
