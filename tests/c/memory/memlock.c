/*
 * The limit on locked memory (RLIMIT_MEMLOCK) and registrations. A real device pins pages and so
 * meets it; the software HCA does where it is told to.
 *
 *   memlock enforce|ignore
 */
#include "rows.h"
#include <linux/capability.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { MEBIBYTE = 1 << 20 };

static const char *source = "Linux ib_umem_get";
static int enforced;
static char *memory;

static void set_limit(rlim_t bytes)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_MEMLOCK, &limit))
		fail("getrlimit");
	limit.rlim_cur = bytes;
	if (setrlimit(RLIMIT_MEMLOCK, &limit))
		fail("setrlimit");
}

/* Who may lock any memory meets no limit. */
static void give_up_capability(void)
{
	struct __user_cap_header_struct header = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct data[2];
	if (syscall(SYS_capget, &header, data))
		fail("capget");
	data[0].effective &= ~(1u << CAP_IPC_LOCK);
	if (syscall(SYS_capset, &header, data))
		fail("capset");
}

static struct ibv_mr *registered(int want, unsigned long length, const char *what)
{
	errno = 0;
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, LOCAL);
	row(source, enforced ? want : 0, mr ? 0 : errno, "register %s", what);
	return mr;
}

static void end(struct ibv_mr *mr)
{
	if (mr && ibv_dereg_mr(mr))
		fail("deregister");
}

static void limited(void)
{
	set_limit(2 * MEBIBYTE);
	struct ibv_mr *first = registered(0, MEBIBYTE, "half of the limit");
	end(registered(ENOMEM, MEBIBYTE + 1, "a byte more than is left"));
	struct ibv_mr *second = registered(0, MEBIBYTE, "the other half, of the same pages");
	end(registered(ENOMEM, 1, "one byte with nothing left"));
	end(first);
	end(registered(0, MEBIBYTE, "what was given back"));
	set_limit(4 * MEBIBYTE);
	end(registered(0, 3 * MEBIBYTE, "as much as a raised limit allows"));
	set_limit(0);
	end(registered(EPERM, 1, "one byte with a limit of none"));
	end(second);
}

int main(int count, char **arguments)
{
	enforced = count > 1 && !strcmp(arguments[1], "enforce");
	memory = mmap(NULL, 8 * MEBIBYTE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1,
		      0);
	if (memory == MAP_FAILED)
		fail("mmap");
	open_first_device();
	int asked = enforced;
	enforced = 0;
	if (!geteuid()) {
		set_limit(0);
		end(registered(0, MEBIBYTE, "with CAP_IPC_LOCK"));
		give_up_capability();
	}
	enforced = asked;
	limited();
	return finish();
}
