//! On-demand paging: memory is registered without being pinned, and pages come as the device
//! touches them, also those that have moved into a GPU's memory.
//!
//! ```console
//! $ peerdma run -- cargo run --package peerdma --example odp
//! ```

use peerdma::{Access, Cq, HostBuffer, Library, Mr, Qp};
use std::error::Error;

const LEN: usize = 1 << 20;

/// Copies all of `from` into `to` by RDMA, and gives the last byte of it.
fn write(qp: &Qp, cq: &Cq, from: &Mr, to: &Mr, byte: u8) -> Result<u8, peerdma::Error> {
    from.write(0, &[byte; LEN])?;
    qp.post_write(1, &[from.slice(..)?], to.remote())?;
    for completion in cq.wait(None)? {
        completion.result?;
    }
    let mut last = [0];
    to.read(LEN as u64 - 1, &mut last)?;
    Ok(last[0])
}

fn main() -> Result<(), Box<dyn Error>> {
    let context = Library::system()?.open(None)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::ON_DEMAND;
    let paged = pd.reg(HostBuffer::new(LEN)?, rights)?;
    let pinned = pd.reg(HostBuffer::new(LEN)?, Access::LOCAL_WRITE)?;

    let (left, right) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).build()?);
    let (near, far) = (left.endpoint(), right.endpoint());
    let (left, _right) = (left.connect(&far)?, right.connect(&near)?);

    let byte = write(&left, &cq, &pinned, &paged, 1)?;
    println!("pages that were not there: {byte} was written");
    match paged.migrate_to_gpu(0) {
        Ok(pages) => {
            let byte = write(&left, &cq, &pinned, &paged, 2)?;
            println!("{pages} pages in the GPU's memory: {byte} was written");
        }
        // Another library, or no right to userfaultfd.
        Err(error) => println!("no page moves into a GPU's memory: {error}; {}", error.remedy()),
    }
    Ok(())
}
