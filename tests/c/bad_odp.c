/*
 * On-demand regions (IBV_ACCESS_ON_DEMAND) and ibv_advise_mr(3): what their arguments may be, and the error of each that they
 * may not.
 */
#include "rows.h"
#include <sys/mman.h>

#define KERNEL(section) "kernel-facts " section

enum { PAGE = 4096, PAGES = 8, ODP = IBV_ACCESS_ON_DEMAND };
enum { FLUSH = IBV_ADVISE_MR_FLAG_FLUSH };
#define READ IBV_ADVISE_MR_ADVICE_PREFETCH
#define WRITE IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE
#define NO_FAULT IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT

static char *memory;

static int reg(uint64_t address, uint64_t length, uint64_t iova, int access)
{
	return POINTER(ibv_dereg_mr, ibv_reg_mr_iova2(pd, (void *)address, length, iova, access));
}

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
	enum { RC = IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_READ |
		    IBV_ODP_SUPPORT_ATOMIC | IBV_ODP_SUPPORT_SRQ_RECV | 64 | 128 };
	struct ibv_device_attr_ex attr;
	if (ibv_query_device_ex(context, NULL, &attr))
		fail("attributes");
	equal(facts, IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT, attr.odp_caps.general_caps, "general capabilities");
	equal(facts, RC, attr.odp_caps.per_transport_caps.rc_odp_caps, "capabilities of RC");
	equal(facts, RC, attr.xrc_odp_caps, "capabilities of XRC");
	equal(facts, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_WRITE | IBV_ODP_SUPPORT_SRQ_RECV,
	      attr.odp_caps.per_transport_caps.uc_odp_caps, "capabilities of UC");
	equal(facts, IBV_ODP_SUPPORT_SEND | IBV_ODP_SUPPORT_RECV | IBV_ODP_SUPPORT_SRQ_RECV,
	      attr.odp_caps.per_transport_caps.ud_odp_caps, "capabilities of UD");
}

static void registration(void)
{
	const char *facts = KERNEL("7, registration"), *init = "ib_init_umem_odp";
	uint64_t at = (uintptr_t)memory;
	row(facts, 0, reg(at, PAGES * PAGE, at, EVERYTHING | ODP), "register on demand");
	row(facts, 0, reg(at + 5, 3, at + 5, LOCAL | ODP), "register three bytes on demand");
	row(facts, 0, reg(at + PAGES * PAGE, PAGE, at, LOCAL | ODP), "register an unmapped page on demand");
	row(facts, 0, reg(at, 1ull << 46, at, LOCAL | ODP), "register 2^46 bytes on demand");
	row(facts, 0, reg(at, PAGE, 0, ODP), "register on demand with another iova");
	row(facts, EINVAL, reg(at, PAGE, 1, ODP), "register on demand with an iova of another page offset");
	row(facts, EINVAL, reg(at, PAGE, at, ODP | IBV_ACCESS_REMOTE_WRITE), "register on demand with remote write alone");
	row(facts, EINVAL, reg(at, PAGE, at, ODP | 1 << 10), "register on demand with access bit 10");
	row(init, EINVAL, reg(at, 0, at, LOCAL | ODP), "register no byte on demand, aligned");
	row(init, 0, reg(at + 8, 0, at + 8, LOCAL | ODP), "register no byte on demand, unaligned");
	row(init, EOVERFLOW, reg(at, UINT64_MAX, at, LOCAL | ODP), "register 2^64-1 bytes on demand, not from 0");
	row(init, EOVERFLOW, reg(-PAGE, 2 * PAGE, 0, ODP), "register across the end of the address space on demand");
	row(facts, 0, reg(0, UINT64_MAX, 0, EVERYTHING | ODP), "register everything on demand");
	row(facts, EINVAL, reg(0, UINT64_MAX, PAGE, LOCAL | ODP), "register everything on demand at an iova");
	row(facts, EINVAL, reg(0, UINT64_MAX, 0, LOCAL | ODP | IBV_ACCESS_HUGETLB), "register everything as huge pages");
	row(facts, EINVAL, reg(0, UINT64_MAX, 0, LOCAL), "register everything resident");
}

static int advise_of(struct ibv_pd *domain, int advice, uint32_t flags, uint64_t at, uint32_t length, uint32_t key)
{
	struct ibv_sge range = { at, length, key };
	return ibv_advise_mr(domain, advice, flags, &range, 1);
}

static int advise(int advice, uint32_t flags, uint64_t at, uint32_t length, uint32_t key)
{
	return advise_of(pd, advice, flags, at, length, key);
}

static void advice(void)
{
	const char *facts = KERNEL("7, ibv_advise_mr"), *handler = "UVERBS_METHOD_ADVISE_MR";
	uint64_t at = (uintptr_t)memory;
	struct ibv_mr *mr = region(memory, PAGES * PAGE, LOCAL | ODP), *read_only = region(memory, PAGES * PAGE, ODP);
	struct ibv_mr *resident = region(memory, PAGE, LOCAL), *all = region(NULL, SIZE_MAX, LOCAL | ODP);
	struct ibv_pd *other = ibv_alloc_pd(context);
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!other || !window)
		fail("another domain, and a window");
	static const int all_advice[] = { READ, WRITE, NO_FAULT };
	for (int i = 0; i < 3; i++)
		for (uint32_t flags = 0; flags <= FLUSH; flags++) {
			int a = all_advice[i], ok = !flags;
			row(facts, 0, advise(a, flags, at + 7, 2 * PAGE, mr->lkey), "advice %d, flags %u", a, flags);
			row(facts, 0, advise(a, flags, at, PAGE, all->lkey), "advice %d, flags %u, of everything", a, flags);
			row(facts, 0, advise(a, flags, at, 0, mr->lkey), "advice %d, flags %u, of no byte", a, flags);
			row(facts, ENOENT, advise(a, flags, at, 8, resident->lkey), "advice %d, flags %u, of a resident region", a, flags);
			row(facts, ENOENT, advise(a, flags, at, 8, mr->lkey ^ 0xff00), "advice %d, flags %u, of no region", a, flags);
			row(facts, ENOENT, advise(a, flags, at, 8, mr->lkey ^ 1), "advice %d, flags %u, of a stale key", a, flags);
			row(facts, EINVAL, advise(a, flags, at, 8, window->rkey), "advice %d, flags %u, of a window", a, flags);
			row(facts, EPERM, advise_of(other, a, flags, at, 8, mr->lkey), "advice %d, flags %u, in another domain", a, flags);
			row(facts, a == WRITE ? EPERM : 0, advise(a, flags, at, 8, read_only->lkey),
			    "advice %d, flags %u, of a region for reading", a, flags);
			/* Without the flag only keys and rights are reported: later errors are dropped. */
			row(facts, ok ? 0 : EFAULT, advise(a, flags, at - 1, 8, mr->lkey), "advice %d, flags %u, one byte before", a, flags);
			row(facts, ok ? 0 : EFAULT, advise(a, flags, at + PAGES * PAGE - 7, 8, mr->lkey),
			    "advice %d, flags %u, one byte behind", a, flags);
			row(facts, ok ? 0 : EFAULT, advise(a, flags, at, UINT32_MAX, mr->lkey), "advice %d, flags %u, of 4 GiB", a, flags);
			row(facts, ok || a == NO_FAULT ? 0 : EFAULT, advise(a, flags, 0, PAGE, all->lkey),
			    "advice %d, flags %u, of the unmapped first page", a, flags);
		}
	struct ibv_sge two[] = { { at, 8, mr->lkey }, { at, 8, resident->lkey } };
	row(facts, ENOENT, ibv_advise_mr(pd, READ, 0, two, 2), "a bad key behind a good one");
	row(facts, ENOENT, ibv_advise_mr(pd, READ, FLUSH, two, 2), "a bad key behind a good one, at once");
	row(facts, 0, ibv_advise_mr(pd, READ, FLUSH, two, 1), "a bad key behind the end of the list");
	row(facts, EOPNOTSUPP, advise(3, 0, at, 8, mr->lkey), "advice 3");
	row(facts, EOPNOTSUPP, advise(99, 0, at, 8, 12345), "advice 99, and no key");
	row(facts, EINVAL, advise(READ, 2, at, 8, mr->lkey), "flag 2");
	row(facts, EINVAL, advise(READ, 1u << 31 | FLUSH, at, 8, mr->lkey), "flag 2^31");
	row(handler, EINVAL, advise(99, 2, at, 8, mr->lkey), "flag 2 beats advice 99");
	row(handler, EINVAL, ibv_advise_mr(pd, READ, 0, two, 0), "an empty list");
	row(handler, EINVAL, ibv_advise_mr(pd, READ, 0, NULL, 0), "no list");
	mprotect(memory, PAGE, PROT_READ);
	row(facts, EFAULT, advise(WRITE, FLUSH, at, 8, mr->lkey), "advice to write read-only memory");
	row(facts, 0, advise(READ, FLUSH, at, 8, mr->lkey), "advice to read read-only memory");
	mprotect(memory, PAGE, PROT_READ | PROT_WRITE);
	ibv_dealloc_mw(window);
	ibv_dereg_mr(all);
	ibv_dereg_mr(resident);
	ibv_dereg_mr(read_only);
	ibv_dereg_mr(mr);
	row(facts, ENOENT, advise(READ, 0, at, 8, mr->lkey), "advice of a region that is gone");
	ibv_dealloc_pd(other);
}

static void reregistration(void)
{
	enum { ACCESS = IBV_REREG_MR_CHANGE_ACCESS, AT = IBV_REREG_MR_CHANGE_TRANSLATION };
	const char *page = "man ibv_rereg_mr";
	uint64_t at = (uintptr_t)memory;
	struct ibv_mr *mr = region(memory, PAGE, ODP);
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL | ODP), "on demand: from reading to writing");
	row(page, 0, advise(WRITE, FLUSH, at, 8, mr->lkey), "advice to write it then");
	row(page, 0, ibv_rereg_mr(mr, AT, NULL, memory + PAGE, 2 * PAGE, 0), "on demand: to other memory");
	row(page, 0, advise(WRITE, FLUSH, at + 2 * PAGE, 8, mr->lkey), "advice there");
	row(page, EFAULT, advise(WRITE, FLUSH, at, 8, mr->lkey), "advice where it was");
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL), "from on demand to resident");
	row(page, ENOENT, advise(WRITE, FLUSH, at + PAGE, 8, mr->lkey), "advice then");
	row(page, 0, ibv_rereg_mr(mr, ACCESS, NULL, NULL, 0, LOCAL | ODP), "from resident to on demand");
	row(page, 0, advise(WRITE, FLUSH, at + PAGE, 8, mr->lkey), "advice then");
	ibv_dereg_mr(mr);
}

int main(void)
{
	open_first_device();
	char *area = mmap(NULL, (PAGES + 2) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	memory = mmap(area + PAGE, PAGES * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
	if (area == MAP_FAILED || memory == MAP_FAILED)
		fail("memory");
	capabilities();
	registration();
	advice();
	reregistration();
	ibv_dealloc_pd(pd);
	ibv_close_device(context);
	return finish();
}
