// One of the processes that add up vectors by gloo's transport over verbs: RANK of SIZE, which meet
// in files of a folder. Prints `right` for each length whose sums are.
//
// An algorithm does not wait for the completion of its last notification, and its end throws if that
// is not there yet, so none is ended, nor the context, which is not left.
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

using Context = std::shared_ptr<gloo::rendezvous::Context>;

template <template <typename> class Algorithm>
static void add(const char *name, const Context &context, int rank, int size)
{
	for (int length : {1, 1000, 1000000}) {
		auto &sums = *new std::vector<float>(length);
		for (int i = 0; i < length; i++)
			sums[i] = rank + i % 1000;
		(new Algorithm<float>(context, {sums.data()}, length))->run();
		bool right = true;
		for (int i = 0; i < length; i++)
			right &= sums[i] == size * (size - 1) / 2 + size * (i % 1000);
		printf("%s of %d: %s\n", name, length, right ? "right" : "wrong");
	}
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	int rank = atoi(argv[1]), size = atoi(argv[2]);
	gloo::transport::ibverbs::attr device;
	device.name = "peerdma0";
	device.port = 1;
	device.index = 0;
	gloo::rendezvous::FileStore store(argv[3]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, size);
	auto opened = gloo::transport::ibverbs::CreateDevice(device);
	context->connectFullMesh(store, opened);
	add<gloo::AllreduceRingChunked>("ring", context, rank, size);
	add<gloo::AllreduceHalvingDoubling>("halving", context, rank, size);
	exit(0);
}
