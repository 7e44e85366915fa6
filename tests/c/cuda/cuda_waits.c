/*
 * Streams that write words of memory and wait for them, by NVIDIA's driver library on the software
 * GPU: what they compare, who sets the words, and what becomes of those that are never set.
 *
 * With an argument: a program that ends while a stream of its own waits.
 */
#include "driver.h"

#include <pthread.h>
#include <spawn.h>
#include <sys/mman.h>

enum { LENGTH = 1 << 16, PAGE = 4096 };
enum { GEQ, EQ, AND, NOR, FLUSH = 1 << 30 };
enum { WAIT_32 = 1, WRITE_32, REMOTE_WRITES, WAIT_64, WRITE_64, BARRIER };

static const uint64_t TOP = 1ull << 63, ALL = ~0ull;

/* Words of the GPU's, and of the host's that it reaches. */
static gpu_address words;
static volatile uint64_t *pinned;

static gpu_address of(volatile void *place)
{
	return (uintptr_t)place;
}

/* Long enough for a stream to go on where it should not. */
static void give_time(void)
{
	usleep(3000);
}

static void note(void *place)
{
	++*(int *)place;
}

static void told_by_the_device(void)
{
	static const int offered[] = { 92, 93, 94, 98, 122, 123 };
	int value = 0;
	for (unsigned i = 0; i < sizeof(offered) / sizeof(*offered); i++) {
		must(cuDeviceGetAttribute(&value, offered[i], 0), "attribute");
		equal(GUIDE, 1, value, "attribute %d", offered[i]);
	}
	must(cuDeviceGetAttribute(&value, 117, 0), "attribute");
	equal("CUflushGPUDirectRDMAWritesOptions", 3, value, "ways to flush what peers wrote");
}

static void refused(handle stream)
{
	gpu_address managed;
	uint64_t own = 0;
	must(cuMemAllocManaged(&managed, PAGE, 1), "managed memory");
	code(INVALID_VALUE, cuStreamWaitValue32_v2(stream, words + 2, 0, EQ), "no word");
	code(INVALID_VALUE, cuStreamWaitValue64_v2(stream, words + 4, 0, EQ), "no word of 64 bits");
	code(INVALID_VALUE, cuStreamWriteValue64_v2(stream, words + 4, 0, 0), "nor one to write");
	code(INVALID_VALUE, cuStreamWaitValue32_v2(stream, 0, 0, EQ), "nowhere");
	code(INVALID_VALUE, cuStreamWaitValue64_v2(stream, of(&own), 0, EQ), "memory that is not known");
	code(INVALID_VALUE, cuStreamWriteValue32_v2(stream, words + LENGTH, 0, 0), "beyond the end");
	code(INVALID_VALUE, cuStreamWaitValue32_v2(stream, managed, 0, EQ), "managed memory");
	code(INVALID_VALUE, cuStreamWaitValue32_v2(stream, words, 0, 4), "a comparison that is none");
	code(INVALID_VALUE, cuStreamWaitValue64_v2(stream, words, 0, 1u << 31), "a flag that is none");
	code(INVALID_VALUE, cuStreamWriteValue32_v2(stream, words, 0, 1), "no flag of this version");
	code(CUDA_OK, cuStreamWriteValue32(stream, words, 0, 1), "but of the first");
	code(INVALID_VALUE, cuStreamWriteValue32(stream, words, 0, 2), "which has no more");
	code(INVALID_HANDLE, cuStreamWaitValue32_v2((handle)0x5555, words, 0, EQ), "no stream");
	must(cuMemFree_v2(managed) || cuStreamSynchronize(stream), "free");
}

static const struct comparison {
	const char *what;
	unsigned flags;
	uint64_t value, before, after;
	int bits;
} comparisons[] = {
	{ "not before", GEQ, 7, 6, 7, 32 },
	{ "not before, behind the greatest number", GEQ, 0xfffffff0, 0xffffffef, 2, 32 },
	{ "not before, and remote writes", GEQ | FLUSH, 7, 0, 900, 32 },
	{ "equal", EQ, 7, 8, 7, 32 },
	{ "any bit", AND, 6, 9, 4, 32 },
	{ "any other bit clear", NOR, 0xffff, 0xffff0000, 0xfffe0000, 32 },
	{ "not before, of 64 bits", GEQ, TOP, TOP - 1, TOP, 64 },
	{ "not before, round in 64 bits", GEQ, ALL, ALL - 1, 1, 64 },
	{ "equal in 64 bits", EQ | FLUSH, TOP | 1, 1, TOP | 1, 64 },
	{ "any of 64 bits", AND, TOP, TOP - 1, TOP, 64 },
	{ "any other of 64 bits clear", NOR, 1, ALL, ALL - 2, 64 },
};

static void compare(handle stream, const struct comparison *one)
{
	must(cuMemcpyHtoD_v2(words, &one->before, 8), "set the word");
	code(CUDA_OK, one->bits == 32 ? cuStreamWaitValue32_v2(stream, words, one->value, one->flags) :
					cuStreamWaitValue64_v2(stream, words, one->value, one->flags),
	     one->what);
	give_time();
	code(NOT_READY, cuStreamQuery(stream), "it waits");
	must(cuMemcpyHtoD_v2(words, &one->after, 8), "set the word");
	code(CUDA_OK, cuStreamSynchronize(stream), "until then");
}

static void *store_later(void *unused)
{
	(void)unused;
	give_time();
	pinned[0] = 41;
	give_time();
	pinned[0] = 42;
	return NULL;
}

/* A thread of the program's stores the word, in host memory. */
static void by_a_thread(handle stream)
{
	pthread_t thread;
	pinned[0] = 0;
	pinned[1] = 0;
	pthread_create(&thread, NULL, store_later, NULL);
	code(CUDA_OK, cuStreamWaitValue64_v2(stream, of(pinned), 42, EQ), "wait for host memory");
	must(cuMemcpyDtoHAsync_v2((void *)&pinned[1], of(pinned), 8, stream), "copy");
	code(CUDA_OK, cuStreamSynchronize(stream), "a thread sets it");
	equal(GUIDE, 42, pinned[1], "what was there then");
	pthread_join(thread, NULL);
}

/* What frees memory comes after all work, as on hardware. */
static void freed_behind(handle stream)
{
	pthread_t thread;
	gpu_address address;
	must(cuMemAlloc_v2(&address, PAGE), "memory");
	pinned[0] = 0;
	must(cuStreamWaitValue64_v2(stream, of(pinned), 42, EQ), "wait");
	must(cuMemsetD32Async(address, 1, PAGE / 4, stream), "fill");
	pthread_create(&thread, NULL, store_later, NULL);
	code(CUDA_OK, cuMemFree_v2(address), "free memory that a stream will use");
	equal(GUIDE, 42, pinned[0], "when it went on");
	code(CUDA_OK, cuStreamSynchronize(stream), "and has used it");
	pthread_join(thread, NULL);
}

static void write_remote(struct pair pair, struct ibv_mr *from, struct ibv_mr *to, size_t at,
			 size_t length)
{
	struct ibv_sge sge = { (uintptr_t)from->addr + at, length, from->lkey };
	struct ibv_send_wr wr = { .wr_id = at,
				  .sg_list = &sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .wr.rdma = { words + at, to->rkey } };
	post(pair.a, &wr);
}

/* An HCA writes what is to be read and then the word, into the GPU's memory. */
static void by_an_hca(handle stream)
{
	static char source[LENGTH], found[LENGTH];
	open_first_device();
	memset(source, 0x3c, LENGTH);
	*(uint32_t *)source = 5;
	must(cuMemsetD8_v2(words, 0, LENGTH), "clear");
	must(cuMemHostRegister_v2(found, LENGTH, 0), "register");
	struct ibv_mr *to = ibv_reg_mr(pd, (void *)(uintptr_t)words, LENGTH, EVERYTHING);
	struct ibv_mr *from = ibv_reg_mr(pd, source, LENGTH, LOCAL);
	row("Peer-Direct", 0, to && from ? 0 : errno, "register the GPU's memory");
	if (!to || !from)
		return;
	struct pair pair = new_pair(IBV_QPT_RC);
	code(CUDA_OK, cuStreamWaitValue32_v2(stream, words, 5, GEQ | FLUSH), "wait for the HCA");
	must(cuMemcpyDtoHAsync_v2(found, words, LENGTH, stream), "copy");
	give_time();
	code(NOT_READY, cuStreamQuery(stream), "which wrote nothing yet");
	write_remote(pair, from, to, 64, LENGTH - 64);
	completes("rdma", pair.a_cq, 64, IBV_WC_SUCCESS, "write the data");
	give_time();
	code(NOT_READY, cuStreamQuery(stream), "the data is not the word");
	write_remote(pair, from, to, 0, 4);
	completes("rdma", pair.a_cq, 0, IBV_WC_SUCCESS, "write the word");
	code(CUDA_OK, cuStreamSynchronize(stream), "it goes on");
	holds(GUIDE, found[64] == 0x3c && found[LENGTH - 1] == 0x3c, "and has the data");
	end_pair(pair);
	ibv_dereg_mr(to);
	ibv_dereg_mr(from);
	must(cuMemHostUnregister(found), "unregister");
}

static void side_by_side(handle stream, handle other)
{
	gpu_address more;
	uint64_t seen = 0;
	must(cuMemsetD8_v2(words, 0, 64), "clear");
	must(cuStreamWaitValue32_v2(stream, words, 1, EQ), "wait");
	must(cuStreamWriteValue64_v2(stream, words + 8, TOP | 3, 0), "write");
	code(CUDA_OK, cuMemAlloc_v2(&more, PAGE), "memory is there while a stream waits");
	must(cuMemsetD32Async(more, 9, PAGE / 4, other), "fill");
	code(CUDA_OK, cuStreamSynchronize(other), "another stream goes on");
	must(cuMemcpyDtoH_v2(&seen, words + 8, 8), "copy");
	equal(GUIDE, 0, seen, "nothing behind the wait is done");
	must(cuStreamWaitValue64_v2(other, words + 8, TOP, AND), "wait for that stream");
	must(cuStreamWriteValue32_v2(other, words + 16, 77, 0), "write");
	code(NOT_READY, cuStreamQuery(other), "now both wait");
	pinned[0] = 1;
	must(cuMemcpyHtoD_v2(words, (void *)pinned, 8), "set the word");
	code(CUDA_OK, cuStreamSynchronize(other), "one lets the other go on");
	must(cuMemcpyDtoH_v2(&seen, words + 8, 8), "copy");
	holds(GUIDE, seen == (TOP | 3), "64 bits are written");
	seen = ALL;
	must(cuMemcpyDtoH_v2(&seen, words + 16, 4), "copy");
	equal(GUIDE, 77, (unsigned)seen, "32 bits are written");
	must(cuMemFree_v2(more), "free");
	code(CUDA_OK, cuStreamWaitValue32(NULL, words, 1, EQ), "the default stream waits too");
	code(CUDA_OK, cuStreamSynchronize(NULL), "for what is so already");
}

static void batches(handle stream)
{
	struct mem_op operations[] = {
		{ .kind = WRITE_32, .address = words, .value = 1 },
		{ .kind = REMOTE_WRITES },
		{ .kind = WAIT_64, .address = of(pinned), .value = 2, .flags = EQ },
		{ .kind = BARRIER, .own_flags = 1 },
		{ .kind = WRITE_64, .address = of(pinned + 1), .value = TOP },
		{ .kind = WAIT_32, .address = words, .value = 1, .flags = AND },
	};
	static struct mem_op many[256];
	pinned[0] = pinned[1] = 0;
	for (int i = 0; i < 256; i++)
		many[i] = operations[0];
	code(INVALID_VALUE, cuStreamBatchMemOp_v2(stream, 256, many, 0), "too many operations");
	code(INVALID_VALUE, cuStreamBatchMemOp_v2(stream, 1, NULL, 0), "none where some should be");
	code(INVALID_VALUE, cuStreamBatchMemOp_v2(stream, 1, many, 1), "flags that are none");
	code(INVALID_VALUE, cuStreamBatchMemOp(stream, 6, operations, 0), "no barrier in version 1");
	many[254].kind = 9;
	must(cuMemsetD8_v2(words, 0, 64), "clear");
	code(INVALID_VALUE, cuStreamBatchMemOp_v2(stream, 255, many, 0), "an operation that is none");
	must(cuStreamSynchronize(stream) || cuMemcpyDtoH_v2((void *)pinned, words, 8), "copy");
	equal(GUIDE, 0, pinned[0], "nothing of such a batch is done");
	code(CUDA_OK, cuStreamBatchMemOp_v2(stream, 6, operations, 0), "a batch");
	give_time();
	code(NOT_READY, cuStreamQuery(stream), "waits in its middle");
	equal(GUIDE, 0, pinned[1], "and wrote nothing behind");
	pinned[0] = 2;
	code(CUDA_OK, cuStreamSynchronize(stream), "it goes on");
	holds(GUIDE, pinned[1] == TOP, "to its end");
	code(CUDA_OK, cuStreamBatchMemOp(stream, 254, many, 0), "as many as there may be");
	must(cuStreamSynchronize(stream), "wait");
}

static void a_stream_is_destroyed(void)
{
	handle stream;
	int noted = 0;
	must(cuStreamCreate(&stream, 1), "stream");
	pinned[0] = 0;
	must(cuStreamWaitValue64_v2(stream, of(pinned), 1, EQ), "wait");
	must(cuLaunchHostFunc(stream, note, &noted), "note");
	code(CUDA_OK, cuStreamDestroy_v2(stream), "destroy a stream that waits");
	give_time();
	equal(GUIDE, 0, noted, "it still waits");
	pinned[0] = 1;
	code(CUDA_OK, cuCtxSynchronize(), "until the word is set");
	equal(GUIDE, 1, noted, "and its work is done");
}

/* A context of its own, which dies of what it does. */
static handle own_context(handle *stream)
{
	handle context;
	must(cuCtxCreate_v2(&context, 0, 0) || cuStreamCreate(stream, 1), "context");
	return context;
}

static void memory_is_gone(void)
{
	void *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	handle stream, other, context = own_context(&stream);
	gpu_address address;
	int noted = 0;
	must(cuMemHostRegister_v2(own, PAGE, 0), "register");
	must(cuStreamWaitValue32_v2(stream, of(own), 1, EQ), "wait");
	must(cuLaunchHostFunc(stream, note, &noted), "note");
	munmap(own, PAGE);
	code(ILLEGAL_ADDRESS, cuStreamSynchronize(stream), "memory that is unmapped");
	code(ILLEGAL_ADDRESS, cuCtxSynchronize(), "the context died of it");
	code(ILLEGAL_ADDRESS, cuStreamWaitValue32_v2(stream, words, 1, EQ), "and waits no more");
	code(ILLEGAL_ADDRESS, cuMemAlloc_v2(&address, PAGE), "nor has it memory");
	code(ILLEGAL_ADDRESS, cuStreamCreate(&other, 0), "nor streams");
	code(ILLEGAL_ADDRESS, cuLaunchHostFunc(stream, note, &noted), "nor does it call functions");
	equal(GUIDE, 0, noted, "what was behind it is not done");
	code(CUDA_OK, cuCtxDestroy_v2(context), "destroy it");

	context = own_context(&stream);
	must(cuStreamCreate(&other, 1) || cuMemAllocAsync(&address, PAGE, stream), "memory");
	must(cuMemsetD32Async(address, 0, 1, stream), "clear");
	must(cuStreamWaitValue32_v2(stream, address, 1, EQ), "wait");
	code(CUDA_OK, cuMemFreeAsync(address, other), "free memory that a stream waits for");
	code(ILLEGAL_ADDRESS, cuStreamSynchronize(stream), "the wait ends");
	code(CUDA_OK, cuCtxDestroy_v2(context), "destroy the context");
}

/* What would have set the word is not done any more, and another stream of the context waits. */
static void another_stream_dies(handle outside)
{
	void *own = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	handle stream, other, third, event, context;
	gpu_address more;
	int noted = 0;
	pinned[0] = pinned[1] = 0;
	must(cuEventCreate(&event, 2), "event");
	must(cuStreamWaitValue64_v2(outside, of(pinned + 1), 1, EQ), "wait outside the context");
	must(cuEventRecord(event, outside), "record");
	context = own_context(&stream);
	must(cuStreamCreate(&other, 1) || cuStreamCreate(&third, 1), "streams");
	must(cuMemAlloc_v2(&more, PAGE) || cuMemHostRegister_v2(own, PAGE, 0), "memory");
	must(cuStreamWaitValue32_v2(stream, of(own), 1, EQ), "wait");
	must(cuStreamWriteValue64_v2(stream, of(pinned), 1, 0), "write");
	must(cuStreamWaitValue64_v2(other, of(pinned), 1, EQ), "let another stream wait for it");
	must(cuLaunchHostFunc(other, note, &noted), "note");
	must(cuStreamWaitEvent(third, event, 0), "and one for another context");
	give_time();
	munmap(own, PAGE);
	code(ILLEGAL_ADDRESS, cuStreamSynchronize(other), "what it waits for is never written");
	code(ILLEGAL_ADDRESS, cuStreamSynchronize(third), "nor is another context waited for");
	code(ILLEGAL_ADDRESS, cuCtxSynchronize(), "nothing waits any more");
	code(CUDA_OK, cuMemFree_v2(more), "nor does what comes after all work");
	equal(GUIDE, 0, pinned[0] + noted, "and nothing behind it is done");
	code(CUDA_OK, cuCtxDestroy_v2(context), "destroy it");
	code(NOT_READY, cuStreamQuery(outside), "the other context's stream waits on");
	pinned[1] = 1;
	must(cuStreamSynchronize(outside) || cuEventDestroy_v2(event), "until the word is set");
}

static void a_context_is_destroyed(handle stream)
{
	handle inside, event, reached, context = own_context(&inside);
	int noted = 0, went_on = 0;
	pinned[0] = 0;
	must(cuEventCreate(&event, 2), "event");
	must(cuStreamWaitValue64_v2(inside, of(pinned), 1, EQ), "wait");
	must(cuLaunchHostFunc(inside, note, &noted) || cuEventRecord(event, inside), "record");
	must(cuStreamWaitEvent(stream, event, 0), "let a stream of another context wait for it");
	must(cuLaunchHostFunc(stream, note, &went_on), "note");
	code(NOT_READY, cuStreamQuery(stream), "which it does");
	code(CUDA_OK, cuCtxDestroy_v2(context), "destroy a context whose stream waits");
	equal(GUIDE, 0, noted, "what was behind it is not done");
	code(CUDA_OK, cuStreamSynchronize(stream), "the other context lives");
	equal(GUIDE, 1, went_on, "and goes on");

	must(cuEventCreate(&reached, 2), "event");
	must(cuStreamWaitValue64_v2(stream, of(pinned), 1, EQ), "wait");
	must(cuEventRecord(reached, stream), "record");
	context = own_context(&inside);
	must(cuStreamWaitEvent(inside, reached, 0), "the other way round");
	code(CUDA_OK, cuCtxDestroy_v2(context), "a context that waits for another's stream");
	code(NOT_READY, cuEventQuery(reached), "which still waits");
	pinned[0] = 1;
	code(CUDA_OK, cuStreamSynchronize(stream), "until the word is set");
	must(cuEventDestroy_v2(reached), "destroy");
}

static void a_process_ends(const char *program)
{
	extern char **environ;
	char *arguments[] = { (char *)program, "end", NULL };
	int status = -1;
	pid_t child;
	if (posix_spawn(&child, program, NULL, NULL, arguments, environ))
		fail("another process");
	waitpid(child, &status, 0);
	equal(GUIDE, 0, status, "a process ends while a stream waits");
}

int main(int argc, char **argv)
{
	handle stream, other;
	begin();
	must(cuMemAlloc_v2(&words, LENGTH) || cuMemHostAlloc((void **)&pinned, PAGE, 0), "memory");
	must(cuStreamCreate(&stream, 1) || cuStreamCreate(&other, 1), "streams");
	if (argc > 1) {
		must(cuStreamWaitValue32_v2(stream, words, 1, EQ), "wait");
		must(cuStreamWaitValue64_v2(NULL, of(pinned), 1, EQ), "wait");
		return 0;
	}
	told_by_the_device();
	refused(stream);
	for (unsigned i = 0; i < sizeof(comparisons) / sizeof(*comparisons); i++)
		compare(stream, &comparisons[i]);
	by_a_thread(stream);
	freed_behind(stream);
	by_an_hca(stream);
	side_by_side(stream, other);
	batches(stream);
	a_stream_is_destroyed();
	memory_is_gone();
	another_stream_dies(stream);
	a_context_is_destroyed(stream);
	a_process_ends(argv[0]);
	return finish();
}
