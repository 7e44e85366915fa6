/*
 * Devices, contexts and memory of the software GPU by NVIDIA's driver library: what they are, what
 * they refuse, and that bytes go where they should: by copies and by an HCA, which registers the
 * GPU's addresses (Peer-Direct) or their dma-buf.
 *
 * With an argument: what becomes of it where descriptors are few.
 */
#include "driver.h"

#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

enum { LENGTH = 1 << 20, PAGE = 4096 };

static unsigned char host[LENGTH], back[LENGTH];

static void pattern(unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		host[i] = (unsigned char)(i * 7 + (i >> 8) + seed);
}

static void devices(void)
{
	int count = 0, version = 0, device = -1, major = 0, rdma = 0, dmabuf = 0;
	char name[100] = "", id[20] = "", uuid[2][16];
	size_t bytes = 0;
	code(INVALID_VALUE, cuInit(1), "flags that are none");
	code(NOT_INITIALIZED, cuDeviceGetCount(&count), "before cuInit");
	must(cuInit(0), "cuInit");
	must(cuDriverGetVersion(&version), "version");
	holds(GUIDE, version >= 12090, "the version is one of CUDA");
	code(CUDA_OK, cuDeviceGetCount(&count), "count devices");
	equal("the default platform", 2, count, "GPUs");
	code(INVALID_VALUE, cuDeviceGetCount(NULL), "no place for the count");
	code(INVALID_DEVICE, cuDeviceGet(&device, count), "a device too many");
	code(INVALID_DEVICE, cuDeviceGet(&device, -1), "a negative device");
	must(cuDeviceGet(&device, 0), "device");
	must(cuDeviceGetName(name, sizeof(name), device), "name");
	holds(GUIDE, strlen(name) > 0, "it has a name");
	must(cuDeviceGetName(name, 5, device), "name");
	equal(GUIDE, 4, strlen(name), "a name that is cut");
	must(cuDeviceGetPCIBusId(id, sizeof(id), device), "bus id");
	holds("the default platform", !strcmp(id, "0000:1A:00.0"), "its place on the bus");
	code(CUDA_OK, cuDeviceGetByPCIBusId(&device, "0000:98:00.0"), "the device at a place");
	equal(GUIDE, 1, device, "which is the second");
	code(INVALID_DEVICE, cuDeviceGetByPCIBusId(&device, "0000:18:00.0"), "the HCA's place");
	code(INVALID_VALUE, cuDeviceGetByPCIBusId(&device, "nowhere"), "what is no place");
	must(cuDeviceGetUuid_v2(uuid[0], 0) || cuDeviceGetUuid_v2(uuid[1], 1), "UUIDs");
	holds(GUIDE, memcmp(uuid[0], uuid[1], 16), "GPUs have UUIDs of their own");
	must(cuDeviceTotalMem_v2(&bytes, 0), "memory");
	equal("the default platform", 1ul << 32, bytes, "bytes of memory");
	must(cuDeviceGetAttribute(&major, 75, 0), "capability");
	holds(GUIDE, major >= 7, "a compute capability");
	must(cuDeviceGetAttribute(&rdma, 116, 0) || cuDeviceGetAttribute(&dmabuf, 124, 0), "RDMA");
	holds(GUIDE, rdma && dmabuf, "GPUDirect RDMA and dma-buf are offered");
	code(INVALID_VALUE, cuDeviceGetAttribute(&major, 9999, 0), "an attribute that is none");
}

static void functions(void)
{
	int status = -1, named = 0;
	void *found = NULL;
	const char *text = NULL;
	code(CUDA_OK, cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status), "find cuMemAlloc");
	holds(GUIDE, found == (void *)cuMemAlloc_v2 && status == 0, "its second version");
	code(CUDA_OK, cuGetProcAddress_v2("cuMemAllocAsync", &found, 11000, 0, &status),
	     "find one that is too new");
	equal("CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT", 2, status, "which is told");
	code(NOT_FOUND, cuGetProcAddress_v2("cuNothing", &found, 12000, 0, NULL), "find nothing");
	holds(GUIDE, !found, "nothing is found");
	code(CUDA_OK, cuGetErrorString(2, &text), "describe an error");
	holds(GUIDE, text && !strcmp(text, "out of memory"), "in words");
	must(cuGetErrorName(710, &text), "the name of what it never answers");
	holds(GUIDE, !strcmp(text, "CUDA_ERROR_ASSERT"), "is that of the header");
	for (int i = 0; i < 1000; i++)
		named += !cuGetErrorName(i, &text) && !cuGetErrorString(i, &text);
	equal("cuda.h", 106, named, "codes have names");
	code(INVALID_VALUE, cuGetErrorString(31337, &text), "a code that is none");
}

static handle contexts(void)
{
	handle primary, again, own, current = &own;
	gpu_address address;
	int device = -1;
	code(INVALID_CONTEXT, cuMemAlloc_v2(&address, 1), "without a context");
	code(INVALID_DEVICE, cuDevicePrimaryCtxRetain(&primary, 7), "of a device that is none");
	must(cuCtxGetCurrent(&current), "current");
	holds(GUIDE, !current, "no context is current");
	code(INVALID_CONTEXT, cuCtxPopCurrent_v2(&current), "nothing to take off");
	code(INVALID_CONTEXT, cuCtxPushCurrent_v2((handle)0x1234), "garbage is no context");
	code(INVALID_CONTEXT, cuCtxSetCurrent(&own), "nor is an address");
	code(INVALID_CONTEXT, cuCtxDestroy_v2((handle)-1), "which cannot be destroyed");
	must(cuDevicePrimaryCtxRetain(&primary, 0), "primary context");
	must(cuDevicePrimaryCtxRetain(&again, 0), "primary context");
	holds(GUIDE, primary == again, "a primary context is shared");
	code(CUDA_OK, cuDevicePrimaryCtxRelease_v2(0), "release it once");
	must(cuCtxCreate_v2(&own, 0, 1), "a context of the second GPU");
	must(cuCtxGetDevice(&device), "its device");
	equal(GUIDE, 1, device, "a new context is current");
	must(cuMemAlloc_v2(&address, PAGE), "memory");
	must(cuCtxPushCurrent_v2(primary), "push");
	must(cuCtxGetDevice(&device), "device");
	equal(GUIDE, 0, device, "the pushed one is current");
	code(CUDA_OK, cuCtxPopCurrent_v2(&current), "pop");
	holds(GUIDE, current == primary, "what was pushed");
	code(CUDA_OK, cuCtxDestroy_v2(own), "destroy the other");
	code(INVALID_VALUE, cuMemFree_v2(address), "its memory went with it");
	code(INVALID_CONTEXT, cuCtxPushCurrent_v2(own), "it is no context any more");
	must(cuCtxSetCurrent(primary), "make the primary one current");
	return primary;
}

static sigjmp_buf touched;

static void on_fault(int signal)
{
	siglongjmp(touched, signal);
}

/* The signal that a processor's touch ends with. */
static int touch(gpu_address address)
{
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER }, before;
	sigaction(SIGSEGV, &action, &before);
	int signal = sigsetjmp(touched, 1);
	if (!signal)
		*(volatile char *)(uintptr_t)address = 1;
	sigaction(SIGSEGV, &before, NULL);
	return signal;
}

static void memory(void)
{
	gpu_address address = 0, other = 0, base = 0;
	size_t free_before = 0, free_after = 0, total = 0, size = 0, pitch = 0;
	must(cuMemGetInfo_v2(&free_before, &total), "info");
	code(INVALID_VALUE, cuMemAlloc_v2(&address, 0), "no bytes");
	code(INVALID_VALUE, cuMemAlloc_v2(NULL, 1), "no place for the address");
	code(OUT_OF_MEMORY, cuMemAlloc_v2(&address, total + 1), "more than there is");
	code(OUT_OF_MEMORY, cuMemAlloc_v2(&address, -1ul), "more than can be");
	must(cuMemAlloc_v2(&address, LENGTH), "allocate");
	must(cuMemGetInfo_v2(&free_after, &total), "info");
	equal(GUIDE, LENGTH, free_before - free_after, "bytes less are free");
	equal(GUIDE, SIGSEGV, touch(address), "a processor's touch faults");
	must(cuMemGetAddressRange_v2(&base, &size, address + 100), "range");
	holds(GUIDE, base == address && size == LENGTH, "an address in the middle is of it");
	code(NOT_FOUND, cuMemGetAddressRange_v2(&base, &size, (uintptr_t)host), "host memory is not");
	pattern(1);
	code(CUDA_OK, cuMemcpyHtoD_v2(address, host, LENGTH), "copy to the GPU");
	code(CUDA_OK, cuMemcpyDtoH_v2(back, address, LENGTH), "and back");
	holds(GUIDE, !memcmp(host, back, LENGTH), "bytes are what they were");
	code(INVALID_VALUE, cuMemcpyHtoD_v2(address + 1, host, LENGTH), "beyond the end");
	code(INVALID_VALUE, cuMemcpyHtoD_v2((uintptr_t)back, host, 8), "to no GPU's address");
	code(INVALID_VALUE, cuMemcpyDtoH_v2(back, (uintptr_t)host, 8), "from none");
	code(INVALID_VALUE, cuMemcpyHtoD_v2(address, NULL, 8), "from nowhere");
	code(INVALID_VALUE, cuMemcpyDtoH_v2((void *)8, address, 8), "to nowhere");
	code(CUDA_OK, cuMemcpyHtoD_v2(0, NULL, 0), "nothing at all");
	must(cuMemAlloc_v2(&other, LENGTH), "allocate");
	code(CUDA_OK, cuMemcpyDtoD_v2(other + 5, address + 10, 1000), "within the GPU");
	memset(back, 0, LENGTH);
	code(CUDA_OK, cuMemcpy((uintptr_t)back, other + 5, 1000), "by addresses alone");
	holds(GUIDE, !memcmp(back, host + 10, 1000), "what was copied there");
	code(CUDA_OK, cuMemsetD32_v2(other, 0x01020304, 100), "fill words");
	code(INVALID_VALUE, cuMemsetD32_v2(other + 1, 1, 1), "at no word");
	code(CUDA_OK, cuMemsetD8_v2(other + 400, 9, LENGTH - 400), "fill bytes");
	must(cuMemcpyDtoH_v2(back, other, LENGTH), "copy");
	holds(GUIDE, back[0] == 4 && back[399] == 1 && back[400] == 9 && back[LENGTH - 1] == 9,
	      "what was filled");
	must(cuMemFree_v2(other), "free");
	code(INVALID_VALUE, cuMemFree_v2(other), "free it again");
	code(INVALID_VALUE, cuMemFree_v2(address + 1), "free its middle");
	code(CUDA_OK, cuMemFree_v2(0), "free nothing");

	must(cuMemAllocPitch_v2(&other, &pitch, 100, 50, 4), "rows");
	holds(GUIDE, pitch >= 100 && pitch % 256 == 0, "rows begin at a multiple");
	struct copy_2d copy = { .from = { .type = 1, .host = host, .pitch = 200 },
				.to = { .type = 2, .device = other, .pitch = pitch, .y = 1 },
				.width = 100,
				.height = 40 };
	code(CUDA_OK, cuMemcpy2D_v2(&copy), "copy rows");
	must(cuMemcpyDtoH_v2(back, other + pitch * 40, 100), "copy");
	holds(GUIDE, !memcmp(back, host + 200 * 39, 100), "the last row");
	copy.height = 51;
	code(INVALID_VALUE, cuMemcpy2D_v2(&copy), "more rows than there are");
	copy.height = 2;
	copy.to.pitch = 50;
	code(INVALID_VALUE, cuMemcpy2D_v2(&copy), "rows that overlap");
	must(cuMemFree_v2(other), "free");
	must(cuMemFree_v2(address), "free");
	must(cuMemGetInfo_v2(&free_after, &total), "info");
	equal(GUIDE, free_before, free_after, "everything is free again");
}

static void host_memory(void)
{
	void *pinned = NULL, *own = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE,
					 MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	gpu_address managed = 0, device = 0;
	unsigned type = 0, is_managed = 0;
	must(cuMemHostAlloc(&pinned, LENGTH, 3), "pinned memory");
	code(INVALID_VALUE, cuMemHostAlloc(&pinned, LENGTH, 64), "flags that are none");
	memset(pinned, 3, LENGTH);
	must(cuPointerGetAttribute(&type, 2, (uintptr_t)pinned), "its type");
	equal("CU_MEMORYTYPE_HOST", 1, type, "pinned memory is the host's");
	must(cuMemAlloc_v2(&device, LENGTH), "memory");
	code(CUDA_OK, cuMemcpyDtoD_v2(device, (uintptr_t)pinned, LENGTH), "a GPU reaches it");
	code(CUDA_OK, cuMemFreeHost(pinned), "free it");
	code(INVALID_VALUE, cuMemFreeHost(pinned), "free it again");
	code(CUDA_OK, cuMemHostRegister_v2(own, 2 * PAGE, 0), "register memory");
	code(ALREADY_REGISTERED, cuMemHostRegister_v2((char *)own + PAGE, PAGE, 0), "a part again");
	code(CUDA_OK, cuMemcpyDtoD_v2((uintptr_t)own, device, 100), "a GPU reaches that too");
	holds(GUIDE, *(char *)own == 3, "and its bytes arrive");
	code(CUDA_OK, cuMemHostUnregister(own), "unregister it");
	code(NOT_REGISTERED, cuMemHostUnregister(own), "once");
	must(cuMemAllocManaged(&managed, LENGTH, 1), "managed memory");
	*(char *)(uintptr_t)managed = 8;
	must(cuMemcpyDtoH_v2(back, managed, 1), "copy");
	holds(GUIDE, back[0] == 8, "both touch managed memory");
	must(cuPointerGetAttribute(&is_managed, 8, managed), "attribute");
	equal(GUIDE, 1, is_managed, "it is managed");
	must(cuMemFree_v2(managed) || cuMemFree_v2(device), "free");
}

static void attributes_of_addresses(handle context)
{
	gpu_address address = 0, start = 0;
	handle found = NULL;
	unsigned type = 0, syncs = 1, rdma = 0;
	uint64_t ids[2] = { 0 };
	size_t size = 0;
	int ordinal = -7;
	must(cuMemAlloc_v2(&address, LENGTH), "memory");
	must(cuPointerGetAttribute(&type, 2, address + 5), "type");
	equal("CU_MEMORYTYPE_DEVICE", 2, type, "its type");
	must(cuPointerGetAttribute(&found, 1, address), "context");
	holds(GUIDE, found == context, "its context");
	must(cuPointerGetAttribute(&ids[0], 7, address) || cuPointerGetAttribute(&ids[1], 7, address + 9),
	     "id");
	holds(GUIDE, ids[0] == ids[1], "one id for all of it");
	must(cuPointerGetAttribute(&rdma, 15, address), "RDMA");
	equal(GUIDE, 1, rdma, "it can be used for RDMA");
	code(INVALID_VALUE, cuPointerGetAttribute(&found, 4, address), "it has no host address");
	code(CUDA_OK, cuPointerSetAttribute(&syncs, 6, address), "have its copies wait");
	code(INVALID_VALUE, cuPointerSetAttribute(&syncs, 7, address), "set what cannot be set");
	int which[] = { 2, 9, 11, 12 };
	void *places[] = { &type, &ordinal, &start, &size };
	code(CUDA_OK, cuPointerGetAttributes(4, which, places, address + 1), "several at once");
	holds(GUIDE, type == 2 && ordinal == 0 && start == address && size == LENGTH, "all right");
	code(CUDA_OK, cuPointerGetAttributes(4, which, places, (uintptr_t)host), "of other memory");
	holds(GUIDE, type == 0 && ordinal == -2 && !start && !size, "of which nothing is known");
	code(INVALID_VALUE, cuPointerGetAttribute(&type, 2, (uintptr_t)host), "one of other memory");
	must(cuMemFree_v2(address), "free");
}

static void write_and_read(struct ibv_mr *mr, uint64_t remote, gpu_address address,
			   const char *what)
{
	struct ibv_mr *local = ibv_reg_mr(pd, host, LENGTH, LOCAL);
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_sge sge = { (uintptr_t)host, LENGTH, local ? local->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = 1,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { remote, mr->rkey } };
	if (!local)
		fail("register host memory");
	post(pair.a, &wr);
	completes("rdma", pair.a_cq, 1, IBV_WC_SUCCESS, "write to %s", what);
	must(cuMemcpyDtoH_v2(back, address, LENGTH), "copy");
	holds("rdma", !memcmp(host, back, LENGTH), "the GPU has what was written");
	must(cuMemsetD8_v2(address, 0x77, LENGTH), "fill");
	wr.wr_id = 2;
	wr.opcode = IBV_WR_RDMA_READ;
	post(pair.a, &wr);
	completes("rdma", pair.a_cq, 2, IBV_WC_SUCCESS, "read from %s", what);
	holds("rdma", host[0] == 0x77 && host[LENGTH - 1] == 0x77, "what the GPU filled");
	end_pair(pair);
	ibv_dereg_mr(local);
}

static void rdma(void)
{
	gpu_address address = 0;
	int fd = -1;
	open_first_device();
	must(cuMemAlloc_v2(&address, LENGTH), "memory");
	struct ibv_mr *mr = ibv_reg_mr(pd, (void *)(uintptr_t)address, LENGTH, EVERYTHING);
	row("Peer-Direct", 0, mr ? 0 : errno, "register a GPU's address");
	if (!mr)
		return;
	pattern(2);
	write_and_read(mr, address, address, "a GPU's address");
	ibv_dereg_mr(mr);

	code(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, address + 1, PAGE, 1, 0), "no page");
	code(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, address, LENGTH + PAGE, 1, 0),
	     "beyond the end");
	code(INVALID_VALUE, cuMemGetHandleForAddressRange(&fd, address, LENGTH, 7, 0),
	     "a kind that is none");
	code(CUDA_OK, cuMemGetHandleForAddressRange(&fd, address, LENGTH, 1, 1), "a dma-buf");
	mr = ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0x1000, fd, EVERYTHING);
	row("ibv_reg_dmabuf_mr", 0, mr ? 0 : errno, "register it");
	if (!mr)
		return;
	close(fd);
	pattern(3);
	write_and_read(mr, 0x1000, address, "a dma-buf");
	ibv_dereg_mr(mr);
	must(cuMemFree_v2(address), "free");
	row("ib_umem_get", EFAULT,
	    POINTER(ibv_dereg_mr, ibv_reg_mr(pd, (void *)(uintptr_t)address, LENGTH, EVERYTHING)),
	    "memory that is free");
}

/* As who keeps many buffers in one allocation exports each. */
static void parts(void)
{
	gpu_address all = 0, middle;
	int fd = -1, same = -1;
	must(cuMemAlloc_v2(&all, 3 * LENGTH), "memory");
	must(cuMemsetD8_v2(all, 0x11, 3 * LENGTH), "fill");
	middle = all + LENGTH;
	code(CUDA_OK, cuMemGetHandleForAddressRange(&fd, middle, LENGTH, 1, 0), "a dma-buf of a part");
	code(CUDA_OK, cuMemGetHandleForAddressRange(&same, middle, LENGTH, 1, 0), "of the same part");
	close(same);
	/* Who measures it so loses nothing. */
	lseek(fd, 0, SEEK_END);
	row("ib_umem_dmabuf_get", EINVAL,
	    POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(pd, 0, LENGTH + PAGE, 0x1000, fd, EVERYTHING)),
	    "beyond the part's end");
	row("ib_umem_dmabuf_get", EINVAL,
	    POINTER(ibv_dereg_mr, ibv_reg_dmabuf_mr(pd, PAGE, LENGTH, 0x1000, fd, EVERYTHING)),
	    "the same by an offset");
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, LENGTH, 0x1000, fd, EVERYTHING);
	row("ibv_reg_dmabuf_mr", 0, mr ? 0 : errno, "register a part");
	if (!mr)
		return;
	close(fd);
	pattern(5);
	write_and_read(mr, 0x1000, middle, "a part");
	ibv_dereg_mr(mr);
	unsigned char *around = malloc(2 * LENGTH);
	must(cuMemcpyDtoH_v2(around, all, LENGTH), "copy");
	must(cuMemcpyDtoH_v2(around + LENGTH, all + 2 * LENGTH, LENGTH), "copy");
	int whole = 1;
	for (size_t i = 0; i < 2 * LENGTH; i++)
		whole &= around[i] == 0x11;
	holds("rdma", whole, "what is around a part is as it was");
	free(around);
	must(cuMemFree_v2(all), "free");
}

static void after_fork(void)
{
	int status = 0, count;
	pid_t child = fork();
	if (!child)
		_exit(cuDeviceGetCount(&count));
	waitpid(child, &status, 0);
	equal(GUIDE, NOT_INITIALIZED, WEXITSTATUS(status), "a child has to begin anew");
}

/* At the limit of descriptors: what is given back can be had again. */
static int few_descriptors(void)
{
	static gpu_address addresses[4096];
	gpu_address again;
	struct allocation shared = { .type = 1, .handle_types = 1, .location = { 1, 0 } };
	uint64_t memory, imported;
	handle other;
	int count = 0, got = 0, fd = -1, last, next;
	begin();
	must(cuMemCreate(&memory, 2 << 20, &shared, 0), "create");
	must(cuMemExportToShareableHandle(&fd, memory, 1, 0), "export");
	while (count < 4096 && !(got = cuMemAlloc_v2(&addresses[count], PAGE)))
		count++;
	code(OUT_OF_MEMORY, got, "descriptors are used up");
	holds(GUIDE, count > 2, "after some allocations");
	for (last = -1; (next = dup(0)) >= 0; last = next)
		;
	code(OUT_OF_MEMORY, cuMemImportFromShareableHandle(&imported, (void *)(intptr_t)fd, 1),
	     "import");
	code(OUT_OF_MEMORY, cuCtxCreate_v2(&other, 0, 1), "a context of a GPU that is not open yet");
	if (last >= 0)
		close(last);
	for (int i = 0; i < count; i++)
		must(cuMemFree_v2(addresses[i]), "free");
	code(CUDA_OK, cuMemAlloc_v2(&again, PAGE), "allocate again");
	return finish();
}

int main(int argc, char **argv)
{
	(void)argv;
	if (argc > 1)
		return few_descriptors();
	load_driver();
	devices();
	functions();
	handle context = contexts();
	memory();
	host_memory();
	attributes_of_addresses(context);
	rdma();
	parts();
	after_fork();
	handle graph;
	code(NOT_SUPPORTED, cuGraphCreate(&graph, 0), "what is not there");
	return finish();
}
