/*
 * CUDA arrays by NVIDIA's driver library on the software GPU: which there are, what they count for,
 * and that what is copied to a place in one is copied from there.
 */
#include "driver.h"

enum { LENGTH = 1 << 16, WIDTH = 100, HEIGHT = 20, DEPTH = 6 };
enum { HOST = 1, DEVICE, ARRAY, UNIFIED };
enum { BYTE = 0x01, WORD = 0x03, FLOAT = 0x20, NV12 = 0xb0, UNORM_8X4 = 0xc2 };
enum { LAYERED = 1, SURFACE = 2, CUBEMAP = 4, GATHER = 8, SPARSE = 0x40 };

static const handle GARBAGE = (handle)0x5555;

static unsigned char host[LENGTH], back[LENGTH];

static void pattern(void)
{
	for (size_t i = 0; i < LENGTH; i++)
		host[i] = (unsigned char)(i * 7 + (i >> 8));
}

static size_t free_bytes(void)
{
	size_t now, all;
	must(cuMemGetInfo_v2(&now, &all), "free memory");
	return now;
}

/* An array is made, or not, and given back. */
static void made(int want, struct array_3d shape, const char *what)
{
	handle array = GARBAGE;
	code(want, cuArray3DCreate_v2(&array, &shape), what);
	if (!want)
		must(cuArrayDestroy(array), "destroy");
}

static void shapes(void)
{
	int width = 0, layers = 0;
	must(cuDeviceGetAttribute(&width, 21, 0) || cuDeviceGetAttribute(&layers, 29, 0), "limits");
	holds(GUIDE, width >= 1 << 16 && layers >= 2048, "limits of arrays are told");
	made(CUDA_OK, (struct array_3d){ width, 0, 0, BYTE, 1, 0 }, "as wide as may be");
	made(INVALID_VALUE, (struct array_3d){ width + 1, 0, 0, BYTE, 1, 0 }, "wider");
	made(INVALID_VALUE, (struct array_3d){ -1ul, 0, 0, FLOAT, 4, 0 }, "wider than numbers are");
	made(INVALID_VALUE, (struct array_3d){ 0, 0, 0, BYTE, 1, 0 }, "of no width");
	made(CUDA_OK, (struct array_3d){ WIDTH, HEIGHT, 0, FLOAT, 2, 0 }, "of two dimensions");
	made(CUDA_OK, (struct array_3d){ WIDTH, HEIGHT, DEPTH, WORD, 4, SURFACE }, "of three");
	made(INVALID_VALUE, (struct array_3d){ WIDTH, 0, DEPTH, WORD, 4, 0 }, "of none between");
	made(CUDA_OK, (struct array_3d){ WIDTH, 0, DEPTH, WORD, 1, LAYERED }, "of rows as layers");
	made(CUDA_OK, (struct array_3d){ WIDTH, 2, layers, BYTE, 1, LAYERED }, "of many layers");
	made(INVALID_VALUE, (struct array_3d){ WIDTH, 2, layers + 1, BYTE, 1, LAYERED }, "of more");
	made(INVALID_VALUE, (struct array_3d){ WIDTH, 2, 0, BYTE, 1, LAYERED }, "of no layers");
	made(CUDA_OK, (struct array_3d){ 16, 16, 6, BYTE, 4, CUBEMAP }, "a cube");
	made(INVALID_VALUE, (struct array_3d){ 16, 15, 6, BYTE, 4, CUBEMAP }, "which is none");
	made(CUDA_OK, (struct array_3d){ 16, 16, 18, BYTE, 4, CUBEMAP | LAYERED }, "three cubes");
	made(INVALID_VALUE, (struct array_3d){ 16, 16, 18, BYTE, 4, CUBEMAP }, "which is not one");
	made(CUDA_OK, (struct array_3d){ 16, 16, 0, FLOAT, 1, GATHER }, "to gather from");
	made(INVALID_VALUE, (struct array_3d){ 16, 16, 6, FLOAT, 1, GATHER }, "what has no depth");
	made(INVALID_VALUE, (struct array_3d){ 16, 0, 0, FLOAT, 3, 0 }, "three channels");
	made(INVALID_VALUE, (struct array_3d){ 16, 0, 0, 0x77, 1, 0 }, "a format that is none");
	made(CUDA_OK, (struct array_3d){ 16, 0, 0, UNORM_8X4, 4, 0 }, "normalized numbers");
	made(INVALID_VALUE, (struct array_3d){ 16, 0, 0, UNORM_8X4, 1, 0 }, "of other channels");
	made(NOT_SUPPORTED, (struct array_3d){ 16, 16, 0, NV12, 1, 0 }, "video");
	made(NOT_SUPPORTED, (struct array_3d){ 16, 16, 0, BYTE, 1, SPARSE }, "memory that comes later");
	made(INVALID_VALUE, (struct array_3d){ 16, 16, 0, BYTE, 1, 0x1000 }, "flags that are none");
	made(OUT_OF_MEMORY, (struct array_3d){ 1 << 14, 1 << 14, 1 << 6, FLOAT, 4, 0 }, "too much");
}

static void what_is_told(void)
{
	struct array_2d flat = { WIDTH, HEIGHT, FLOAT, 2 }, found;
	struct array_3d deep = { WIDTH, HEIGHT, DEPTH, WORD, 1, SURFACE }, deep_found;
	handle one = NULL, two = NULL, plane;
	size_t before = free_bytes();
	code(INVALID_VALUE, cuArrayCreate_v2(NULL, &flat), "no place for the handle");
	code(INVALID_VALUE, cuArrayCreate_v2(&one, NULL), "nothing described");
	code(CUDA_OK, cuArrayCreate_v2(&one, &flat), "an array");
	must(cuArray3DCreate_v2(&two, &deep), "another");
	holds(GUIDE, before - free_bytes() >= (WIDTH * HEIGHT * 2 + WIDTH * HEIGHT * DEPTH) * 4,
	      "which count as memory");
	must(cuArrayGetDescriptor_v2(&found, one), "describe it");
	holds(GUIDE, !memcmp(&flat, &found, sizeof(flat)), "as it was asked for");
	must(cuArray3DGetDescriptor_v2(&deep_found, one), "in three dimensions");
	holds(GUIDE, deep_found.height == HEIGHT && !deep_found.depth, "of which it has two");
	must(cuArray3DGetDescriptor_v2(&deep_found, two), "the other");
	holds(GUIDE, deep_found.depth == DEPTH && deep_found.flags == SURFACE, "has three");
	code(INVALID_VALUE, cuArrayGetDescriptor_v2(&found, two), "more than two are told of");
	code(INVALID_VALUE, cuArrayGetPlane(&plane, one, 0), "it has no planes of colors");
	code(CUDA_OK, cuArrayDestroy(one), "destroy it");
	code(INVALID_HANDLE, cuArrayDestroy(one), "again");
	code(INVALID_HANDLE, cuArrayGetDescriptor_v2(&found, one), "it is none any more");
	code(INVALID_HANDLE, cuArrayDestroy(GARBAGE), "nor is garbage");
	must(cuArrayDestroy(two), "destroy");
	equal(GUIDE, before, free_bytes(), "everything is free again");
}

static void rows_of_one(handle stream)
{
	struct array_2d words = { 1024, 0, WORD, 1 }, halves = { 1024, 0, 0x10, 1 };
	struct array_2d flat = { 64, 4, BYTE, 1 };
	handle one, two, other, two_rows;
	gpu_address address;
	void *pinned;
	must(cuArrayCreate_v2(&one, &words) || cuArrayCreate_v2(&two, &words), "arrays");
	must(cuArrayCreate_v2(&other, &halves) || cuArrayCreate_v2(&two_rows, &flat), "arrays");
	must(cuMemAlloc_v2(&address, 4096) || cuMemHostAlloc(&pinned, 4096, 0), "memory");
	code(CUDA_OK, cuMemcpyHtoA_v2(one, 0, host, 4096), "to an array");
	code(CUDA_OK, cuMemcpyAtoA_v2(two, 400, one, 40, 400), "to another");
	code(CUDA_OK, cuMemcpyAtoD_v2(address + 8, two, 404, 396), "to addresses");
	code(CUDA_OK, cuMemcpyDtoA_v2(one, 4000, address + 8, 96), "and back");
	code(CUDA_OK, cuMemcpyAtoH_v2(back, one, 3996, 100), "to the host");
	holds(GUIDE, !memcmp(back, host + 3996, 4) && !memcmp(back + 4, host + 44, 96), "all is right");
	memcpy(pinned, host + 100, 4000);
	code(CUDA_OK, cuMemcpyHtoAAsync_v2(two, 96, pinned, 4000, stream), "in a stream");
	code(CUDA_OK, cuMemcpyAtoHAsync_v2(pinned, two, 100, 3996, stream), "and back");
	code(CUDA_OK, cuStreamSynchronize(stream), "in its order");
	holds(GUIDE, !memcmp(pinned, host + 104, 3996), "all is right");
	code(INVALID_VALUE, cuMemcpyHtoA_v2(one, 4, host, 4096), "beyond its end");
	code(INVALID_VALUE, cuMemcpyHtoA_v2(one, -4ul, host, 8), "before its beginning");
	code(INVALID_VALUE, cuMemcpyHtoA_v2(one, 0, NULL, 8), "from nowhere");
	code(INVALID_VALUE, cuMemcpyAtoD_v2((uintptr_t)back, one, 0, 8), "to no GPU's address");
	code(INVALID_VALUE, cuMemcpyAtoA_v2(other, 0, one, 0, 8), "elements of another size");
	code(INVALID_VALUE, cuMemcpyAtoA_v2(two, 0, one, 0, 6), "half an element");
	code(INVALID_VALUE, cuMemcpyHtoA_v2(two_rows, 0, host, 8), "an array of several rows");
	code(INVALID_HANDLE, cuMemcpyHtoA_v2(GARBAGE, 0, host, 8), "no array");
	code(CUDA_OK, cuMemcpyHtoA_v2(one, 4096, NULL, 0), "nothing at all");
	must(cuArrayDestroy(one) || cuArrayDestroy(two) || cuArrayDestroy(other), "destroy");
	must(cuArrayDestroy(two_rows) || cuMemFree_v2(address) || cuMemFreeHost(pinned), "free");
}

static void rows_of_many(handle stream)
{
	struct array_2d shape = { WIDTH, HEIGHT, WORD, 1 };
	handle one, two;
	gpu_address address;
	must(cuArrayCreate_v2(&one, &shape) || cuArrayCreate_v2(&two, &shape), "arrays");
	must(cuMemAlloc_v2(&address, LENGTH), "memory");
	struct copy_2d in = { .from = { .type = HOST, .host = host, .pitch = 512 },
			      .to = { .type = ARRAY, .array = one, .x = 8, .y = 2 },
			      .width = 200,
			      .height = 18 };
	struct copy_2d across = { .from = { .type = ARRAY, .array = one, .x = 12, .y = 3 },
				  .to = { .type = ARRAY, .array = two, .x = 200, .y = 10 },
				  .width = 196,
				  .height = 10 };
	struct copy_2d out = { .from = { .type = ARRAY, .array = two, .x = 200, .y = 10 },
			       .to = { .type = DEVICE, .device = address, .x = 3, .pitch = 256 },
			       .width = 196,
			       .height = 10 };
	code(CUDA_OK, cuMemcpy2D_v2(&in), "rows to an array");
	code(CUDA_OK, cuMemcpy2DUnaligned_v2(&across), "from that to another");
	code(CUDA_OK, cuMemcpy2DAsync_v2(&out, stream), "from that to addresses");
	must(cuStreamSynchronize(stream) || cuMemcpyDtoH_v2(back, address, 2560), "copy");
	holds(GUIDE, !memcmp(back + 3, host + 516, 196), "the first row");
	holds(GUIDE, !memcmp(back + 3 + 9 * 256, host + 516 + 9 * 512, 196), "the last row");
	must(cuMemcpy2D_v2(&(struct copy_2d){ .from = { .type = ARRAY, .array = one },
					      .to = { .type = UNIFIED, .device = (uintptr_t)back },
					      .width = 400,
					      .height = 3 }),
	     "the corner");
	holds(GUIDE, !back[0] && !back[807] && back[808] == host[0], "where nothing was, zeros are");
	in.height = 19;
	code(INVALID_VALUE, cuMemcpy2D_v2(&in), "more rows than there are");
	in.height = 1;
	in.width = 396;
	code(INVALID_VALUE, cuMemcpy2D_v2(&in), "more of a row than there is");
	in.width = 100;
	in.to.x = 6;
	code(INVALID_VALUE, cuMemcpy2D_v2(&in), "in the middle of an element");
	in.to.x = 8;
	in.to.array = GARBAGE;
	code(INVALID_HANDLE, cuMemcpy2D_v2(&in), "to no array");
	in.to.type = 5;
	code(INVALID_VALUE, cuMemcpy2D_v2(&in), "to no kind of memory");
	must(cuArrayDestroy(one) || cuArrayDestroy(two) || cuMemFree_v2(address), "free");
}

static void planes(handle stream)
{
	struct array_3d shape = { 32, 8, DEPTH, BYTE, 4, LAYERED }, row_shape = { 32, 0, 4, BYTE, 1,
										     LAYERED };
	handle one, layers;
	gpu_address address;
	must(cuArray3DCreate_v2(&one, &shape) || cuArray3DCreate_v2(&layers, &row_shape), "arrays");
	must(cuMemAlloc_v2(&address, LENGTH), "memory");
	struct copy_3d in = { .from = { .type = HOST, .host = host, .pitch = 128, .height = 10 },
			      .to = { .type = ARRAY, .array = one, .x = 64, .y = 1, .z = 2 },
			      .width = 64,
			      .height = 7,
			      .depth = 4 };
	struct copy_3d out = { .from = { .type = ARRAY, .array = one, .x = 68, .y = 2, .z = 3 },
			       .to = { .type = DEVICE, .device = address, .pitch = 60, .height = 6 },
			       .width = 60,
			       .height = 6,
			       .depth = 3 };
	code(CUDA_OK, cuMemcpy3D_v2(&in), "planes to an array");
	code(CUDA_OK, cuMemcpy3DAsync_v2(&out, stream), "and from there");
	must(cuStreamSynchronize(stream) || cuMemcpyDtoH_v2(back, address, 1080), "copy");
	holds(GUIDE, !memcmp(back, host + 1280 + 128 + 4, 60), "the first row");
	holds(GUIDE, !memcmp(back + 1020, host + 3 * 1280 + 6 * 128 + 4, 60), "the last row");
	code(CUDA_OK, cuMemcpy3DPeer(&in), "as between peers");
	in.to.z = 3;
	code(INVALID_VALUE, cuMemcpy3D_v2(&in), "more planes than there are");
	in.to.z = 2;
	in.to.lod = 1;
	code(INVALID_VALUE, cuMemcpy3D_v2(&in), "a level of detail");
	in.to.lod = 0;
	in.to.z = -1ul;
	code(INVALID_VALUE, cuMemcpy3D_v2(&in), "before the first plane");
	in = (struct copy_3d){ .from = { .type = HOST, .host = host, .pitch = 32, .height = 1 },
			       .to = { .type = ARRAY, .array = layers },
			       .width = 32,
			       .height = 1,
			       .depth = 4 };
	code(CUDA_OK, cuMemcpy3D_v2(&in), "layers that are rows");
	in.height = 2;
	code(INVALID_VALUE, cuMemcpy3D_v2(&in), "of which each has one");
	must(cuArrayDestroy(one) || cuArrayDestroy(layers) || cuMemFree_v2(address), "free");
}

static void a_context_ends(void)
{
	struct array_2d shape = { WIDTH, HEIGHT, FLOAT, 4 };
	size_t before = free_bytes();
	handle context, array, none;
	must(cuCtxCreate_v2(&context, 0, 0) || cuArrayCreate_v2(&array, &shape), "array");
	must(cuCtxPopCurrent_v2(&none), "pop");
	holds(GUIDE, free_bytes() < before, "an array of another context");
	code(CUDA_OK, cuCtxDestroy_v2(context), "destroy that");
	code(INVALID_HANDLE, cuArrayDestroy(array), "the array went with it");
	equal(GUIDE, before, free_bytes(), "and its memory");
	must(cuCtxSetCurrent(NULL), "no context");
	code(INVALID_CONTEXT, cuArrayCreate_v2(&array, &shape), "without a context");
}

int main(void)
{
	handle stream;
	begin();
	pattern();
	must(cuStreamCreate(&stream, 0), "stream");
	shapes();
	what_is_told();
	rows_of_one(stream);
	rows_of_many(stream);
	planes(stream);
	a_context_ends();
	return finish();
}
