//! A peer writes into the memory of a GPU, which is a dma-buf: no byte passes through host memory.
//!
//! ```console
//! $ peerdma run -- cargo run --package peerdma --example gpu_memory
//! ```
//!
//! The buffer is of peerdma's software GPU. Any exporter's descriptor would do, as of CUDA's
//! `cuMemGetHandleForAddressRange` or `hsa_amd_portable_export_dmabuf`.

use peerdma::{Access, HostBuffer, Library};
use std::error::Error;
use std::os::fd::AsFd;

const LEN: u64 = 1 << 20;

fn main() -> Result<(), Box<dyn Error>> {
    let platform = pcie::Platform::default();
    let registry = registry::Client::connect(registry::Role::Member)?;
    let function = platform.named("gpu0").ok_or("the platform has no GPU")?;
    let vram = gpu::SoftwareGpu::of(function, registry)?.alloc(LEN)?;

    let context = Library::system()?.open(None)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let there = pd.reg_dmabuf(vram.export()?.as_fd(), 0, LEN, 0, rights)?;
    let here = pd.reg(HostBuffer::new(LEN as usize)?, Access::LOCAL_WRITE)?;

    // Both ends are in this program, to be short.
    let (left, right) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).build()?);
    let (near, far) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&far)?, right.connect(&near)?);

    here.write(0, &[0x5a; LEN as usize])?;
    left.post_write(1, &[here.slice(..)?], there.remote())?;
    for completion in cq.wait(None)? {
        completion.result?;
    }
    // As a kernel on the GPU would see it.
    let mut bytes = vec![0; LEN as usize];
    vram.read(0, &mut bytes)?;
    let right = bytes.iter().filter(|byte| **byte == 0x5a).count();
    println!("{right} of {LEN} bytes are in {}", function.address);
    Ok(())
}
