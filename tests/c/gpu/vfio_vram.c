/*
 * The virtual GPU's memory by VFIO, without its driver: a window of it is exported as a dma-buf,
 * registered with the adapter, and taken away while bytes move: its memory is switched off, the
 * function is reset, its descriptor is closed. Every byte is compared, and none moves afterwards.
 *
 *   vfio_vram GROUP ADDRESS plain
 *   vfio_vram GROUP ADDRESS direct     by the Data Direct function (mlx5dv_reg_dmabuf_mr(3))
 */
#include "rows.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <linux/vfio.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORT "VFIO_DEVICE_FEATURE_DMA_BUF"

/* Of linux/vfio.h since Linux 6.19. */
enum { FEATURE_DMA_BUF = 11 };
struct range {
	uint64_t offset, length;
};
struct export {
	struct vfio_device_feature head;
	uint32_t region, open_flags, flags, count;
	struct range ranges[2];
};

enum { PAGE = 4096, LENGTH = 1 << 20, HALF = LENGTH / 2, MEMORY_BAR = 2, DIRECT = 1 };
enum { COMMAND_MEMORY = 2 };
/* Where in the GPU's memory the two halves of the buffer lie. */
static const struct range halves[2] = { { 1 << 20, HALF }, { 8 << 20, HALF } };

static int container, group, device;
static const char *address;
static struct vfio_region_info config, bar;
/* The GPU's memory as the processor sees it. */
static unsigned char *seen;

static int must(int result, const char *what)
{
	if (result < 0)
		fail(what);
	return result;
}

/* Switches the function's memory on or off. */
static void memory(int on)
{
	uint16_t command;
	must(pread(device, &command, 2, config.offset + 4), "the command register");
	command = on ? command | COMMAND_MEMORY : command & ~COMMAND_MEMORY;
	must(pwrite(device, &command, 2, config.offset + 4), "the command register");
}

static void open_function(void)
{
	config = (struct vfio_region_info){ .argsz = sizeof(config),
					    .index = VFIO_PCI_CONFIG_REGION_INDEX };
	bar = (struct vfio_region_info){ .argsz = sizeof(bar), .index = MEMORY_BAR };
	device = must(ioctl(group, VFIO_GROUP_GET_DEVICE_FD, address), "the function");
	must(ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &config), "its configuration space");
	must(ioctl(device, VFIO_DEVICE_GET_REGION_INFO, &bar), "its memory");
	memory(1);
	seen = mmap(NULL, bar.size, PROT_READ | PROT_WRITE, MAP_SHARED, device, (off_t)bar.offset);
	if (seen == MAP_FAILED)
		fail("map its memory");
}

static void close_function(void)
{
	munmap(seen, bar.size);
	close(device);
}

static void open_group(const char *number)
{
	char path[64];
	snprintf(path, sizeof(path), "/dev/vfio/%s", number);
	container = must(open("/dev/vfio/vfio", O_RDWR), "VFIO");
	group = must(open(path, O_RDWR), path);
	must(ioctl(group, VFIO_GROUP_SET_CONTAINER, &container), "the group's container");
	must(ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1v2_IOMMU), "an IOMMU");
}

/* A descriptor, or the negative of an errno. */
static int exported(uint32_t region, uint32_t flags, uint32_t count, struct range first,
		    struct range second)
{
	struct export export = {
		.head = { .argsz = sizeof(export),
			  .flags = VFIO_DEVICE_FEATURE_GET | FEATURE_DMA_BUF },
		.region = region,
		.open_flags = O_CLOEXEC | O_RDWR,
		.flags = flags,
		.count = count,
		.ranges = { first, second },
	};
	int fd = ioctl(device, VFIO_DEVICE_FEATURE, &export);
	return fd < 0 ? -errno : fd;
}

static int new_buffer(void)
{
	int fd = exported(MEMORY_BAR, 0, 2, halves[0], halves[1]);
	errno = fd < 0 ? -fd : 0;
	return must(fd < 0 ? -1 : fd, "export memory of the GPU");
}

static void wrong_exports(void)
{
	const struct range good = { 0, PAGE };
	const struct {
		uint32_t region, flags, count;
		struct range range;
		int want;
		const char *what;
	} rows_of[] = {
		{ VFIO_PCI_ROM_REGION_INDEX, 0, 1, good, ENODEV, "to export the ROM" },
		{ VFIO_PCI_CONFIG_REGION_INDEX, 0, 1, good, ENODEV,
		  "to export configuration space" },
		{ MEMORY_BAR, 0, 0, good, EINVAL, "to export no range" },
		{ MEMORY_BAR, 1, 1, good, EINVAL, "to export with a flag" },
		{ 1, 0, 1, good, ENODEV, "to export a BAR that is none" },
		{ MEMORY_BAR, 0, 1, { 1, PAGE }, EINVAL, "to export from inside a page" },
		{ MEMORY_BAR, 0, 1, { 0, PAGE - 1 }, EINVAL, "to export a part of a page" },
		{ MEMORY_BAR, 0, 1, { 0, 0 }, EINVAL, "to export nothing" },
		{ MEMORY_BAR,
		  0,
		  1,
		  { bar.size - PAGE, 2 * PAGE },
		  EINVAL,
		  "to export past the end" },
		{ MEMORY_BAR, 0, 1, { -(uint64_t)PAGE, PAGE }, EOVERFLOW, "to export what wraps" },
	};
	struct vfio_device_feature probe = { .argsz = sizeof(probe),
					     .flags = VFIO_DEVICE_FEATURE_PROBE |
						      VFIO_DEVICE_FEATURE_GET | FEATURE_DMA_BUF };
	row(EXPORT, 0, ioctl(device, VFIO_DEVICE_FEATURE, &probe) ? errno : 0,
	    "to ask for dma-bufs");
	for (size_t i = 0; i < sizeof(rows_of) / sizeof(*rows_of); i++) {
		int fd = exported(rows_of[i].region, rows_of[i].flags, rows_of[i].count,
				  rows_of[i].range, good);
		row(EXPORT, rows_of[i].want, fd < 0 ? -fd : 0, "%s", rows_of[i].what);
		if (fd >= 0)
			close(fd);
	}
}

static unsigned char *host;
static struct ibv_mr *local;

/* Registers the whole buffer; none and errno if that fails. */
static struct ibv_mr *registered(int fd)
{
	return ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0, fd, EVERYTHING);
}

static unsigned char byte_of(unsigned seed, size_t at)
{
	return (unsigned char)(at * 7 + (at >> 8) + seed * 31);
}

static void draw(unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		host[i] = byte_of(seed, i);
}

/* Where in the GPU's memory a byte of the buffer lies. */
static unsigned char *there(size_t at) { return seen + halves[at / HALF].offset + at % HALF; }

static int gpu_shows(unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		if (*there(i) != byte_of(seed, i))
			return 0;
	return 1;
}

/* Whether a whole page of it has one value. */
static int gpu_has(unsigned char value)
{
	for (size_t at = 0; at < LENGTH; at += PAGE) {
		size_t i = 0;
		while (i < PAGE && there(at)[i] == value)
			i++;
		if (i == PAGE)
			return 1;
	}
	return 0;
}

static void transfer(struct pair pair, enum ibv_wr_opcode opcode, struct ibv_mr *mr,
		     enum ibv_wc_status want, const char *what)
{
	struct ibv_sge sge = { (uintptr_t)host, LENGTH, local->lkey };
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { 0, mr->rkey } };
	post(pair.a, &wr);
	completes("IBA 9.7", pair.a_cq, 7, want, "%s", what);
}

/* The same on queue pairs that what happened before has not stopped. */
static void afresh(enum ibv_wr_opcode opcode, struct ibv_mr *mr, enum ibv_wc_status want,
		   const char *what)
{
	struct pair pair = new_pair(IBV_QPT_RC);
	transfer(pair, opcode, mr, want, what);
	end_pair(pair);
}

static void exchange(struct ibv_mr *mr, unsigned seed, const char *when)
{
	struct pair pair = new_pair(IBV_QPT_RC);
	char what[100];
	unsigned char before = seen[halves[0].offset - 1], after = seen[halves[0].offset + HALF];
	draw(seed);
	snprintf(what, sizeof(what), "RDMA WRITE %s", when);
	transfer(pair, IBV_WR_RDMA_WRITE, mr, IBV_WC_SUCCESS, what);
	snprintf(what, sizeof(what), "every byte written %s", when);
	holds(EXPORT, gpu_shows(seed), what);
	holds(EXPORT,
	      seen[halves[0].offset - 1] == before && seen[halves[0].offset + HALF] == after,
	      "and none beside");
	for (size_t i = 0; i < LENGTH; i++)
		*there(i) = byte_of(seed + 1, i);
	memset(host, 0, LENGTH);
	snprintf(what, sizeof(what), "RDMA READ %s", when);
	transfer(pair, IBV_WR_RDMA_READ, mr, IBV_WC_SUCCESS, what);
	unsigned wrong = 0;
	for (size_t i = 0; i < LENGTH; i++)
		wrong += host[i] != byte_of(seed + 1, i);
	equal(EXPORT, 0, wrong, "bytes read wrong %s", when);
	end_pair(pair);
}

static atomic_int carried;

/* Writes until a write fails; with which status. */
static void *writer(void *mr)
{
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)host, LENGTH, local->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { 0, ((struct ibv_mr *)mr)->rkey } };
	struct ibv_wc wc = { 0 };
	do {
		post(pair.a, &wr);
		if (!wait_for(pair.a_cq, &wc, 30))
			return (void *)~0ul;
		carried++;
	} while (wc.status == IBV_WC_SUCCESS);
	end_pair(pair);
	return (void *)(uintptr_t)wc.status;
}

/* Has `act` take the memory away while it is written to. */
static void taken_away(void (*act)(void), struct ibv_mr *mr, const char *what)
{
	pthread_t thread;
	void *status;
	carried = 0;
	if (pthread_create(&thread, NULL, writer, mr))
		fail("a thread that writes");
	while (carried < 3)
		usleep(1000);
	act();
	/* The other thread still reads these bytes: a write after this one's end would bring them.
	 */
	memset(host, 0x77, LENGTH);
	pthread_join(thread, &status);
	equal(EXPORT, IBV_WC_REM_ACCESS_ERR, (uintptr_t)status, "a write under way: %s", what);
}

static void switch_off(void) { memory(0); }

static void reset(void) { must(ioctl(device, VFIO_DEVICE_RESET), "reset the function"); }

static void switched_off(int fd)
{
	struct ibv_mr *mr = registered(fd);
	if (!mr)
		fail("register a window of the GPU");
	draw(20);
	taken_away(switch_off, mr, "its memory is switched off");
	afresh(IBV_WR_RDMA_WRITE, mr, IBV_WC_REM_ACCESS_ERR, "a write to memory that is off");
	afresh(IBV_WR_RDMA_READ, mr, IBV_WC_REM_ACCESS_ERR, "a read of it");
	row("vfio_pci_dma_buf_attach", ENODEV, POINTER(ibv_dereg_mr, registered(fd)),
	    "to register it");
	memory(1);
	holds(EXPORT, !gpu_has(0x77), "no byte arrived after it was off");
	exchange(mr, 30, "when it is on again");
	row(EXPORT, 0, ibv_dereg_mr(mr), "its registration ends");
}

static void was_reset(int fd)
{
	struct ibv_mr *mr = registered(fd);
	if (!mr)
		fail("register it again");
	draw(40);
	taken_away(reset, mr, "the function is reset");
	holds(EXPORT, !gpu_has(0x77), "no byte arrived after the reset");
	exchange(mr, 50, "after the reset");
	row(EXPORT, 0, ibv_dereg_mr(mr), "its registration ends");
}

static void was_closed(int fd)
{
	struct ibv_mr *mr = registered(fd);
	if (!mr)
		fail("register it once more");
	draw(60);
	taken_away(close_function, mr, "its descriptor is closed");
	open_function();
	afresh(IBV_WR_RDMA_WRITE, mr, IBV_WC_REM_ACCESS_ERR, "a write to what is lost");
	holds(EXPORT, !gpu_has(0x77), "no byte arrived after the close");
	row("vfio_pci_dma_buf_attach", ENODEV, POINTER(ibv_dereg_mr, registered(fd)),
	    "to register what is lost");
	row(EXPORT, 0, ibv_dereg_mr(mr), "its registration ends");
}

static void revoked_in_each_way(void)
{
	int fd = new_buffer();
	switched_off(fd);
	was_reset(fd);
	was_closed(fd);
	close(fd);
}

/*
 * Data Direct pins what it imports, and cannot be told that it loses it: VFIO exports to no such
 * importer.
 */
static void by_data_direct(void)
{
	struct ibv_mr *(*reg)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int, int);
	void *library = dlopen("libmlx5.so.1", RTLD_NOW);
	reg = library ? dlvsym(library, "mlx5dv_reg_dmabuf_mr", "MLX5_1.25") : NULL;
	if (!reg)
		fail("mlx5dv_reg_dmabuf_mr");
	int fd = new_buffer();
	row("dma_buf_attach_revocable", EOPNOTSUPP,
	    POINTER(ibv_dereg_mr, reg(pd, 0, LENGTH, 0, fd, EVERYTHING, DIRECT)),
	    "to register it by Data Direct");
	row(EXPORT, 0, POINTER(ibv_dereg_mr, registered(fd)), "to register it plainly");
	close(fd);
}

static void plainly(void)
{
	wrong_exports();
	memory(0);
	int fd = new_buffer();
	row("vfio_pci_dma_buf_attach", ENODEV, POINTER(ibv_dereg_mr, registered(fd)),
	    "to register memory that is off");
	memory(1);
	struct ibv_mr *mr = registered(fd);
	if (!mr)
		fail("register memory of the GPU");
	exchange(mr, 1, "to exported memory");
	row(EXPORT, 0, ibv_dereg_mr(mr), "its registration ends");
	close(fd);
	revoked_in_each_way();
}

int main(int argc, char **argv)
{
	if (argc != 4)
		fail("arguments");
	address = argv[2];
	open_group(argv[1]);
	open_function();
	open_first_device();
	/* A page fault at the responder is told by RNR NAKs, and takes its time. */
	rnr_retries = 7;
	ack_timeout = 18;
	host = aligned_alloc(PAGE, LENGTH);
	local = host ? ibv_reg_mr(pd, host, LENGTH, LOCAL) : NULL;
	if (!local)
		fail("memory of the program's own");
	if (!strcmp(argv[3], "direct"))
		by_data_direct();
	else
		plainly();
	return finish();
}
