/*
 * A program that blocks every signal, SIGSEGV and SIGBUS too, before the library can hear of it.
 * The engine meets memory that is gone in its threads, and must turn that into a completion error
 * all the same.
 */
#include "rows.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { BYTES = 64 << 10 };

static char *memory;
static struct ibv_mr *mr;
static struct pair pair;

/* Around the library's pthread_sigmask. */
static int block_everything(void)
{
	uint64_t all = ~0ull;
	return syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, sizeof(all));
}

static int segv_is_blocked(void)
{
	uint64_t now = 0;
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, NULL, &now, sizeof(now));
	return now >> (SIGSEGV - 1) & 1;
}

static void *write_from_gone_memory(void *where)
{
	holds("this test", segv_is_blocked(), where);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)memory, mr->rkey } };
	post(pair.a, &wr);
	completes("IBA 11.6.2", pair.a_cq, 9, IBV_WC_LOC_PROT_ERR,
		  "a write from memory that is gone: %s", (char *)where);
	return NULL;
}

static void fresh_gone_memory(void)
{
	memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	mr = memory == MAP_FAILED ? NULL : ibv_reg_mr(pd, memory, BYTES, EVERYTHING);
	if (!mr || mprotect(memory, BYTES, PROT_NONE))
		fail("memory");
	pair = new_pair(IBV_QPT_RC);
}

static void end_memory(void)
{
	end_pair(pair);
	ibv_dereg_mr(mr);
	munmap(memory, BYTES);
}

int main(int count, char **arguments)
{
	if (count == 1) {
		/* A mask survives execve. */
		if (block_everything())
			fail("rt_sigprocmask");
		execl("/proc/self/exe", arguments[0], "masked", NULL);
		fail("execl");
	}
	holds("this test", segv_is_blocked(), "inherited from before the program");
	open_first_device();
	fresh_gone_memory();
	pthread_attr_t attr;
	sigset_t all;
	pthread_t thread;
	sigfillset(&all);
	pthread_attr_init(&attr);
	if (pthread_attr_setsigmask_np(&attr, &all) ||
	    pthread_create(&thread, &attr, write_from_gone_memory, "a thread that began with it"))
		fail("a thread");
	pthread_join(thread, NULL);
	end_memory();

	/*
	 * By the functions of the C library, in the middle of a thread's life: the library hears of
	 * it.
	 */
	fresh_gone_memory();
	sigprocmask(SIG_SETMASK, &all, NULL);
	struct ibv_sge sge = { (uintptr_t)memory, BYTES, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 9,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)memory, mr->rkey } };
	post(pair.a, &wr);
	completes("IBA 11.6.2", pair.a_cq, 9, IBV_WC_LOC_PROT_ERR, "a write after sigprocmask");
	end_memory();
	return finish();
}
