//! GPU memory by the HCA's second PCIe function (Data Direct), which a ConnectX-8 has and peerdma's
//! own device when it is shown as one:
//!
//! ```console
//! $ peerdma run --model connectx -- cargo run --package peerdma --example data_direct
//! ```

use peerdma::{Access, HostBuffer, Library};
use std::error::Error;
use std::os::fd::AsFd;

const LEN: u64 = 64 << 10;

fn main() -> Result<(), Box<dyn Error>> {
    let context = Library::system()?.open(None)?;
    let Some(function) = context.data_direct_path()? else {
        return Err(format!("{} has no Data Direct function", context.name()).into());
    };
    println!("{} reads and writes GPU memory by {}", context.name(), function.display());

    let platform = pcie::Platform::default();
    let registry = registry::Client::connect(registry::Role::Member)?;
    let gpu = platform.named("gpu0").ok_or("the platform has no GPU")?;
    let vram = gpu::SoftwareGpu::of(gpu, registry)?.alloc(LEN)?;

    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let there = pd.reg_dmabuf_data_direct(vram.export()?.as_fd(), 0, LEN, 0, rights)?;
    let here = pd.reg(HostBuffer::new(LEN as usize)?, Access::LOCAL_WRITE)?;

    let (left, right) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).build()?);
    let (near, far) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&far)?, right.connect(&near)?);

    vram.write(0, &[7; LEN as usize])?;
    left.post_read(1, &[here.slice(..)?], there.remote())?;
    for completion in cq.wait(None)? {
        completion.result?;
    }
    let mut bytes = vec![0; LEN as usize];
    here.read(0, &mut bytes)?;
    let right = bytes.iter().filter(|byte| **byte == 7).count();
    println!("{right} of {LEN} bytes were read");
    Ok(())
}
