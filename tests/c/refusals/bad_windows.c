/*
 * Memory windows (ibv_alloc_mw(3), ibv_bind_mw(3)): what is refused at once and with which errno,
 * what fails on the way and with which completion, and that right ones do their work.
 */
#include "rows.h"

static struct ibv_pd *foreign;
static char *memory;
static struct ibv_mr *source, *open_mr, *theirs;

static struct ibv_mw *window(struct ibv_pd *domain, enum ibv_mw_type type)
{
	struct ibv_mw *mw = ibv_alloc_mw(domain, type);
	if (!mw)
		fail("a memory window");
	return mw;
}

/* A bind of the second page of the open region, for writing. */
static struct ibv_send_wr bind_of(struct ibv_mw *mw)
{
	struct ibv_send_wr wr = { .wr_id = 100,
				  .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED };
	wr.bind_mw.mw = mw;
	wr.bind_mw.rkey = ibv_inc_rkey(mw->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ open_mr, (uintptr_t)memory + 4096, 4096,
							  IBV_ACCESS_REMOTE_WRITE };
	return wr;
}

static struct ibv_send_wr write_to(struct ibv_sge *sge, uint64_t address, uint32_t rkey)
{
	struct ibv_send_wr wr = { .wr_id = 101,
				  .sg_list = sge,
				  .num_sge = 1,
				  .opcode = IBV_WR_RDMA_WRITE,
				  .send_flags = IBV_SEND_SIGNALED };
	*sge = (struct ibv_sge){ (uintptr_t)source->addr, 64, source->lkey };
	wr.wr.rdma.remote_addr = address;
	wr.wr.rdma.rkey = rkey;
	return wr;
}

/* Binds through `qp`, which must work, and gives the key. */
static uint32_t bound(struct pair pair, struct ibv_mw *mw)
{
	struct ibv_send_wr wr = bind_of(mw);
	post(pair.a, &wr);
	completes("IBA 10.6.7.2", pair.a_cq, 100, IBV_WC_SUCCESS, "a bind");
	return wr.bind_mw.rkey;
}

/* What the peer's WRITE under `rkey` comes to. */
static void writes(struct pair pair, const char *source_, enum ibv_wc_status want, uint64_t address,
		   uint32_t rkey, const char *what)
{
	struct ibv_sge sge;
	struct ibv_send_wr wr = write_to(&sge, address, rkey);
	post(pair.b, &wr);
	completes(source_, pair.b_cq, 101, want, "%s", what);
}

static void at_once(void)
{
	struct pair pair = new_pair(IBV_QPT_RC);
	struct ibv_mw *one = window(pd, IBV_MW_TYPE_1), *two = window(pd, IBV_MW_TYPE_2),
		      *far = window(foreign, IBV_MW_TYPE_1);
	struct ibv_send_wr wr, *bad;
	struct ibv_mw_bind bind = { .wr_id = 1,
				    .bind_info = { open_mr, (uintptr_t)memory, 4096,
						   IBV_ACCESS_REMOTE_WRITE } };
	for (int type = -1; type < 5; type++)
		row("ib_uverbs_alloc_mw", type == 1 || type == 2 ? 0 : EINVAL,
		    POINTER(ibv_dealloc_mw, ibv_alloc_mw(pd, type)), "a window of type %d", type);
	equal("man ibv_query_device", 1, limits.max_mw > 0, "max_mw");
	unsigned caps = IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_MEM_WINDOW_TYPE_2B |
			IBV_DEVICE_MEM_MGT_EXTENSIONS;
	equal("man ibv_query_device", caps,
	      limits.device_cap_flags & (caps | IBV_DEVICE_MEM_WINDOW_TYPE_2A), "device_cap_flags");
	row("man ibv_bind_mw", EINVAL, ibv_bind_mw(pair.a, two, &bind), "ibv_bind_mw of type 2");
	row("man ibv_bind_mw", EPERM, ibv_bind_mw(pair.a, far, &bind),
	    "ibv_bind_mw with a region of another PD");
	bind.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	row("IBA o10-36.2.2", EINVAL, ibv_bind_mw(pair.a, one, &bind), "ibv_bind_mw, zero-based");
	bind.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_WRITE;
	bind.send_flags = 1 << 20;
	row("man ibv_post_send", EINVAL, ibv_bind_mw(pair.a, one, &bind),
	    "ibv_bind_mw with an unknown send flag");
	uint32_t before = one->rkey;
	equal("man ibv_bind_mw", before, one->rkey, "a refused ibv_bind_mw leaves the key");
	wr = bind_of(one);
	row("mlx5_post_send", EINVAL, ibv_post_send(pair.a, &wr, &bad), "a posted bind of type 1");
	wr = bind_of(two);
	wr.bind_mw.bind_info.mr = NULL;
	row("mlx5_post_send", EINVAL, ibv_post_send(pair.a, &wr, &bad),
	    "a posted bind to no region");
	wr = bind_of(two);
	wr.bind_mw.bind_info.mr = theirs;
	row("mlx5_post_send", EPERM, ibv_post_send(pair.a, &wr, &bad),
	    "a posted bind to a region of another PD");
	wr = bind_of(two);
	wr.bind_mw.mw = NULL;
	row("man ibv_post_send", EINVAL, ibv_post_send(pair.a, &wr, &bad),
	    "a posted bind of no window");
	row("man ibv_dealloc_pd", EBUSY, ibv_dealloc_pd(foreign),
	    "a PD with a window and a region");
	struct pair ud = new_pair(IBV_QPT_UD);
	wr = bind_of(two);
	row("IBA table 96", EINVAL, ibv_post_send(ud.a, &wr, &bad), "a bind on UD");
	end_pair(ud);
	end_pair(pair);
	ibv_dealloc_mw(one);
	ibv_dealloc_mw(two);
	ibv_dealloc_mw(far);
}

/* Posts a wrong bind on a fresh pair; the QP ends with it. */
static void bind_fails(struct ibv_send_wr wr, const char *what)
{
	struct pair pair = new_pair(IBV_QPT_RC);
	post(pair.a, &wr);
	completes("IBA 10.6.7.2, 11.6.2", pair.a_cq, 100, IBV_WC_MW_BIND_ERR, "%s", what);
	equal("IBA 10.3.1.7", IBV_QPS_ERR, state_of(pair.a), "%s: the QP is in ERR", what);
	end_pair(pair);
}

static void binds(void)
{
	struct ibv_mw *mw = window(pd, IBV_MW_TYPE_2), *far = window(foreign, IBV_MW_TYPE_2);
	struct ibv_mr *no_bind = ibv_reg_mr(pd, memory, BUFFER, EVERYTHING);
	struct ibv_mr *readable = ibv_reg_mr(pd, memory, BUFFER, IBV_ACCESS_MW_BIND);
	struct ibv_send_wr wr = bind_of(mw);
	wr.bind_mw.bind_info.mr = no_bind;
	bind_fails(wr, "a region without MW_BIND");
	wr.bind_mw.bind_info.mr = readable;
	bind_fails(wr, "a writing window over a region without local write");
	wr = bind_of(mw);
	wr.bind_mw.bind_info.length = BUFFER - 4095;
	bind_fails(wr, "one byte over the end");
	wr.bind_mw.bind_info.addr = (uintptr_t)memory - 1;
	wr.bind_mw.bind_info.length = 10;
	bind_fails(wr, "one byte before the start");
	wr.bind_mw.bind_info.addr = -8ull;
	bind_fails(wr, "across the end of the address space");
	wr = bind_of(mw);
	wr.bind_mw.bind_info.length = 0;
	bind_fails(wr, "a window of type 2 to nothing");
	wr = bind_of(mw);
	wr.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_MW_BIND;
	bind_fails(wr, "a right that windows do not have");
	wr = bind_of(far);
	wr.bind_mw.bind_info.mr = theirs;
	bind_fails(wr, "a window of another PD than the QP");
	wr = bind_of(mw);
	struct pair pair = new_pair(IBV_QPT_RC);
	uint32_t key = bound(pair, mw);
	wr.bind_mw.rkey = ibv_inc_rkey(key);
	post(pair.a, &wr);
	completes("IBA o10-37.2.30", pair.a_cq, 100, IBV_WC_MW_BIND_ERR,
		  "a window of type 2 that is bound");
	end_pair(pair);
	ibv_dealloc_mw(mw);
	ibv_dealloc_mw(far);
	ibv_dereg_mr(no_bind);
	ibv_dereg_mr(readable);
}

static void type_2(void)
{
	uint64_t start = (uintptr_t)memory + 4096;
	struct ibv_mw *mw = window(pd, IBV_MW_TYPE_2);
	struct pair pair = new_pair(IBV_QPT_RC), other = new_pair(IBV_QPT_RC);
	uint32_t key = bound(pair, mw);
	memset(source->addr, 0x77, 64);
	writes(pair, "IBA 10.6.7.2", IBV_WC_SUCCESS, start, key, "a WRITE through a window");
	holds("IBA 10.6.7.2",
	      memory[4095] == 0 && memory[4096] == 0x77 && memory[4159] == 0x77 &&
		      memory[4160] == 0,
	      "its bytes arrived");
	row("IBA 10.6.7.2.6", EBUSY, ibv_dereg_mr(open_mr), "deregister a region with a window");
	equal("IBA 10.6.7.2.6", IBV_REREG_MR_ERR_CMD,
	      ibv_rereg_mr(open_mr, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, LOCAL),
	      "change a region with a window");
	writes(other, "IBA 10.6.7.2 (2B)", IBV_WC_REM_ACCESS_ERR, start, key,
	       "a WRITE through a window of another QP");
	writes(pair, "IBA 10.6.7.2", IBV_WC_SUCCESS, start + 4096 - 64, key,
	       "a WRITE up to the end");
	struct ibv_send_wr wr = { .wr_id = 100,
				  .opcode = IBV_WR_LOCAL_INV,
				  .send_flags = IBV_SEND_SIGNALED,
				  .invalidate_rkey = key };
	post(pair.a, &wr);
	completes("IBA 10.6.7.2.4", pair.a_cq, 100, IBV_WC_SUCCESS, "local invalidate");
	mw->rkey = key;
	key = bound(pair, mw);
	struct ibv_send_wr inv = { .wr_id = 101,
				   .opcode = IBV_WR_SEND_WITH_INV,
				   .send_flags = IBV_SEND_SIGNALED,
				   .invalidate_rkey = key };
	receive(pair.a, 200, memory, 0, open_mr->lkey);
	post(pair.b, &inv);
	completes("IBA 9.4.1.1.1", pair.b_cq, 101, IBV_WC_SUCCESS, "SEND with invalidate");
	struct ibv_wc wc;
	holds("IBA 9.4.1.1.1",
	      wait_for(pair.a_cq, &wc, 5) && wc.status == IBV_WC_SUCCESS &&
		      wc.wc_flags & IBV_WC_WITH_INV && wc.invalidated_rkey == key,
	      "the receive tells which key");
	writes(pair, "IBA 10.6.7.2.4", IBV_WC_REM_ACCESS_ERR, start, key,
	       "a WRITE through an invalidated window");
	end_pair(other);
	end_pair(pair);
	pair = new_pair(IBV_QPT_RC);
	mw->rkey = key;
	key = bound(pair, mw);
	writes(pair, "IBA 10.6.7.2", IBV_WC_REM_ACCESS_ERR, start + 4096 - 63, key,
	       "a WRITE one byte over the end");
	end_pair(pair);
	pair = new_pair(IBV_QPT_RC);
	mw->rkey = key;
	key = bound(pair, mw);
	row("man ibv_alloc_mw", 0, ibv_dealloc_mw(mw), "release a bound window");
	writes(pair, "man ibv_alloc_mw", IBV_WC_REM_ACCESS_ERR, start, key,
	       "a WRITE through a released window");
	end_pair(pair);
	/* Zero-based: the peer counts from the window's start. */
	pair = new_pair(IBV_QPT_RC);
	mw = window(pd, IBV_MW_TYPE_2);
	wr = bind_of(mw);
	wr.bind_mw.bind_info.mw_access_flags |= IBV_ACCESS_ZERO_BASED;
	post(pair.a, &wr);
	completes("IBA 10.6.7.2", pair.a_cq, 100, IBV_WC_SUCCESS, "a zero-based bind");
	writes(pair, "IBA 10.6.7.2", IBV_WC_SUCCESS, 64, wr.bind_mw.rkey, "a WRITE to offset 64");
	equal("IBA 10.6.7.2", 0x77, memory[4096 + 64], "it is there");
	writes(pair, "IBA 10.6.7.2", IBV_WC_REM_ACCESS_ERR, start, wr.bind_mw.rkey,
	       "a WRITE to the region's address");
	end_pair(pair);
	ibv_dealloc_mw(mw);
}

static void type_1(void)
{
	struct ibv_mw *mw = window(pd, IBV_MW_TYPE_1);
	struct pair pair = new_pair(IBV_QPT_RC), other = new_pair(IBV_QPT_RC);
	struct ibv_mw_bind bind = { .wr_id = 100,
				    .send_flags = IBV_SEND_SIGNALED,
				    .bind_info = { open_mr, (uintptr_t)memory + 4096, 4096,
						   IBV_ACCESS_REMOTE_WRITE } };
	uint32_t first = mw->rkey;
	row("man ibv_bind_mw", 0, ibv_bind_mw(pair.a, mw, &bind), "ibv_bind_mw");
	equal("man ibv_bind_mw", ibv_inc_rkey(first), mw->rkey, "the window has its next key");
	completes("man ibv_bind_mw", pair.a_cq, 100, IBV_WC_SUCCESS, "its completion");
	writes(other, "IBA 10.6.7.2", IBV_WC_SUCCESS, (uintptr_t)memory + 4096, mw->rkey,
	       "a WRITE through another QP of the PD");
	uint32_t second = mw->rkey;
	row("man ibv_bind_mw", 0, ibv_bind_mw(pair.a, mw, &bind), "ibv_bind_mw again");
	completes("man ibv_bind_mw", pair.a_cq, 100, IBV_WC_SUCCESS, "its completion");
	writes(other, "IBA 10.6.7.2", IBV_WC_REM_ACCESS_ERR, (uintptr_t)memory + 4096, second,
	       "a WRITE under the old key");
	bind.bind_info.length = 0;
	row("man ibv_bind_mw", 0, ibv_bind_mw(pair.a, mw, &bind),
	    "ibv_bind_mw of length 0 unbinds");
	completes("man ibv_bind_mw", pair.a_cq, 100, IBV_WC_SUCCESS, "its completion");
	writes(pair, "man ibv_bind_mw", IBV_WC_REM_ACCESS_ERR, (uintptr_t)memory + 4096, mw->rkey,
	       "a WRITE through the unbound window");
	end_pair(other);
	end_pair(pair);
	ibv_dealloc_mw(mw);
	/* The queue pair that bound a window of type 2 goes first. */
	pair = new_pair(IBV_QPT_RC);
	mw = window(pd, IBV_MW_TYPE_2);
	bound(pair, mw);
	end_pair(pair);
	pair = new_pair(IBV_QPT_RC);
	bound(pair, mw);
	end_pair(pair);
	ibv_dealloc_mw(mw);
}

int main(void)
{
	open_first_device();
	foreign = ibv_alloc_pd(context);
	memory = calloc(1, BUFFER);
	source = ibv_reg_mr(pd, malloc(64), 64, LOCAL);
	open_mr = ibv_reg_mr(pd, memory, BUFFER, LOCAL | IBV_ACCESS_MW_BIND);
	theirs = ibv_reg_mr(foreign, memory, BUFFER, LOCAL | IBV_ACCESS_MW_BIND);
	if (!foreign || !source || !open_mr || !theirs)
		fail("memory");
	at_once();
	binds();
	type_2();
	type_1();
	row("man ibv_dereg_mr", 0, ibv_dereg_mr(open_mr), "no window is bound any more");
	ibv_dereg_mr(source);
	ibv_dereg_mr(theirs);
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(foreign), "nothing is left in the other PD");
	row("man ibv_dealloc_pd", 0, ibv_dealloc_pd(pd), "nothing is left in the PD");
	ibv_close_device(context);
	return finish();
}
