/*
 * What the arguments of registrations may be, and the error of each that they may not: every
 * argument error of the kernel facts, sections 1 (memory), 3 (dma-bufs) and 7 (on demand, advice),
 * in one list of tables. Each row names its source, the kernel's or libibverbs' function that
 * refuses. The limit on locked memory, which is no argument, is memlock.c's.
 *
 *   bad_memory /dev/dri/renderD128
 *   bad_memory /dev/dri/renderD128 dmabufs    only what a kernel's own GPU driver and mlx5_ib can
 * be asked too
 */
#include "gpu.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK_ACCESS "facts 1: ib_check_mr_access"
#define ADDRESS_RULE "facts 1: ib_uverbs_reg_mr"
#define PIN "facts 1: ib_umem_get"
#define METHOD "facts 1: UVERBS_METHOD_REG_MR, ibv_cmd_reg_mr_ex"
#define LIBRARY "facts 7: ibv_cmd_reg_mr"
#define REREG "facts 1: ib_uverbs_rereg_mr"
#define REREG_LIBRARY "facts 1: ibv_rereg_mr"
#define CHECK_REREG "facts 1: ib_umem_check_rereg"
#define DMABUF "facts 3: UVERBS_METHOD_REG_DMABUF_MR"
#define DMABUF_GET "facts 3: ib_umem_dmabuf_get, dma_buf_get"
#define ODP_GET "facts 7: ib_umem_odp_get"
#define ADVISE "facts 7: UVERBS_METHOD_ADVISE_MR"
#define ADVISE_KEY "facts 7: mlx5_ib_advise_mr, get_prefetchable_mr"

enum { PAGE = 4096, BUFFER_SIZE = 4 * PAGE };
enum {
	ODP = IBV_ACCESS_ON_DEMAND,
	REMOTE_WRITE = IBV_ACCESS_REMOTE_WRITE,
	HUGE = IBV_ACCESS_HUGETLB
};
enum { FLUSH_GLOBAL = 1 << 8, FLUSH_PERSISTENT = 1 << 9, RELAXED = IBV_ACCESS_RELAXED_ORDERING };

/* The memory of the tables, at an address of its own, page by page. */
#define MEMORY 0x100000000000ull
#define AT(page) (MEMORY + (page) * PAGE)
enum { HOLE = 2, READ_ONLY = 4, NO_ACCESS = 6, BEHIND_FILE = 8, PAGES = 16 };
/* Stands for a page of the kernel's (VM_PFNMAP). */
#define KERNELS_PAGE 1

static const struct {
	const char *source;
	int want;
	uint64_t start, length;
	/* Added to the start. */
	int64_t iova;
	unsigned access;
	const char *what;
} of_memory[] = {
	{ PIN, 0, AT(0), 2 * PAGE, 0, EVERYTHING, "ordinary memory" },
	{ PIN, 0, AT(0) + 5, 3, 0, LOCAL, "three bytes" },
	{ PIN, 0, AT(READ_ONLY), PAGE, 0, IBV_ACCESS_REMOTE_READ, "a read-only page, for reading" },
	{ PIN, EFAULT, AT(READ_ONLY), PAGE, 0, LOCAL, "a read-only page, for writing" },
	{ PIN, EFAULT, AT(READ_ONLY), PAGE, 0, IBV_ACCESS_MW_BIND,
	  "a read-only page, for windows" },
	{ PIN, EFAULT, 0, PAGE, 0, LOCAL, "NULL" },
	{ PIN, EFAULT, AT(HOLE), PAGE, 0, 0, "an unmapped page" },
	{ PIN, EFAULT, AT(0), 4 * PAGE, 0, 0, "across a hole" },
	{ PIN, EFAULT, AT(1), PAGE + 1, 0, 0, "one byte into a hole" },
	{ PIN, EFAULT, AT(NO_ACCESS), PAGE, 0, 0, "a PROT_NONE page" },
	{ PIN, EFAULT, AT(BEHIND_FILE), PAGE, 0, LOCAL, "behind the end of a file" },
	{ PIN, EFAULT, KERNELS_PAGE, PAGE, 0, 0, "a page of the kernel's (VM_PFNMAP)" },
	{ PIN, EFAULT, 0xffff800000000000, PAGE, 0, 0, "an address of the kernel's" },
	{ PIN, EFAULT, AT(0), 1ull << 40, 0, LOCAL, "2^40 bytes" },
	{ PIN, EINVAL, AT(0), 1ull << 46, 0, LOCAL, "2^34 pages" },
	{ PIN, EINVAL, AT(0), 0, 0, LOCAL, "no byte, aligned" },
	{ PIN, EINVAL, AT(0) + 8, 0, 0, LOCAL, "no byte, unaligned" },
	{ PIN, EINVAL, AT(0), UINT64_MAX, 0, LOCAL, "2^64-1 bytes" },
	{ PIN, EINVAL, 0, UINT64_MAX, 0, LOCAL, "everything, resident" },
	{ PIN, EINVAL, -PAGE, 2 * PAGE, 0, 0, "across the end of the address space" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, 1 << 10, "access bit 10" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, 1 << 19, "access bit 19" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, 1u << 30, "access bit 30" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, 1u << 31, "access bit 31" },
	{ CHECK_ACCESS, 0, AT(0), PAGE, 0, LOCAL | 1 << 20 | 1 << 25 | 1 << 29,
	  "optional access bits that nobody knows" },
	{ CHECK_ACCESS, 0, AT(0), PAGE, 0, LOCAL | RELAXED, "relaxed ordering" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, REMOTE_WRITE, "remote write and no local write" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, IBV_ACCESS_REMOTE_ATOMIC,
	  "remote atomic and no local write" },
	{ CHECK_ACCESS, 0, AT(0), PAGE, 0, LOCAL | FLUSH_GLOBAL, "flush to global visibility" },
	{ CHECK_ACCESS, EOPNOTSUPP, AT(0), PAGE, 0, LOCAL | FLUSH_PERSISTENT,
	  "flush to persistence, which is not offered" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, REMOTE_WRITE | FLUSH_PERSISTENT,
	  "remote write alone beats what is not offered" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, 1 << 10 | FLUSH_PERSISTENT,
	  "unknown access beats what is not offered" },
	{ CHECK_ACCESS, EINVAL, AT(HOLE), PAGE, 0, 1 << 10,
	  "unknown access beats an unmapped page" },
	{ CHECK_ACCESS, EOPNOTSUPP, AT(HOLE), PAGE, 0, FLUSH_PERSISTENT,
	  "what is not offered beats an unmapped page" },
	{ CHECK_ACCESS, EOPNOTSUPP, AT(0), 0, 0, FLUSH_PERSISTENT,
	  "what is not offered beats no byte" },
	{ ADDRESS_RULE, 0, AT(0), PAGE, -MEMORY, LOCAL, "iova 0" },
	{ ADDRESS_RULE, 0, AT(0) + 7, 40, 0x7000000, LOCAL, "an iova of the same page offset" },
	{ ADDRESS_RULE, EINVAL, AT(0), PAGE, 1, LOCAL, "an iova of another page offset" },
	{ ADDRESS_RULE, EINVAL, AT(0) + 7, 40, -7, LOCAL, "unaligned memory at an aligned iova" },
	{ ADDRESS_RULE, EINVAL, AT(0), PAGE, 8, LOCAL | FLUSH_PERSISTENT,
	  "another page offset beats what is not offered" },
	{ ADDRESS_RULE, EINVAL, AT(HOLE), PAGE, 8, 0,
	  "another page offset beats an unmapped page" },
	{ ODP_GET, 0, AT(0), 8 * PAGE, 0, EVERYTHING | ODP, "on demand" },
	{ ODP_GET, 0, AT(0) + 5, 3, 0, LOCAL | ODP, "three bytes on demand" },
	{ ODP_GET, 0, AT(HOLE), PAGE, 0, LOCAL | ODP, "an unmapped page on demand" },
	{ ODP_GET, 0, AT(0), 1ull << 46, 0, LOCAL | ODP, "2^46 bytes on demand" },
	{ ODP_GET, EINVAL, AT(0), 0, 0, LOCAL | ODP, "no byte on demand, aligned" },
	{ ODP_GET, 0, AT(0) + 8, 0, 0, LOCAL | ODP, "no byte on demand, unaligned" },
	{ ODP_GET, EOVERFLOW, -PAGE, 2 * PAGE, PAGE, ODP,
	  "across the end of the address space on demand" },
	{ ODP_GET, EOVERFLOW, AT(0), UINT64_MAX - 1, 0, LOCAL | ODP, "2^64-2 bytes on demand" },
	{ LIBRARY, EINVAL, AT(0), UINT64_MAX, 0, LOCAL | ODP,
	  "2^64-1 bytes on demand, not from 0" },
	{ LIBRARY, EINVAL, AT(0), UINT64_MAX, 0, LOCAL | ODP | FLUSH_PERSISTENT,
	  "2^64-1 bytes on demand beat what is not offered" },
	{ ODP_GET, 0, 0, UINT64_MAX, 0, EVERYTHING | ODP, "everything on demand" },
	{ ODP_GET, EINVAL, 0, UINT64_MAX, PAGE, LOCAL | ODP, "everything on demand, at an iova" },
	{ ODP_GET, EINVAL, 0, UINT64_MAX, 0, LOCAL | ODP | HUGE,
	  "everything on demand, as huge pages" },
	{ ADDRESS_RULE, 0, AT(0), PAGE, -MEMORY, ODP, "on demand, another iova" },
	{ ADDRESS_RULE, EINVAL, AT(0), PAGE, 1, ODP, "on demand, an iova of another page offset" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, ODP | REMOTE_WRITE,
	  "on demand, remote write and no local write" },
	{ CHECK_ACCESS, EINVAL, AT(0), PAGE, 0, ODP | 1 << 10, "on demand, access bit 10" },
	{ CHECK_ACCESS, EOPNOTSUPP, AT(0), PAGE, 0, ODP | FLUSH_PERSISTENT,
	  "on demand, what is not offered" },
};

/* Descriptors that are, or are no, dma-buf. */
enum descriptor { GPU, NONE, CLOSED, FILE_ON_DISK, MEMFD, PIPE, EVENTS, NODE, DESCRIPTORS };
static int descriptors[DESCRIPTORS];

static const struct {
	const char *source;
	int want;
	enum descriptor fd;
	uint64_t offset, length, iova;
	unsigned access;
	const char *what;
} of_dmabufs[] = {
	{ DMABUF, 0, GPU, 0, BUFFER_SIZE, 0, EVERYTHING | RELAXED, "the whole" },
	{ DMABUF, 0, GPU, PAGE + 5, 3, 0x70000000005, LOCAL, "three bytes" },
	{ DMABUF, 0, GPU, BUFFER_SIZE - 1, 1, BUFFER_SIZE - 1, 0, "the last byte" },
	{ DMABUF, EINVAL, NONE, 0, PAGE, 1, LOCAL, "page offsets differ, before the descriptor" },
	{ DMABUF, EINVAL, GPU, 5, PAGE, PAGE, LOCAL, "page offsets differ" },
	{ DMABUF, EINVAL, NONE, 0, PAGE, 0, LOCAL | ODP, "on demand, before the descriptor" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | ODP, "on demand" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | IBV_ACCESS_MW_BIND, "window binding" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | IBV_ACCESS_ZERO_BASED, "zero based" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | HUGE, "huge pages" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | FLUSH_GLOBAL,
	  "flush to global visibility, which memory has" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | FLUSH_PERSISTENT,
	  "flush to persistence: not taken beats not offered" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, 1 << 11, "access bit 11" },
	{ DMABUF, EINVAL, GPU, 0, PAGE, 0, LOCAL | 1 << 21,
	  "an optional access bit that is not relaxed ordering" },
	{ DMABUF, EINVAL, NONE, 0, PAGE, 0, 1 << 11, "access bit 11, before the descriptor" },
	{ CHECK_ACCESS, EINVAL, GPU, 0, PAGE, 0, REMOTE_WRITE, "remote write and no local write" },
	{ CHECK_ACCESS, EINVAL, NONE, 0, PAGE, 0, IBV_ACCESS_REMOTE_ATOMIC,
	  "remote atomic alone, before the descriptor" },
	{ DMABUF_GET, EINVAL, NONE, -PAGE, 2 * PAGE, 0, LOCAL,
	  "offset and length overflow, before the descriptor" },
	{ DMABUF_GET, EINVAL, GPU, PAGE, UINT64_MAX - PAGE + 1, PAGE, LOCAL,
	  "offset and length overflow by one" },
	{ DMABUF_GET, EBADF, NONE, 0, PAGE, 0, LOCAL, "descriptor -1, the probe for support" },
	{ DMABUF_GET, EBADF, NONE, 0, 0, 0, LOCAL, "descriptor -1 beats no byte" },
	{ DMABUF_GET, EBADF, CLOSED, 0, PAGE, 0, LOCAL, "a descriptor that is not open" },
	{ DMABUF_GET, EBADF, CLOSED, 0, UINT64_MAX, 0, LOCAL,
	  "a descriptor that is not open beats its size" },
	{ DMABUF_GET, EINVAL, FILE_ON_DISK, 0, PAGE, 0, 0, "an ordinary file" },
	{ DMABUF_GET, EINVAL, MEMFD, 0, PAGE, 0, LOCAL, "an ordinary memfd" },
	{ DMABUF_GET, EINVAL, MEMFD, 0, 0, 0, LOCAL, "an ordinary memfd, no byte" },
	{ DMABUF_GET, EINVAL, PIPE, 0, PAGE, 0, LOCAL, "a pipe" },
	{ DMABUF_GET, EINVAL, EVENTS, 0, PAGE, 0, LOCAL, "the device's event descriptor" },
	{ DMABUF_GET, EINVAL, NODE, 0, PAGE, 0, LOCAL, "the GPU's node" },
	{ DMABUF_GET, EINVAL, GPU, 0, BUFFER_SIZE + 1, 0, LOCAL, "one byte behind its end" },
	{ DMABUF_GET, EINVAL, GPU, BUFFER_SIZE, 1, 0, LOCAL, "from its end" },
	{ DMABUF_GET, EINVAL, GPU, 0, UINT64_MAX, 0, LOCAL, "2^64-1 bytes" },
	{ DMABUF_GET, EINVAL, GPU, 0, 0, 0, LOCAL, "no byte" },
	{ DMABUF_GET, EINVAL, GPU, BUFFER_SIZE, 0, 0, LOCAL, "no byte at its end" },
	{ DMABUF_GET, EINVAL, GPU, 2 * BUFFER_SIZE, 0, 0, LOCAL, "no byte behind its end" },
};

/* enum ibv_mr_init_attr_mask and struct ibv_mr_init_attr of rdma-core 61 and newer. */
enum { M_IOVA = 1, M_ADDR = 2, M_FD = 4, M_OFFSET = 8, M_DMAH = 16, M_BUF = 32 };
struct mr_attr {
	size_t length;
	int access;
	uint64_t comp_mask, iova;
	void *addr;
	int fd;
	uint64_t fd_offset;
	void *dmah, *buf;
};
static struct ibv_mr *(*reg_mr_ex)(struct ibv_pd *pd, struct mr_attr *attr);

static const struct {
	const char *source;
	int want;
	uint64_t mask;
	const char *what;
} of_masks[] = {
	{ METHOD, 0, M_ADDR, "an address" },
	{ METHOD, 0, M_ADDR | M_IOVA, "an address and an iova" },
	{ METHOD, 0, M_FD | M_OFFSET | M_IOVA, "a descriptor, its offset and an iova" },
	{ METHOD, EINVAL, 0, "nothing" },
	{ METHOD, EINVAL, M_IOVA, "an iova alone" },
	{ METHOD, EINVAL, M_OFFSET | M_IOVA, "an offset and no descriptor" },
	{ METHOD, EINVAL, M_ADDR | M_OFFSET, "an address and an offset" },
	{ METHOD, EINVAL, M_FD | M_IOVA, "a descriptor and no offset" },
	{ METHOD, EINVAL, M_FD | M_OFFSET, "a descriptor and no iova" },
	{ METHOD, EINVAL, M_FD | M_OFFSET | M_ADDR | M_IOVA, "a descriptor and an address" },
	{ METHOD, EOPNOTSUPP, M_ADDR | M_DMAH, "a DMA handle, which the device has not" },
	{ METHOD, EOPNOTSUPP, M_FD | M_OFFSET | M_IOVA | M_DMAH, "a DMA handle and a descriptor" },
	{ METHOD, EOPNOTSUPP, M_ADDR | 1 << 6, "a mask bit that nobody knows" },
};

/* Regions of every kind, made anew for each row. */
enum kind {
	WRITABLE,
	READABLE,
	ON_DEMAND,
	READABLE_ON_DEMAND,
	EVERYWHERE,
	OF_GPU,
	READABLE_OF_GPU,
	OF_DEVICE,
	NO_MEMORY,
	IMPORTED
};
enum {
	AN_ADDRESS = IBV_REREG_MR_CHANGE_TRANSLATION,
	A_DOMAIN = IBV_REREG_MR_CHANGE_PD,
	RIGHTS = IBV_REREG_MR_CHANGE_ACCESS
};
enum { BAD_INPUT = -IBV_REREG_MR_ERR_INPUT, BAD_COMMAND = -IBV_REREG_MR_ERR_CMD };

static const struct {
	const char *source;
	int code, want;
	enum kind kind;
	int flags;
	uint64_t start, length;
	unsigned access;
	const char *what;
} of_changes[] = {
	{ REREG, BAD_COMMAND, EINVAL, WRITABLE, 0, 0, 0, 0, "nothing" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, WRITABLE, 8, 0, 0, 0, "change 8" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, WRITABLE, 1 << 4 | RIGHTS, 0, 0, LOCAL,
	  "change 16 and rights" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, WRITABLE, AN_ADDRESS, AT(0), 0, 0, "to no byte" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, WRITABLE, AN_ADDRESS, 0, PAGE, 0, "to NULL" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, WRITABLE, AN_ADDRESS, AT(0), PAGE, LOCAL,
	  "rights without their flag" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, OF_GPU, RIGHTS, 0, 0, LOCAL, "rights of a dma-buf" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, OF_GPU, 0, 0, 0, 0, "nothing of a dma-buf" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, IMPORTED, RIGHTS, 0, 0, LOCAL,
	  "rights of an imported region" },
	{ REREG_LIBRARY, BAD_INPUT, EINVAL, NO_MEMORY, RIGHTS, 0, 0, LOCAL,
	  "rights of the null region" },
	{ REREG, BAD_COMMAND, EINVAL, OF_DEVICE, RIGHTS, 0, 0, LOCAL, "rights of device memory" },
	{ REREG, BAD_COMMAND, EINVAL, OF_DEVICE, A_DOMAIN, 0, 0, 0, "the domain of device memory" },
	{ REREG, 0, 0, WRITABLE, A_DOMAIN, 0, 0, 0, "the domain" },
	{ REREG, 0, 0, WRITABLE, A_DOMAIN | RIGHTS, 0, 0, EVERYTHING, "the domain and rights" },
	{ REREG, 0, 0, WRITABLE, AN_ADDRESS, AT(1), PAGE, 0, "the memory" },
	{ REREG, 0, 0, WRITABLE, AN_ADDRESS | A_DOMAIN | RIGHTS, AT(1) + 5, 7, EVERYTHING,
	  "everything" },
	{ CHECK_ACCESS, BAD_COMMAND, EINVAL, WRITABLE, RIGHTS, 0, 0, 1 << 10, "to access bit 10" },
	{ CHECK_ACCESS, BAD_COMMAND, EINVAL, WRITABLE, RIGHTS, 0, 0, REMOTE_WRITE,
	  "to remote write alone" },
	{ CHECK_ACCESS, BAD_COMMAND, EOPNOTSUPP, WRITABLE, RIGHTS, 0, 0, FLUSH_PERSISTENT,
	  "to rights that are not offered" },
	{ PIN, BAD_COMMAND, EFAULT, WRITABLE, AN_ADDRESS, AT(HOLE), PAGE, 0,
	  "to an unmapped page" },
	{ PIN, BAD_COMMAND, EFAULT, WRITABLE, AN_ADDRESS, AT(READ_ONLY), PAGE, 0,
	  "to a read-only page, for writing" },
	{ PIN, 0, 0, WRITABLE, AN_ADDRESS | RIGHTS, AT(READ_ONLY), PAGE, 0,
	  "to a read-only page, for reading" },
	{ PIN, BAD_COMMAND, EINVAL, WRITABLE, AN_ADDRESS, AT(0), 1ull << 46, 0, "to 2^34 pages" },
	{ PIN, BAD_COMMAND, EINVAL, WRITABLE, AN_ADDRESS, -PAGE, 2 * PAGE, 0,
	  "to the end of the address space" },
	{ CHECK_REREG, BAD_COMMAND, EACCES, READABLE, RIGHTS, 0, 0, LOCAL,
	  "to write what was registered for reading" },
	{ CHECK_REREG, BAD_COMMAND, EACCES, READABLE, RIGHTS | A_DOMAIN, 0, 0, EVERYTHING,
	  "the same, and the domain" },
	{ CHECK_REREG, 0, 0, READABLE, RIGHTS, 0, 0, IBV_ACCESS_REMOTE_READ, "to remote reading" },
	{ CHECK_REREG, 0, 0, READABLE, RIGHTS | AN_ADDRESS, AT(0), PAGE, LOCAL,
	  "to write other memory" },
	{ ODP_GET, 0, 0, READABLE_ON_DEMAND, RIGHTS, 0, 0, LOCAL | ODP, "on demand: to write" },
	{ ODP_GET, 0, 0, ON_DEMAND, AN_ADDRESS, AT(HOLE), PAGE, 0,
	  "on demand: to an unmapped page" },
	{ ODP_GET, BAD_COMMAND, EOVERFLOW, ON_DEMAND, AN_ADDRESS, -PAGE, 2 * PAGE, 0,
	  "on demand: to the end of the address space" },
	{ ODP_GET, 0, 0, ON_DEMAND, RIGHTS, 0, 0, LOCAL, "on demand: to resident" },
	{ ODP_GET, 0, 0, WRITABLE, RIGHTS, 0, 0, LOCAL | ODP, "to on demand" },
};

enum advice { READ = IBV_ADVISE_MR_ADVICE_PREFETCH, WRITE = IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE };
enum { NO_FAULT = IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT, NOW = IBV_ADVISE_MR_FLAG_FLUSH };
/* What the advice is about: the region, or a key that is not a region's. */
enum key { THE_KEY, UNKNOWN_KEY, STALE_KEY, WINDOW_KEY };

static const struct {
	const char *source;
	/*
	 * For advice to read, to write and without faults, at once; without the flag what `later`
	 * has is not reported.
	 */
	int want[3], later;
	enum kind kind;
	enum key key;
	int64_t offset;
	uint32_t length;
	const char *what;
} of_advice[] = {
	{ ADVISE_KEY, { 0, 0, 0 }, 0, ON_DEMAND, THE_KEY, 7, PAGE, "a region" },
	{ ADVISE_KEY, { 0, 0, 0 }, 0, EVERYWHERE, THE_KEY, MEMORY, PAGE, "everything" },
	{ ADVISE_KEY, { 0, 0, 0 }, 0, OF_GPU, THE_KEY, 0, PAGE, "a dma-buf" },
	{ ADVISE_KEY, { 0, 0, 0 }, 0, ON_DEMAND, THE_KEY, 0, 0, "no byte" },
	{ ADVISE_KEY, { ENOENT, ENOENT, ENOENT }, 0, WRITABLE, THE_KEY, 0, 8, "a resident region" },
	{ ADVISE_KEY, { ENOENT, ENOENT, ENOENT }, 0, OF_DEVICE, THE_KEY, 0, 8, "device memory" },
	{ ADVISE_KEY, { ENOENT, ENOENT, ENOENT }, 0, ON_DEMAND, UNKNOWN_KEY, 0, 8, "no region" },
	{ ADVISE_KEY, { ENOENT, ENOENT, ENOENT }, 0, ON_DEMAND, STALE_KEY, 0, 8, "a stale key" },
	{ ADVISE_KEY, { EINVAL, EINVAL, EINVAL }, 0, ON_DEMAND, WINDOW_KEY, 0, 8, "a window" },
	{ ADVISE_KEY,
	  { 0, EPERM, 0 },
	  0,
	  READABLE_ON_DEMAND,
	  THE_KEY,
	  0,
	  8,
	  "a region for reading" },
	{ ADVISE_KEY, { 0, EPERM, 0 }, 0, READABLE_OF_GPU, THE_KEY, 0, 8, "a dma-buf for reading" },
	{ ADVISE_KEY, { EFAULT, EFAULT, EFAULT }, 1, ON_DEMAND, THE_KEY, -1, 8, "one byte before" },
	{ ADVISE_KEY,
	  { EFAULT, EFAULT, EFAULT },
	  1,
	  ON_DEMAND,
	  THE_KEY,
	  2 * PAGE - 7,
	  8,
	  "one byte behind" },
	{ ADVISE_KEY, { EFAULT, EFAULT, EFAULT }, 1, ON_DEMAND, THE_KEY, 0, UINT32_MAX, "4 GiB" },
	{ ADVISE_KEY,
	  { EFAULT, EFAULT, EFAULT },
	  1,
	  OF_GPU,
	  THE_KEY,
	  BUFFER_SIZE - 7,
	  8,
	  "one byte behind a dma-buf" },
	{ ADVISE_KEY,
	  { EFAULT, EFAULT, 0 },
	  1,
	  EVERYWHERE,
	  THE_KEY,
	  0,
	  PAGE,
	  "the unmapped first page" },
	{ ADVISE_KEY,
	  { EFAULT, EFAULT, 0 },
	  1,
	  EVERYWHERE,
	  THE_KEY,
	  AT(NO_ACCESS),
	  PAGE,
	  "a PROT_NONE page" },
	{ ADVISE_KEY,
	  { 0, EFAULT, 0 },
	  1,
	  EVERYWHERE,
	  THE_KEY,
	  AT(READ_ONLY),
	  PAGE,
	  "a read-only page" },
};

static const struct {
	const char *source;
	int want, advice;
	uint32_t flags, ranges;
	const char *what;
} of_advising[] = {
	{ ADVISE, EOPNOTSUPP, 3, 0, 1, "advice 3" },
	{ ADVISE, EOPNOTSUPP, 77, NOW, 1, "advice 77" },
	{ ADVISE, EINVAL, READ, 2, 1, "flag 2" },
	{ ADVISE, EINVAL, WRITE, 1u << 31 | NOW, 1, "flag 2^31" },
	{ ADVISE, EINVAL, 99, 2, 1, "flag 2 beats advice 99" },
	{ ADVISE, EINVAL, READ, 0, 0, "an empty list" },
	{ ADVISE, 0, READ, NOW, 1, "a list without the resident region behind it" },
	{ ADVISE_KEY, ENOENT, READ, NOW, 2, "a resident region behind a good one, at once" },
	{ ADVISE_KEY, ENOENT, READ, 0, 2, "a resident region behind a good one" },
};

#define EACH(table) for (size_t i = 0; i < sizeof(table) / sizeof(*(table)); i++)

/* The page that the kernel maps into every process, to read its clocks from. */
static uint64_t kernels_page(void)
{
	char line[256];
	unsigned long found = 0;
	FILE *maps = fopen("/proc/self/maps", "r");
	while (maps && fgets(line, sizeof(line), maps))
		if (strstr(line, "[vvar]"))
			found = strtoul(line, NULL, 16);
	if (maps)
		fclose(maps);
	return found;
}

static void memory(void)
{
	int file = memfd_create("short", MFD_CLOEXEC), writable = PROT_READ | PROT_WRITE;
	void *at = mmap((void *)MEMORY, PAGES * PAGE, writable,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
	if (at != (void *)MEMORY || munmap((void *)AT(HOLE), PAGE) ||
	    mprotect((void *)AT(READ_ONLY), PAGE, PROT_READ) ||
	    mprotect((void *)AT(NO_ACCESS), PAGE, PROT_NONE) ||
	    mmap((void *)AT(BEHIND_FILE), PAGE, writable, MAP_SHARED | MAP_FIXED, file, 0) ==
		    MAP_FAILED)
		fail("memory");
	close(file);
	uint64_t vvar = kernels_page();
	EACH(of_memory)
	{
		uint64_t start = of_memory[i].start == KERNELS_PAGE ? vvar : of_memory[i].start;
		uint64_t length = of_memory[i].length, iova = start + of_memory[i].iova;
		unsigned access = of_memory[i].access;
		if (!start && of_memory[i].start)
			continue;
		row(of_memory[i].source, of_memory[i].want,
		    POINTER(ibv_dereg_mr,
			    ibv_reg_mr_iova2(pd, (void *)start, length, iova, access)),
		    "register %s", of_memory[i].what);
		struct mr_attr attr = { length, (int)access, M_ADDR | M_IOVA, iova, (void *)start };
		if (reg_mr_ex)
			row(of_memory[i].source, of_memory[i].want,
			    POINTER(ibv_dereg_mr, reg_mr_ex(pd, &attr)),
			    "register by ibv_reg_mr_ex %s", of_memory[i].what);
	}
}

static void dmabufs(void)
{
	EACH(of_dmabufs)
	{
		int fd = descriptors[of_dmabufs[i].fd], access = (int)of_dmabufs[i].access;
		uint64_t offset = of_dmabufs[i].offset, length = of_dmabufs[i].length,
			 iova = of_dmabufs[i].iova;
		row(of_dmabufs[i].source, of_dmabufs[i].want,
		    POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(pd, offset, length, iova, fd, access)),
		    "dma-buf: %s", of_dmabufs[i].what);
		struct mr_attr attr = { length, access, M_FD | M_OFFSET | M_IOVA, iova, NULL,
					fd,	offset };
		/* -1 is no descriptor there, for fill_attr_in_fd leaves it out. */
		if (reg_mr_ex)
			row(of_dmabufs[i].source, fd == -1 ? EINVAL : of_dmabufs[i].want,
			    POINTER(ibv_dereg_mr, reg_mr_ex(pd, &attr)),
			    "dma-buf by ibv_reg_mr_ex: %s", of_dmabufs[i].what);
	}
	if (!reg_mr_ex)
		return;
	static char page[PAGE] __attribute__((aligned(PAGE)));
	int by_kernel = !strncmp(ibv_get_device_name(context->device), "mlx5_", 5);
	EACH(of_masks)
	{
		int by_fd = of_masks[i].mask & M_FD;
		/*
		 * rdma-core asks the handle, which is NULL here, for its number, and looks for no
		 * bits that it does not know.
		 */
		if (by_kernel && of_masks[i].mask & (M_DMAH | 1 << 6))
			continue;
		struct mr_attr attr = { .length = PAGE,
					.access = LOCAL,
					.comp_mask = of_masks[i].mask,
					.iova = by_fd ? 0 : (uintptr_t)page,
					.addr = page,
					.fd = descriptors[GPU] };
		row(of_masks[i].source, of_masks[i].want,
		    POINTER(ibv_dereg_mr, reg_mr_ex(pd, &attr)), "ibv_reg_mr_ex: %s",
		    of_masks[i].what);
	}
}

/* A region, and what else was made for it. */
struct made {
	struct ibv_mr *mr, *original;
	struct ibv_dm *device_memory;
};

static struct ibv_mr *of(uint64_t start, size_t length, unsigned access)
{
	return ibv_reg_mr_iova2(pd, (void *)start, length, start, access);
}

static struct made make(enum kind kind)
{
	struct made made = { NULL };
	struct ibv_alloc_dm_attr whole = { .length = PAGE };
	switch (kind) {
	case WRITABLE:
		made.mr = of(AT(0), 2 * PAGE, LOCAL);
		break;
	case READABLE:
		made.mr = of(AT(0), 2 * PAGE, 0);
		break;
	case ON_DEMAND:
		made.mr = of(AT(0), 2 * PAGE, LOCAL | ODP);
		break;
	case READABLE_ON_DEMAND:
		made.mr = of(AT(0), 2 * PAGE, ODP);
		break;
	case EVERYWHERE:
		made.mr = of(0, SIZE_MAX, LOCAL | ODP);
		break;
	case OF_GPU:
		made.mr = ibv_reg_dmabuf_mr(pd, 0, BUFFER_SIZE, 0, descriptors[GPU], EVERYTHING);
		break;
	case READABLE_OF_GPU:
		made.mr = ibv_reg_dmabuf_mr(pd, 0, BUFFER_SIZE, 0, descriptors[GPU], 0);
		break;
	case OF_DEVICE:
		made.device_memory = ibv_alloc_dm(context, &whole);
		if (made.device_memory)
			made.mr = ibv_reg_dm_mr(pd, made.device_memory, 0, PAGE,
						LOCAL | IBV_ACCESS_ZERO_BASED);
		break;
	case NO_MEMORY:
		made.mr = ibv_alloc_null_mr(pd);
		break;
	case IMPORTED:
		made.original = of(AT(0), PAGE, LOCAL);
		if (made.original)
			made.mr = ibv_import_mr(pd, made.original->handle);
		break;
	}
	if (!made.mr)
		fail("a region");
	return made;
}

static void unmake(struct made made)
{
	if (made.original)
		ibv_unimport_mr(made.mr);
	if (ibv_dereg_mr(made.original ? made.original : made.mr))
		fail("deregister a region");
	if (made.device_memory && ibv_free_dm(made.device_memory))
		fail("free device memory");
}

static void changes(struct ibv_pd *other)
{
	EACH(of_changes)
	{
		struct made made = make(of_changes[i].kind);
		struct ibv_pd *domain = of_changes[i].flags & A_DOMAIN ? other : NULL;
		errno = 0;
		int code = ibv_rereg_mr(made.mr, of_changes[i].flags, domain,
					(void *)of_changes[i].start, of_changes[i].length,
					(int)of_changes[i].access);
		int found = code ? errno : 0;
		equal(of_changes[i].source, of_changes[i].code, -code, "change %s, the code",
		      of_changes[i].what);
		row(of_changes[i].source, of_changes[i].want, found, "change %s",
		    of_changes[i].what);
		unmake(made);
	}
}

static int advise(struct ibv_pd *domain, int advice, uint32_t flags, uint64_t at, uint32_t length,
		  uint32_t key)
{
	struct ibv_sge range = { at, length, key };
	return ibv_advise_mr(domain, advice, flags, &range, 1);
}

static void advice(struct ibv_pd *other)
{
	static const int all[] = { READ, WRITE, NO_FAULT };
	struct ibv_mw *window = ibv_alloc_mw(pd, IBV_MW_TYPE_2);
	if (!window)
		fail("a window");
	EACH(of_advice)
	{
		struct made made = make(of_advice[i].kind);
		uint64_t at = (of_advice[i].kind == EVERYWHERE ? 0 : (uintptr_t)made.mr->addr) +
			      of_advice[i].offset;
		uint32_t key = made.mr->lkey, keys[] = { key, key ^ 0xff00, key ^ 1, window->rkey };
		key = keys[of_advice[i].key];
		for (int a = 0; a < 3; a++) {
			int want = of_advice[i].want[a];
			row(of_advice[i].source, want,
			    advise(pd, all[a], NOW, at, of_advice[i].length, key),
			    "advice %d at once: %s", all[a], of_advice[i].what);
			row(of_advice[i].source, of_advice[i].later ? 0 : want,
			    advise(pd, all[a], 0, at, of_advice[i].length, key), "advice %d: %s",
			    all[a], of_advice[i].what);
			if (of_advice[i].key == THE_KEY && !want)
				row(of_advice[i].source, EPERM,
				    advise(other, all[a], NOW, at, of_advice[i].length, key),
				    "advice %d in another domain: %s", all[a], of_advice[i].what);
		}
		unmake(made);
	}
	ibv_dealloc_mw(window);
	struct made good = make(ON_DEMAND), resident = make(WRITABLE);
	struct ibv_sge two[] = { { MEMORY, 8, good.mr->lkey }, { MEMORY, 8, resident.mr->lkey } };
	EACH(of_advising)
	{
		row(of_advising[i].source, of_advising[i].want,
		    ibv_advise_mr(pd, of_advising[i].advice, of_advising[i].flags,
				  of_advising[i].ranges ? two : NULL, of_advising[i].ranges),
		    "advice: %s", of_advising[i].what);
	}
	uint32_t key = good.mr->lkey;
	unmake(good);
	unmake(resident);
	row(ADVISE_KEY, ENOENT, advise(pd, READ, NOW, MEMORY, 8, key),
	    "advice: a region that is gone");
}

int main(int argc, char **argv)
{
	int dmabufs_only = argc == 3 && !strcmp(argv[2], "dmabufs");
	if (argc != 2 && !dmabufs_only)
		fail("arguments");
	int ends[2];
	open_first_device();
	struct ibv_pd *other = ibv_alloc_pd(context);
	reg_mr_ex = dlsym(RTLD_DEFAULT, "ibv_reg_mr_ex");
	if (!other || pipe(ends))
		fail("another domain, and a pipe");
	const int made[DESCRIPTORS] = { [GPU] = export_buffer(argv[1], BUFFER_SIZE),
					[NONE] = -1,
					[CLOSED] = 987,
					[FILE_ON_DISK] = open("/proc/self/exe", O_RDONLY),
					[MEMFD] = memfd_create("ordinary", 0),
					[PIPE] = ends[0],
					[EVENTS] = context->async_fd,
					[NODE] = open_gpu(argv[1]) };
	memcpy(descriptors, made, sizeof(made));
	if (ftruncate(made[MEMFD], BUFFER_SIZE))
		fail("a memfd");
	if (!dmabufs_only)
		memory();
	dmabufs();
	if (!dmabufs_only) {
		changes(other);
		advice(other);
	}
	row("nothing stays", 0, ibv_dealloc_pd(other), "the other domain is free");
	row("nothing stays", 0, ibv_dealloc_pd(pd), "the domain is free");
	ibv_close_device(context);
	return finish();
}
