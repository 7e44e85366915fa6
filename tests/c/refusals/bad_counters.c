/*
 * Counters of flow rules (ibv_create_counters(3), ibv_attach_counters_point_flow(3),
 * ibv_read_counters(3)): what is refused and how.
 */
#include "rows.h"

static int attach(struct ibv_counters *counters, int what, uint32_t index, uint32_t mask,
		  struct ibv_flow *flow)
{
	struct ibv_counter_attach_attr attr = { .counter_desc = what,
						.index = index,
						.comp_mask = mask };
	return ibv_attach_counters_point_flow(counters, &attr, flow);
}

static int try_create(uint32_t mask)
{
	struct ibv_counters_init_attr init = { .comp_mask = mask };
	return POINTER(ibv_destroy_counters, ibv_create_counters(context, &init));
}

int main(void)
{
	const char *page = "man ibv_attach_counters_point_flow";
	struct ibv_counters_init_attr init = { 0 };
	struct ibv_flow flow = { 0 };
	uint64_t values[4];
	open_first_device();
	row("man ibv_create_counters", 0, try_create(0), "a counters object");
	row("ibv_cmd_create_counters", EOPNOTSUPP, try_create(1), "unknown comp_mask");
	row("man ibv_create_counters", EINVAL,
	    POINTER(ibv_destroy_counters, ibv_create_counters(context, NULL)), "no attributes");
	struct ibv_counters *counters = ibv_create_counters(context, &init);
	if (!counters)
		fail("a counters object");
	row(page, 0, attach(counters, IBV_COUNTER_PACKETS, 0, 0, NULL), "count packets");
	row(page, 0, attach(counters, IBV_COUNTER_BYTES, 1, 0, NULL), "count bytes");
	row(page, 0, attach(counters, IBV_COUNTER_BYTES, 1, 0, NULL),
	    "count bytes twice at one index");
	row(page, 0, attach(counters, IBV_COUNTER_PACKETS, UINT32_MAX, 0, NULL),
	    "count at the last index");
	row(page, ENOTSUP, attach(counters, 2, 0, 0, NULL), "count something unknown");
	row("mlx5_attach_counters_point_flow", EOPNOTSUPP,
	    attach(counters, IBV_COUNTER_PACKETS, 0, 1, NULL), "unknown comp_mask");
	row("mlx5_attach_counters_point_flow", ENOTSUP,
	    attach(counters, IBV_COUNTER_PACKETS, 0, 0, &flow), "attach to a rule that is there");
	row("man ibv_attach_counters_point_flow", EINVAL,
	    ibv_attach_counters_point_flow(counters, NULL, NULL), "no attributes");
	row("UVERBS_METHOD_COUNTERS_READ", EINVAL, ibv_read_counters(counters, values, 4, 0),
	    "read what no rule is bound to");
	row("UVERBS_METHOD_COUNTERS_READ", EINVAL, ibv_read_counters(counters, values, 4, 2),
	    "read with an unknown flag");
	row("UVERBS_METHOD_COUNTERS_READ", EINVAL, ibv_read_counters(counters, NULL, 4, 0),
	    "read to nowhere");
	row("man ibv_destroy_counters", 0, ibv_destroy_counters(counters), "destroy the object");
	return finish();
}
