/*
 * On-demand regions (IBV_ACCESS_ON_DEMAND): what the device says it can, and what changing one
 * does. Their errors are in bad_memory.c.
 */
#include "rows.h"
#include <sys/mman.h>

#define KERNEL(section) "kernel-facts " section

enum { PAGE = 4096, PAGES = 8, ODP = IBV_ACCESS_ON_DEMAND };
enum { FLUSH = IBV_ADVISE_MR_FLAG_FLUSH };
#define WRITE IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE

static char *memory;

static struct ibv_mr *region(void *address, size_t length, int access)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, address, length, access);
	if (!mr)
		fail("a region");
	return mr;
}

static void capabilities(void)
{
	const char *facts = KERNEL("7, caps");
	enum {
		RC = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
		IBV_ODP_SUPPORT_READ | IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | 64 | 128
	};
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(context, NULL, &attr))
		fail("attributes");
	equal(facts, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT, attr.odp_caps.general_caps,
	      "general capabilities");
	equal(facts, RC, attr.odp_caps.per_transport_caps.rc_odp_caps, "capabilities of RC");
	equal(facts, RC, attr.xrc_odp_caps, "capabilities of XRC");
	equal(facts,
	      IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE |
		      IBV_ODP_SUPPORT_SRQ_RECV,
	      attr.odp_caps.per_transport_caps.uc_odp_caps, "capabilities of UC");
	equal(facts, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
	      attr.odp_caps.per_transport_caps.ud_odp_caps, "capabilities of UD");
}

static int advise(int advice, uint32_t flags, uint64_t at, uint32_t length, uint32_t key)
{
	struct ibv_sge range = { at, length, key };
	return ibv_advise_mr(pd, advice, flags, &range, 1);
}

static void reregistration(void)
{
	enum { ACCESS = IBV_REREG_MR_CHANGE_ACCESS, AT = IBV_REREG_MR_CHANGE_TRANSLATION };
	const char *page = "man ibv_rereg_mr";
	uint64_t at = (uintptr_t)memory;
	struct ibv_mr *mr = region(memory, PAGE, ODP);
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL | ODP),
	    "on demand: from reading to writing");
	row(page, 0, advise(WRITE, FLUSH, at, 8, mr->lkey), "advice to write it then");
	row(page, 0, ibv_rereg_mr(mr, AT, NULL, memory + PAGE, 2 * PAGE, 0),
	    "on demand: to other memory");
	row(page, 0, advise(WRITE, FLUSH, at + 2 * PAGE, 8, mr->lkey), "advice there");
	row(page, EFAULT, advise(WRITE, FLUSH, at, 8, mr->lkey), "advice where it was");
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL), "from on demand to resident");
	row(page, ENOENT, advise(WRITE, FLUSH, at + PAGE, 8, mr->lkey), "advice then");
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL | ODP),
	    "from resident to on demand");
	row(page, 0, advise(WRITE, FLUSH, at + PAGE, 8, mr->lkey), "advice then");
	ibv_dereg_mr(mr);
}

int main(void)
{
	open_first_device();
	char *area = mmap(NULL, (PAGES + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = mmap(area + PAGE, PAGES * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (area == MAP_FAILED || memory == MAP_FAILED)
		fail("memory");
	capabilities();
	reregistration();
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return finish();
}
