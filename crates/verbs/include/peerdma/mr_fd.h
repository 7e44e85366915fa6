/*
 * Memory regions over a file descriptor, registered and registered anew: what was proposed for
 * Linux in 2020 and never merged
 * ("Add uverbs commands for fd-based MR registration", linux-rdma, April 2020).
 *
 * peerdma's libibverbs has these functions under the version PEERDMA_1.0. They are weak here: a
 * program links to any libibverbs and asks ibv_mr_fd_commands(context), which is 0 where they are
 * missing.
 */
#ifndef PEERDMA_MR_FD_H
#define PEERDMA_MR_FD_H

#include <infiniband/verbs.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What a descriptor is. */
enum ibv_mr_fd_type {
	/* None: addresses are the program's own. */
	IBV_MR_FD_TYPE_NONE = 0,
	/* A dma-buf: addresses are offsets in it. */
	IBV_MR_FD_TYPE_DMABUF = 1,
};

/* Bits of the command mask; the numbers are those of the proposal's enum ib_uverbs_write_cmds. */
enum ibv_mr_fd_command {
	IBV_MR_FD_COMMAND_REG = 41,
	IBV_MR_FD_COMMAND_REREG = 42,
};

/* The commands that the device offers: 1 << IBV_MR_FD_COMMAND_REG | ... */
__attribute__((weak)) uint64_t ibv_query_mr_fd_commands(struct ibv_context *context);

/*
 * Registers `length` bytes from `start`; work requests name the first by `iova`, which must agree
 * with `start` inside a page. NULL with errno: EOPNOTSUPP the device does not offer it; EINVAL
 * addresses, access or fd_type; EBADF and EINVAL no dma-buf; and whatever ibv_reg_mr_iova(3) or
 * ibv_reg_dmabuf_mr(3) gives. The descriptor may be closed afterwards.
 */
__attribute__((weak)) struct ibv_mr *ibv_reg_mr_fd(struct ibv_pd *pd, uint64_t start, size_t length,
						   uint64_t iova, int fd_type, int fd, int access);

/*
 * Changes what `flags` (enum ibv_rereg_mr_flags) names: with IBV_REREG_MR_CHANGE_TRANSLATION the
 * memory, to that of another descriptor or of none. The keys stay. 0, or the codes of
 * ibv_rereg_mr(3) with errno; after any error the region is what it was. Device memory and imported
 * regions are refused.
 */
__attribute__((weak)) int ibv_rereg_mr_fd(struct ibv_mr *mr, int flags, struct ibv_pd *pd,
					  uint64_t start, size_t length, uint64_t iova, int fd_type,
					  int fd, int access);

static inline uint64_t ibv_mr_fd_commands(struct ibv_context *context)
{
	return ibv_query_mr_fd_commands ? ibv_query_mr_fd_commands(context) : 0;
}

#ifdef __cplusplus
}
#endif

#endif
