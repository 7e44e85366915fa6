/*
 * What peerdma's libibverbs offers beyond verbs. A program that must also run with other libraries
 * looks the functions up with dlsym(RTLD_DEFAULT, …).
 */
#ifndef PEERDMA_H
#define PEERDMA_H

#include <stddef.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Moves the pages from addr on, length bytes, into the memory of a GPU of the platform; 0 is the
 * first. The addresses stay good: a touch by a processor brings a page home, an HCA with an
 * on-demand region reaches it where it is or has it brought to host memory. Pages that are in a
 * GPU's memory already, are registered otherwise, or are not in private, anonymous memory that may
 * be written stay where they are. Returns how many pages moved; -1 with errno: EINVAL (no whole
 * pages), EFAULT (none that could move), ENOMEM (the GPU is full), ENODEV (no such GPU, or a forked
 * child), EPERM (no right to userfaultfd(2) for faults of system calls).
 */
ssize_t peerdma_migrate_to_gpu(unsigned int gpu, void *addr, size_t length);

/* Brings those pages home. Returns how many came; -1 with errno EINVAL (no whole pages). */
ssize_t peerdma_migrate_to_host(void *addr, size_t length);

#ifdef __cplusplus
}
#endif

#endif
