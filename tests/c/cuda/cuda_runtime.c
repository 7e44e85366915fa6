/*
 * CUDA's runtime library over the software GPU: that what it does is the driver's, thread by
 * thread; what it refuses; and that an HCA reaches the memory that it gives. Where versions of
 * CUDA differ, as the library's has it.
 *
 * With the argument `none` where there is no device; with a handle the part of another process.
 */
#include "runtime.h"

#include <pthread.h>
#include <spawn.h>

extern char **environ;

enum { LENGTH = 1 << 16, WIDTH = 100, HEIGHT = 7, DEPTH = 3 };

static unsigned char host[LENGTH], back[LENGTH];

static void pattern(unsigned seed)
{
	for (size_t i = 0; i < LENGTH; i++)
		host[i] = (unsigned char)(i * 7 + (i >> 8) + seed);
}

/* What is in memory of a device. */
static int holds_pattern(const void *memory)
{
	memset(back, 0, LENGTH);
	need(cudaMemcpy(back, memory, LENGTH, TO_HOST), "copy");
	return !memcmp(back, host, LENGTH);
}

static void *of_another_thread(void *device)
{
	static long last;
	last = cudaPeekAtLastError();
	need(cudaGetDevice(device), "device");
	return &last;
}

/* What another thread's last error is, and its device. */
static long elsewhere(int *device)
{
	pthread_t thread;
	void *last;
	if (pthread_create(&thread, NULL, of_another_thread, device) || pthread_join(thread, &last))
		fail("a thread");
	return *(long *)last;
}

static void errors(void)
{
	int count = 7, version = 0, device = 7;
	handle context = &count;
	answers(0, cudaPeekAtLastError(), "no error yet");
	need(cudaRuntimeGetVersion(&version), "version");
	equal(RUNTIME, runtime_version() < 13 ? 12090 : 13050, version,
	      "the version of the interface");
	need(cudaDriverGetVersion(&version), "version");
	holds(RUNTIME, version >= 12090, "the driver is new enough");
	answers(0, cudaGetDeviceCount(&count), "count devices");
	equal("the default platform", 2, count, "GPUs");
	must(cuCtxGetCurrent(&context), "context");
	holds(RUNTIME, !context, "to count them takes no context");
	answers(INVALID_VALUE, cudaGetDeviceCount(NULL), "no place for the count");
	answers(0, cudaGetDeviceCount(&count), "a call that succeeds");
	answers(INVALID_VALUE, cudaPeekAtLastError(), "leaves the last error as it is");
	equal(RUNTIME, 0, elsewhere(&device), "which is this thread's alone");
	equal(RUNTIME, 0, device, "a thread begins with the first device");
	answers(INVALID_VALUE, cudaGetLastError(), "it can be taken");
	answers(0, cudaGetLastError(), "once");
	holds(RUNTIME, !strcmp(cudaGetErrorName(2), "cudaErrorMemoryAllocation"), "a name");
	holds(RUNTIME, !strcmp(cudaGetErrorString(2), "out of memory"), "a description");
	holds(RUNTIME, !strcmp(cudaGetErrorName(31337), "unrecognized error code"), "no code");
}

/* Where fields of cudaDeviceProp are, and where it ends. */
struct layout {
	size_t bus, rdma, end;
};

static void properties(void)
{
	struct layout at = runtime_version() < 13 ? (struct layout){ 584, 748, 1032 }
						  : (struct layout){ 568, 724, 1008 };
	unsigned char found[1040];
	char name[256] = "";
	int capability[2];
	size_t bytes = 0;
	must(cuDeviceGetName(name, sizeof(name), 1) || cuDeviceTotalMem_v2(&bytes, 1), "device");
	must(cuDeviceGetAttribute(&capability[0], 75, 1) ||
		     cuDeviceGetAttribute(&capability[1], 76, 1),
	     "capability");
	memset(found, 0xee, sizeof(found));
	answers(0, cudaGetDeviceProperties_v2(found, 1), "properties");
	holds(RUNTIME, !strcmp((char *)found, name), "the name");
	holds(RUNTIME, !memcmp(found + 288, &bytes, 8), "the memory");
	holds(RUNTIME, !memcmp(found + 360, capability, 8), "the capability");
	equal(RUNTIME, 0x98, found[at.bus], "the bus");
	equal(RUNTIME, 1, found[at.rdma], "GPUDirect RDMA");
	holds(RUNTIME, !found[at.end - 1] && found[at.end] == 0xee, "they end where they do");
	answers(INVALID_DEVICE, cudaGetDeviceProperties_v2(found, 9), "of no device");
	answers(INVALID_VALUE, cudaGetDeviceProperties_v2(NULL, 1), "no place for them");
	if (runtime_version() >= 13)
		return;
	memset(found, 0xee, sizeof(found));
	answers(0, cudaGetDeviceProperties(found, 1), "by the headers of CUDA 11");
	holds(RUNTIME, found[584] == 0x98 && found[728] == 0xee, "they are fewer");
}

static void devices(void)
{
	int device = 7, attribute = 0;
	unsigned flags = 0;
	char id[20] = "";
	answers(INVALID_DEVICE, cudaSetDevice(2), "a device too many");
	answers(INVALID_DEVICE, cudaSetDevice(-1), "a negative device");
	answers(0, cudaSetDevice(1), "the second device");
	must(cuCtxGetDevice(&device), "device");
	equal(RUNTIME, 1, device, "its context is current at once");
	answers(0, cudaSetDevice(0), "the first device");
	need(cudaGetDevice(&device), "device");
	equal(RUNTIME, 0, device, "is the thread's");
	answers(INVALID_VALUE, cudaInitDevice(0, 0, 2), "flags that are none");
	answers(0, cudaInitDevice(1, 0, 0), "a device that is begun");
	need(cudaGetDevice(&device), "device");
	equal(RUNTIME, 0, device, "leaves the thread's as it is");
	answers(0, cudaGetDeviceFlags(&flags), "flags");
	holds(RUNTIME, flags & 8, "host memory is mapped");
	answers(0, cudaDeviceGetAttribute(&attribute, 116, 0), "an attribute");
	equal(RUNTIME, 1, attribute, "GPUDirect RDMA again");
	answers(INVALID_VALUE, cudaDeviceGetAttribute(&attribute, 9999, 0), "one that is none");
	answers(0, cudaDeviceGetPCIBusId(id, sizeof(id), 1), "its place");
	holds("the default platform", !strcmp(id, "0000:98:00.0"), "on the bus");
	answers(0, cudaDeviceGetByPCIBusId(&device, id), "the device there");
	equal(RUNTIME, 1, device, "is the same");
}

/* The driver's state is the runtime's. */
static void with_the_driver(void)
{
	handle primary, own, current;
	void *memory, *other;
	int device = 7, status = 7;
	struct attributes of;
	gpu_address address;
	need(cudaMalloc(&memory, 64), "memory");
	must(cuDevicePrimaryCtxRetain(&primary, 0) || cuCtxGetCurrent(&current), "contexts");
	holds(RUNTIME, primary == current, "the context is the primary one");
	must(cuMemAlloc_v2(&address, 64), "memory");
	answers(0, cudaFree((void *)address), "free what the driver gave");
	code(CUDA_OK, cuMemFree_v2((gpu_address)memory), "and the other way");
	must(cuCtxCreate_v2(&own, 0, 1), "a context of the second GPU");
	answers(0, cudaGetDevice(&device), "where another context is current");
	equal(RUNTIME, 1, device, "the device is that one's");
	need(cudaMalloc(&memory, 64) || cudaPointerGetAttributes(&of, memory), "memory");
	equal(RUNTIME, 1, of.device, "and memory is of it");
	answers(0, cudaDeviceReset(), "a reset leaves it alone");
	answers(0, cudaFree(memory), "with its memory");
	must(cuCtxDestroy_v2(own), "destroy");
	must(cuCtxSetCurrent(NULL), "no context");
	answers(0, cudaGetDevice(&device), "without a context");
	equal(RUNTIME, 0, device, "the thread has its device");
	answers(0, cudaMalloc(&memory, 64), "and a call begins it");
	must(cuCtxGetCurrent(&current), "context");
	holds(RUNTIME, primary == current, "with the primary context");
	answers(0, cudaGetDriverEntryPoint("cuMemAlloc", &other, 0, &status), "find cuMemAlloc");
	holds(RUNTIME, other == (void *)cuMemAlloc_v2 && !status, "its second version");
	answers(0, cudaGetDriverEntryPoint("cuNothing", &other, 0, &status), "find nothing");
	holds(RUNTIME, !other && status == 1, "which is no error");
	answers(0, cudaGetDriverEntryPointByVersion("cuMemAllocAsync", &other, 11000, 0, &status),
		"find one that is too new");
	holds(RUNTIME, !other && status == 2, "which is told");
	need(cudaFree(memory), "free");
}

static void memory(void)
{
	void *a, *b, *none = host;
	size_t free_bytes = 0, total = 0;
	answers(0, cudaMemGetInfo(&free_bytes, &total), "how much there is");
	holds(RUNTIME, free_bytes && free_bytes <= total && total == 1ul << 32, "is known");
	answers(0, cudaMalloc(&none, 0), "no bytes");
	holds(RUNTIME, !none, "are nowhere");
	answers(INVALID_VALUE, cudaMalloc(NULL, 1), "no place for the address");
	answers(OUT_OF_MEMORY, cudaMalloc(&none, 1ul << 40), "more than there is");
	answers(0, cudaFree(NULL), "free nothing");
	answers(INVALID_VALUE, cudaFree(host), "free what is none");
	need(cudaMalloc(&a, LENGTH) || cudaMalloc(&b, LENGTH), "memory");
	pattern(1);
	answers(0, cudaMemcpy(a, host, LENGTH, TO_DEVICE), "to the device");
	answers(0, cudaMemcpy(b, a, LENGTH, WITHIN_DEVICES), "on it");
	holds(RUNTIME, holds_pattern(b), "and from it");
	answers(0, cudaMemcpy(back, host, LENGTH, HOST_TO_HOST), "on the host");
	pattern(2);
	answers(0, cudaMemcpy_ptds(a, host, LENGTH, BY_ADDRESS), "by what the addresses are");
	holds(RUNTIME, holds_pattern(a), "which is right");
	answers(0, cudaMemcpy(NULL, NULL, 0, BY_ADDRESS), "nothing");
	answers(INVALID_DIRECTION, cudaMemcpy(a, b, 1, 5), "a direction that is none");
	answers(INVALID_VALUE, cudaMemcpy(host, a, 1, TO_DEVICE), "the host is no device");
	answers(INVALID_VALUE, cudaMemcpy(a, host, LENGTH + 1, TO_DEVICE), "beyond the end");
	answers(0, cudaMemset(a, 0x1234, LENGTH), "fill");
	memset(host, 0x34, LENGTH);
	holds(RUNTIME, holds_pattern(a), "with bytes");
	answers(INVALID_VALUE, cudaMemset(host, 0, 1), "the host is not filled");
	need(cudaFree(a) || cudaFree(b), "free");
}

static void rows_and_boxes(void)
{
	void *rows_at;
	size_t pitch = 0;
	struct pitched box = { 0 };
	struct extent extent = { WIDTH, HEIGHT, DEPTH };
	answers(0, cudaMallocPitch(&rows_at, &pitch, WIDTH, HEIGHT), "rows");
	holds(RUNTIME, pitch >= WIDTH && pitch % 512 == 0, "are apart");
	pattern(3);
	answers(0, cudaMemcpy2D(rows_at, pitch, host, WIDTH, WIDTH, HEIGHT, TO_DEVICE), "to them");
	memset(back, 0, LENGTH);
	answers(0, cudaMemcpy2D(back, WIDTH, rows_at, pitch, WIDTH, HEIGHT, BY_ADDRESS), "back");
	holds(RUNTIME, !memcmp(host, back, WIDTH * HEIGHT), "the same");
	answers(INVALID_PITCH, cudaMemcpy2D(rows_at, WIDTH - 1, host, WIDTH, WIDTH, 2, TO_DEVICE),
		"rows that are longer than they are apart");
	answers(0, cudaMemset2D(rows_at, pitch, 9, 10, HEIGHT), "fill a part of each");
	need(cudaMemcpy2D(back, WIDTH, rows_at, pitch, WIDTH, HEIGHT, TO_HOST), "copy");
	holds(RUNTIME, back[WIDTH + 9] == 9 && back[WIDTH + 10] == host[WIDTH + 10], "no more");
	answers(0, cudaMalloc3D(&box, extent), "a box");
	holds(RUNTIME, box.width == WIDTH && box.height == HEIGHT, "knows its planes");
	struct box copy = { .from.memory = { host, WIDTH, WIDTH, HEIGHT },
			    .to.memory = box,
			    .extent = extent,
			    .kind = TO_DEVICE };
	answers(0, cudaMemcpy3D(&copy), "copy a box");
	struct extent corner = { 1, 2, DEPTH };
	answers(0, cudaMemset3D(box, 0xaa, corner), "fill a corner of each plane");
	for (int z = 0; z < DEPTH; z++)
		host[z * HEIGHT * WIDTH] = host[(z * HEIGHT + 1) * WIDTH] = 0xaa;
	copy.from.memory = box;
	copy.to.memory = (struct pitched){ back, WIDTH, WIDTH, HEIGHT };
	copy.kind = TO_HOST;
	answers(0, cudaMemcpy3D(&copy), "and back");
	holds(RUNTIME, !memcmp(host, back, WIDTH * HEIGHT * DEPTH), "the same but there");
	copy.from.array = host;
	answers(NOT_SUPPORTED, cudaMemcpy3D(&copy), "arrays are not there");
	need(cudaFree(rows_at) || cudaFree(box.at), "free");
}

static struct attributes about(const void *address)
{
	struct attributes found = { -9, -9, host, host, 7, { 7 } };
	answers(0, cudaPointerGetAttributes(&found, address), "ask about an address");
	equal(RUNTIME, runtime_version() < 13 ? 7 : -1, found.domain, "no domain");
	equal(RUNTIME, runtime_version() < 13 ? 7 : 0, found.zero[0], "and nothing behind it");
	return found;
}

static void addresses(void)
{
	char *memory, *pinned, *managed;
	void *there;
	unsigned flags = 0;
	need(cudaSetDevice(1) || cudaMalloc(&memory, 64) || cudaSetDevice(0), "memory");
	need(cudaHostAlloc(&pinned, 64, 1), "host memory");
	need(cudaMallocManaged(&managed, 64, 1), "managed memory");
	struct attributes of = about(memory + 9);
	holds(RUNTIME, of.type == OF_DEVICE && of.device == 1, "a device's");
	holds(RUNTIME, of.on_device == memory + 9 && !of.on_host, "where it is");
	of = about(pinned + 9);
	holds(RUNTIME, of.type == OF_HOST && of.device == 0, "the host's");
	holds(RUNTIME, of.on_device == pinned + 9 && of.on_host == pinned + 9, "reached by both");
	of = about(managed + 9);
	holds(RUNTIME, of.type == MANAGED && of.on_host == managed + 9, "managed");
	of = about(host);
	holds(RUNTIME, of.type == UNREGISTERED && of.device == -2, "the program's own");
	holds(RUNTIME, !of.on_device && of.on_host == host, "reached by it alone");
	answers(0, cudaHostGetFlags(&flags, pinned), "how it was allocated");
	holds(RUNTIME, flags & 1, "for all devices");
	answers(0, cudaHostGetDevicePointer(&there, pinned, 0), "its address on the device");
	holds(RUNTIME, there == pinned, "is the same");
	answers(0, cudaHostRegister(host, 4096, 0), "register the program's own");
	answers(ALREADY_REGISTERED, cudaHostRegister(host, 4096, 0), "once");
	of = about(host);
	holds(RUNTIME, of.type == OF_HOST, "it is the host's");
	answers(0, cudaHostUnregister(host), "and give it back");
	answers(NOT_REGISTERED, cudaHostUnregister(host), "once");
	answers(0, cudaFreeHost(pinned), "free host memory");
	answers(INVALID_VALUE, cudaFreeHost(pinned), "once");
	need(cudaFree(memory) || cudaFree(managed), "free");
}

static int called;

static void count_up(void *by)
{
	called += *(int *)by;
}

static void count_up_too(handle stream, int status, void *by)
{
	called += stream && !status ? *(int *)by : 1000;
}

static void streams(void)
{
	handle stream, other, start, end, pool;
	int five = 5, capturing = 7;
	unsigned flags = 7;
	float ms = -1;
	void *memory;
	answers(0, cudaStreamCreateWithFlags(&stream, 1), "a stream");
	answers(INVALID_VALUE, cudaStreamCreateWithFlags(&other, 64), "flags that are none");
	answers(0, cudaStreamCreateWithPriority(&other, 0, -1), "another with a priority");
	answers(0, cudaStreamGetFlags(stream, &flags), "its flags");
	equal(RUNTIME, 1, flags, "as it was made");
	need(cudaEventCreate(&start) || cudaEventCreate(&end), "events");
	need(cudaEventRecord(start, stream), "record");
	answers(0, cudaMallocAsync(&memory, LENGTH, stream), "memory in its order");
	answers(0, cudaMemsetAsync(memory, 0x21, LENGTH, stream), "filled");
	answers(0, cudaMemcpyAsync(back, memory, LENGTH, TO_HOST, stream), "copied");
	answers(0, cudaFreeAsync(memory, stream), "and given back");
	answers(0, cudaLaunchHostFunc(stream, count_up, &five), "call a function");
	answers(0, cudaStreamAddCallback(stream, count_up_too, &five, 0), "and another");
	need(cudaEventRecord(end, stream), "record");
	answers(0, cudaStreamWaitEvent(other, end, 0), "let another stream wait");
	answers(0, cudaStreamSynchronize(other), "for all of it");
	equal(RUNTIME, 10, called, "both were called");
	equal(RUNTIME, 0x21, back[LENGTH - 1], "and the bytes are there");
	answers(0, cudaStreamQuery(stream), "nothing is left");
	answers(0, cudaEventQuery(end), "as the event says");
	answers(0, cudaEventElapsedTime(&ms, start, end), "the time between");
	holds(RUNTIME, ms >= 0 && ms < 60000, "is short");
	answers(0, cudaStreamIsCapturing(stream, &capturing), "nothing is captured");
	equal(RUNTIME, 0, capturing, "as is told");
	need(cudaDeviceGetDefaultMemPool(&pool, 0), "pool");
	answers(0, cudaMallocFromPoolAsync(&memory, 64, pool, (handle)2), "by the thread's stream");
	answers(0, cudaFreeAsync(memory, (handle)1), "and by that of all");
	answers(0, cudaStreamSynchronize_ptsz(NULL), "the thread's by none");
	answers(0, cudaEventSynchronize(end), "wait for what is over");
	need(cudaEventDestroy(start) || cudaEventDestroy(end) || cudaStreamDestroy(other), "end");
	answers(0, cudaStreamDestroy(stream), "end the stream");
	answers(INVALID_HANDLE, cudaStreamSynchronize(stream), "it is none any more");
	answers(INVALID_HANDLE, cudaEventQuery((handle)0x5555), "nor is that an event");
}

static void peers(void)
{
	int can = 0;
	void *here, *there;
	answers(0, cudaDeviceCanAccessPeer(&can, 0, 1), "whether a peer is reached");
	equal("the default platform", 1, can, "it is");
	answers(PEER_NOT_ENABLED, cudaDeviceDisablePeerAccess(1), "not yet");
	answers(0, cudaDeviceEnablePeerAccess(1, 0), "reach it");
	answers(PEER_ENABLED, cudaDeviceEnablePeerAccess(1, 0), "once");
	answers(INVALID_DEVICE, cudaDeviceEnablePeerAccess(0, 0), "itself is no peer");
	answers(INVALID_DEVICE, cudaDeviceEnablePeerAccess(7, 0), "nor is what is none");
	need(cudaMalloc(&here, LENGTH) || cudaSetDevice(1) || cudaMalloc(&there, LENGTH), "memory");
	need(cudaSetDevice(0), "device");
	pattern(4);
	need(cudaMemcpy(here, host, LENGTH, TO_DEVICE), "copy");
	answers(0, cudaMemcpyPeer(there, 1, here, 0, LENGTH), "copy to it");
	holds(RUNTIME, holds_pattern(there), "all of it");
	answers(INVALID_DEVICE, cudaMemcpyPeer(there, 9, here, 0, LENGTH), "not to what is none");
	answers(0, cudaDeviceDisablePeerAccess(1), "and leave it");
	need(cudaFree(here) || cudaFree(there), "free");
}

static int part_of_another(const char *text)
{
	void *memory;
	load_runtime();
	need(cudaIpcOpenMemHandle(&memory, from_text(text), 1), "open");
	pattern(5);
	int is_right = holds_pattern(memory);
	need(cudaMemset(memory, 0x77, LENGTH) || cudaIpcCloseMemHandle(memory), "answer");
	return !is_right;
}

static void processes(char *program)
{
	struct ipc_handle shared;
	char text[2 * sizeof(shared) + 1];
	char *arguments[] = { program, text, NULL };
	void *memory;
	pid_t child;
	int status = -1;
	need(cudaMalloc(&memory, LENGTH), "memory");
	pattern(5);
	need(cudaMemcpy(memory, host, LENGTH, TO_DEVICE), "copy");
	answers(INVALID_VALUE, cudaIpcGetMemHandle(&shared, host), "the program's own is not shared");
	answers(0, cudaIpcGetMemHandle(&shared, memory), "a handle of memory");
	to_text(&shared, text);
	if (posix_spawn(&child, program, NULL, NULL, arguments, environ) ||
	    waitpid(child, &status, 0) != child)
		fail("another process");
	equal(RUNTIME, 0, status, "another process finds the bytes");
	memset(host, 0x77, LENGTH);
	holds(RUNTIME, holds_pattern(memory), "and this one what it left");
	need(cudaFree(memory), "free");
}

static void kernels(void)
{
	struct dim3 one = { 1, 2, 3 }, block = { 4, 5, 6 }, got = { 0 };
	static char image[64], on_host;
	size_t shared = 0;
	handle stream = NULL, graph;
	void **binary = __cudaRegisterFatBinary(image);
	holds(RUNTIME, binary != NULL, "an image is taken");
	__cudaRegisterFunction(binary, &on_host, NULL, "_Z5twicePi", -1, NULL, NULL, NULL, NULL,
			       NULL);
	need(__cudaPushCallConfiguration(one, block, 99, (handle)2), "a configuration");
	answers(0, __cudaPopCallConfiguration(&got, &block, &shared, &stream), "comes back");
	holds(RUNTIME, got.z == 3 && block.y == 5 && shared == 99 && stream == (handle)2, "whole");
	answers(MISSING_CONFIGURATION, __cudaPopCallConfiguration(&got, &block, &shared, &stream),
		"once");
	answers(NOT_SUPPORTED, cudaLaunchKernel(&on_host, one, block, NULL, 0, NULL), "a launch");
	answers(NOT_SUPPORTED, cudaGetLastError(), "is the last error");
	__cudaUnregisterFatBinary(binary);
	answers(NOT_SUPPORTED, cudaGraphCreate(&graph, 0), "what is not there");
	answers(NOT_SUPPORTED, cudaGetExportTable(&graph, image), "nor tables");
}

/* A peer writes into memory of cudaMalloc. */
static void rdma(void)
{
	void *memory;
	struct ibv_wc wc;
	open_first_device();
	need(cudaMalloc(&memory, LENGTH), "memory");
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, LENGTH, EVERYTHING);
	struct ibv_mr *local = ibv_reg_mr(pd, host, LENGTH, LOCAL);
	row("Peer-Direct", 0, mr && local ? 0 : errno, "register the device's memory");
	if (!mr || !local)
		return;
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_sge from = { (uintptr_t)host, LENGTH, local->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &from, .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { (uintptr_t)memory, mr->rkey } };
	pattern(6);
	post(pair.a, &wr);
	holds("rdma", wait_for(pair.a_cq, &wc, patience) && !wc.status, "write to it");
	holds("rdma", holds_pattern(memory), "the bytes are there");
	end_pair(pair);
	ibv_dereg_mr(mr);
	ibv_dereg_mr(local);
	need(cudaFree(memory), "free");
}

static void reset(void)
{
	void *memory, *again;
	int device = 7;
	need(cudaSetDevice(1) || cudaMalloc(&memory, 64), "memory");
	answers(0, cudaDeviceSynchronize(), "wait for the device");
	answers(0, cudaDeviceReset(), "reset it");
	answers(0, cudaGetDevice(&device), "the thread");
	equal(RUNTIME, 1, device, "keeps its device");
	answers(0, cudaMalloc(&again, 64), "which begins anew");
	answers(0, cudaFree(again), "as it was");
	need(cudaSetDevice(0), "device");
}

static int no_device(void)
{
	int count = 7;
	void *memory;
	answers(NO_DEVICE, cudaGetDeviceCount(&count), "no device");
	equal(RUNTIME, 0, count, "is none");
	answers(NO_DEVICE, cudaMalloc(&memory, 1), "and has no memory");
	answers(NO_DEVICE, cudaGetLastError(), "as the last error says");
	return finish();
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "none"))
		return part_of_another(argv[1]);
	load_runtime();
	if (argc > 1)
		return no_device();
	errors();
	devices();
	properties();
	with_the_driver();
	memory();
	rows_and_boxes();
	addresses();
	streams();
	peers();
	processes(argv[0]);
	kernels();
	rdma();
	reset();
	return finish();
}
