/*
 * The virtual GPU in a guest, by its driver: buffers that are filled, moved and revoked, alone and
 * while an adapter reaches them through a dma-buf. Every byte is compared.
 *
 *   vram /dev/dri/renderD128 alone     without an adapter
 *   vram /dev/dri/renderD128 direct    the kernel lets the adapter reach the GPU's memory
 *   vram /dev/dri/renderD128 moving    the same, and the buffer moves under traffic and is revoked
 *   vram /dev/dri/renderD128 refused   it does not: an importer finds the buffer in system memory
 *   vram /dev/dri/renderD128 unreachable   the kernel lets it, but the machine has other addresses
 * than the kernel thinks
 */
#include "gpu.h"

#include "../../crates/vm/driver/peerdma_gpu_drm.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <unistd.h>

#define DRIVER "crates/vm/driver"

enum { LENGTH = 1 << 20 };

static int gpu, is_direct, is_moving;

static sigjmp_buf gone;

static void on_signal(int number) { siglongjmp(gone, number); }

/* Whether a byte can be read. */
static int is_there(volatile unsigned char *at)
{
	struct sigaction action = { .sa_handler = on_signal }, old;
	sigaction(SIGBUS, &action, &old);
	int there = !sigsetjmp(gone, 1);
	if (there)
		(void)*at;
	sigaction(SIGBUS, &old, NULL);
	return there;
}

static int call(unsigned long request, void *argument)
{
	return ioctl(gpu, request, argument) ? errno : 0;
}

static int create(uint64_t size, uint64_t domain, uint64_t flags)
{
	struct pgpu_create create = { size, 0, domain, flags };
	return call(DRM_IOCTL_PGPU_CREATE, &create);
}

static int move(uint32_t handle, uint32_t domain)
{
	struct pgpu_move move = { handle, domain };
	return call(DRM_IOCTL_PGPU_MOVE, &move);
}

static int take_away(uint32_t handle)
{
	struct pgpu_revoke revoke = { handle, 0 };
	return call(DRM_IOCTL_PGPU_REVOKE, &revoke);
}

static int fill(uint32_t handle, uint64_t pattern)
{
	struct pgpu_fill fill = { handle, 0, pattern };
	return call(DRM_IOCTL_PGPU_FILL, &fill);
}

static struct pgpu_info info(uint32_t handle)
{
	struct pgpu_info info = { .handle = handle };
	errno = call(DRM_IOCTL_PGPU_INFO, &info);
	if (errno)
		fail("ask about a buffer");
	return info;
}

static int export_handle(uint32_t handle)
{
	struct prime_handle prime = { .handle = handle, .flags = O_CLOEXEC | O_RDWR };
	if (ioctl(gpu, PRIME_HANDLE_TO_FD, &prime))
		fail("export a buffer");
	return prime.fd;
}

static unsigned char byte_of(unsigned seed, size_t at)
{
	return (unsigned char)(at * 7 + (at >> 8) + seed * 31);
}

static void draw(unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		at[i] = byte_of(seed, i);
}

static int shows(const unsigned char *at, unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		if (at[i] != byte_of(seed, i))
			return 0;
	return 1;
}

static int is_all(const unsigned char *at, uint64_t pattern)
{
	for (size_t i = 0; i < LENGTH; i += sizeof(pattern))
		if (memcmp(at + i, &pattern, sizeof(pattern)))
			return 0;
	return 1;
}

static void alone(void)
{
	row(DRIVER, EINVAL, create(0, PGPU_VRAM, 0), "a buffer of no byte");
	row(DRIVER, EINVAL, create(1ull << 40, PGPU_VRAM, 0), "a buffer larger than the GPU");
	row(DRIVER, EINVAL, create(LENGTH, PGPU_VRAM | PGPU_SYSTEM, 0), "a buffer in two places");
	row(DRIVER, EINVAL, create(LENGTH, PGPU_VRAM, 1), "a buffer with a flag");
	row(DRIVER, ENOENT, move(77, PGPU_VRAM), "to move no buffer");
	row(DRIVER, ENOENT, fill(77, 0), "to fill no buffer");
	row(DRIVER, ENOENT, take_away(77), "to revoke no buffer");
	uint32_t handle = new_buffer(gpu, LENGTH);
	unsigned char *mapped = map_buffer(gpu, handle, LENGTH);
	row(DRIVER, EINVAL, move(handle, 3), "to move a buffer nowhere");
	holds(DRIVER, is_all(mapped, 0), "a new buffer is zeroed");
	row(DRIVER, 0, fill(handle, 0x0123456789abcdef), "the engine fills it");
	holds(DRIVER, is_all(mapped, 0x0123456789abcdef), "what the engine filled is seen");
	draw(mapped, 1);
	struct pgpu_info before = info(handle);
	equal(DRIVER, PGPU_VRAM, before.domain, "it lies in the GPU");
	row(DRIVER, 0, move(handle, PGPU_VRAM), "it moves within the GPU");
	holds(DRIVER, info(handle).offset != before.offset, "it lies elsewhere");
	holds(DRIVER, shows(mapped, 1), "the same bytes there");
	row(DRIVER, 0, move(handle, PGPU_SYSTEM), "it moves to system memory");
	equal(DRIVER, PGPU_SYSTEM, info(handle).domain, "it lies in system memory");
	holds(DRIVER, shows(mapped, 1), "the same bytes in system memory");
	draw(mapped, 2);
	row(DRIVER, 0, move(handle, PGPU_VRAM), "it moves back");
	holds(DRIVER, shows(mapped, 2), "what was written in system memory is in the GPU");
	equal(DRIVER, 3, info(handle).moves, "three moves");
	holds(DRIVER, is_there(mapped), "a buffer can be read");
	row(DRIVER, 0, take_away(handle), "it is revoked");
	equal(DRIVER, 0, info(handle).domain, "it lies nowhere");
	holds(DRIVER, !is_there(mapped), "a revoked buffer cannot be read");
	row(DRIVER, ENODEV, move(handle, PGPU_VRAM), "to move a revoked buffer");
	row(DRIVER, ENODEV, fill(handle, 0), "to fill a revoked buffer");
	munmap(mapped, LENGTH);
}

static struct pair pair;
static struct ibv_mr *local;
static unsigned char *host;

static void transfer(enum ibv_wr_opcode opcode, struct ibv_mr *remote, enum ibv_wc_status want,
		     const char *what)
{
	struct ibv_sge sge = { (uintptr_t)host, LENGTH, local->lkey };
	struct ibv_send_wr wr = { .wr_id = 7,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = opcode,
				  .wr.rdma = { 0, remote->rkey } };
	post(pair.a, &wr);
	completes("IBA 9.7", pair.a_cq, 7, want, "%s", what);
}

/* What the adapter writes the processor sees, and what the GPU writes the adapter reads. */
static void exchange(struct ibv_mr *remote, uint32_t handle, const unsigned char *mapped,
		     unsigned seed, const char *where)
{
	char what[100];
	draw(host, seed);
	snprintf(what, sizeof(what), "RDMA WRITE %s", where);
	transfer(IBV_WR_RDMA_WRITE, remote, IBV_WC_SUCCESS, what);
	snprintf(what, sizeof(what), "bytes written %s", where);
	holds(DRIVER, shows(mapped, seed), what);
	row(DRIVER, 0, fill(handle, seed * 0x0101010101010101), "the engine fills it %s", where);
	memset(host, 0xff, LENGTH);
	snprintf(what, sizeof(what), "RDMA READ %s", where);
	transfer(IBV_WR_RDMA_READ, remote, IBV_WC_SUCCESS, what);
	snprintf(what, sizeof(what), "bytes read %s", where);
	holds(DRIVER, is_all(host, seed * 0x0101010101010101), what);
}

enum { ROUNDS = 8 };

static atomic_int is_over;

/* Moves a buffer to and fro until it is over. */
static void *mover(void *handle)
{
	long moves = 0;
	while (!is_over)
		if (!move((uint32_t)(uintptr_t)handle, moves % 3 ? PGPU_VRAM : PGPU_SYSTEM))
			moves++;
	return (void *)moves;
}

static int is_carried(enum ibv_wr_opcode opcode, struct ibv_mr *remote)
{
	struct ibv_sge sge = { (uintptr_t)host, LENGTH, local->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge, .num_sge = 1, .opcode = opcode, .wr.rdma = { 0, remote->rkey }
	};
	struct ibv_wc wc = { 0 };
	post(pair.a, &wr);
	if (wait_for(pair.a_cq, &wc, 30) && wc.status == IBV_WC_SUCCESS)
		return 1;
	printf("a request ends with %s\n", ibv_wc_status_str(wc.status));
	return 0;
}

static void under_traffic(struct ibv_mr *remote, uint32_t handle)
{
	pthread_t thread;
	void *moves;
	int wrong = 0, failed = 0;
	if (pthread_create(&thread, NULL, mover, (void *)(uintptr_t)handle))
		fail("a thread that moves a buffer");
	for (unsigned seed = 6; seed < 6 + ROUNDS; seed++) {
		draw(host, seed);
		failed += !is_carried(IBV_WR_RDMA_WRITE, remote);
		memset(host, 0xff, LENGTH);
		failed += !is_carried(IBV_WR_RDMA_READ, remote);
		wrong += !shows(host, seed);
	}
	is_over = 1;
	pthread_join(thread, &moves);
	equal(DRIVER, 0, failed, "requests that failed while the buffer moved");
	equal(DRIVER, 0, wrong, "rounds whose bytes came back wrong while it moved");
	holds(DRIVER, (long)moves > ROUNDS / 4, "it moved all the while");
}

/* A registered buffer is taken away: requests fail, and what belongs to others is left alone. */
static void revoked(uint32_t handle, int fd)
{
	struct ibv_mr *remote = ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0, fd, EVERYTHING);
	if (!remote)
		fail("register a buffer again");
	row(DRIVER, 0, take_away(handle), "it is revoked");
	equal(DRIVER, 0, info(handle).maps, "nobody maps what is revoked");
	/* The next buffer lies where it was. */
	uint32_t other = new_buffer(gpu, LENGTH);
	unsigned char *mapped = map_buffer(gpu, other, LENGTH);
	draw(host, 77);
	transfer(IBV_WR_RDMA_WRITE, remote, IBV_WC_REM_ACCESS_ERR,
		 "RDMA WRITE to a revoked buffer");
	holds(DRIVER, is_all(mapped, 0), "the next owner's bytes are left alone");
	row("facts 3", 0, ibv_dereg_mr(remote), "its registration ends");
	row("dma_buf_ops.map_dma_buf", ENODEV,
	    POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0, fd, EVERYTHING)),
	    "to register a revoked buffer");
	munmap(mapped, LENGTH);
}

static void imported(void)
{
	uint32_t handle = new_buffer(gpu, LENGTH);
	unsigned char *mapped = map_buffer(gpu, handle, LENGTH);
	int fd = export_handle(handle);
	struct ibv_mr *remote = ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0, fd, EVERYTHING);
	if (!remote)
		fail("register a buffer of the GPU");
	equal("pci_p2pdma_distance", is_direct ? PGPU_VRAM : PGPU_SYSTEM, info(handle).domain,
	      "where an importer finds it");
	equal(DRIVER, 1, info(handle).maps, "it is mapped once");
	exchange(remote, handle, mapped, 3, "where it was registered");
	row(DRIVER, 0, move(handle, PGPU_VRAM), "it moves to the GPU");
	exchange(remote, handle, mapped, 4, "after a move to the GPU");
	equal("pci_p2pdma_distance", is_direct ? PGPU_VRAM : PGPU_SYSTEM, info(handle).domain,
	      "where the adapter finds it");
	row(DRIVER, 0, move(handle, PGPU_SYSTEM), "it moves to system memory");
	exchange(remote, handle, mapped, 5, "after a move to system memory");
	equal(DRIVER, PGPU_SYSTEM, info(handle).domain, "it stays there");
	if (is_moving)
		under_traffic(remote, handle);
	row("facts 3", 0, ibv_dereg_mr(remote), "the registration ends");
	equal(DRIVER, 0, info(handle).maps, "nobody maps it");
	revoked(handle, fd);
	close(fd);
	munmap(mapped, LENGTH);
}

/* Requests fail, and no byte of the GPU's changes. */
static void not_reachable(void)
{
	uint32_t handle = new_buffer(gpu, LENGTH);
	unsigned char *mapped = map_buffer(gpu, handle, LENGTH);
	struct ibv_mr *remote =
		ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0, export_handle(handle), EVERYTHING);
	if (!remote)
		fail("register a buffer of the GPU");
	equal("pci_p2pdma_distance", PGPU_VRAM, info(handle).domain, "where an importer finds it");
	draw(host, 9);
	transfer(IBV_WR_RDMA_WRITE, remote, IBV_WC_REM_OP_ERR,
		 "RDMA WRITE to where the machine has nothing");
	equal("pci_p2pdma_distance", PGPU_VRAM, info(handle).domain, "where it stays");
	holds(DRIVER, is_all(mapped, 0), "the GPU's bytes are left alone");
	row("facts 3", 0, ibv_dereg_mr(remote), "the registration ends");
}

int main(int argc, char **argv)
{
	if (argc != 3)
		fail("arguments");
	is_moving = !strcmp(argv[2], "moving");
	is_direct = is_moving || !strcmp(argv[2], "direct");
	gpu = open_gpu(argv[1]);
	setvbuf(stdout, NULL, _IOLBF, 0);
	alone();
	if (!strcmp(argv[2], "alone"))
		return finish();
	open_first_device();
	/* A page fault at the responder is told by RNR NAKs, and a move takes its time. */
	rnr_retries = 7;
	ack_timeout = 18;
	pair = new_pair(IBV_QPT_RC);
	host = aligned_alloc(4096, LENGTH);
	local = host ? ibv_reg_mr(pd, host, LENGTH, LOCAL) : NULL;
	if (!local)
		fail("memory of the program's own");
	if (!strcmp(argv[2], "unreachable"))
		not_reachable();
	else
		imported();
	return finish();
}
