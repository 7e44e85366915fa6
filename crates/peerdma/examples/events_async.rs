//! Completions in an asynchronous program: a channel's descriptor becomes readable, so any reactor
//! can wait for it, here async-io's.
//!
//! ```console
//! $ peerdma run -- cargo run --package peerdma --example events_async
//! ```

use async_io::{Async, block_on};
use peerdma::{Access, CompChannel, Completion, Cq, HostBuffer, Library};
use std::error::Error;
use std::time::Duration;

const MESSAGES: u64 = 8;

/// The next completions of the only queue on a channel.
async fn completions(
    channel: &Async<CompChannel>,
    cq: &Cq,
) -> Result<Vec<Completion>, Box<dyn Error>> {
    let mut out = Vec::new();
    loop {
        // Armed first and polled then: what completes in between is announced.
        cq.arm(false)?;
        if cq.poll(&mut out)? > 0 {
            return Ok(out);
        }
        channel.readable().await?;
        // Takes the announcement. There is none where another task was faster.
        channel.get_ref().wait(Some(Duration::ZERO))?;
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    block_on(exchange())
}

async fn exchange() -> Result<(), Box<dyn Error>> {
    let context = Library::system()?.open(None)?;
    let channel = context.create_comp_channel()?;
    let cq = context.create_cq(64, Some(&channel))?;
    let channel = Async::new(channel)?;
    let pd = context.alloc_pd()?;
    let mr = pd.reg(HostBuffer::new(4096)?, Access::LOCAL_WRITE)?;

    let (left, right) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).build()?);
    let (near, far) = (left.endpoint(), right.endpoint());
    let (left, right) = (left.connect(&far)?, right.connect(&near)?);

    let mut received = 0;
    for message in 0..MESSAGES {
        right.post_recv(message, &[mr.slice(2048..2056)?])?;
        left.post_send(message, &[mr.slice(0..8)?])?;
        // One completion of the send and one of the receive, in whichever order.
        let mut seen = 0;
        while seen < 2 {
            for completion in completions(&channel, &cq).await? {
                completion.result?;
                seen += 1;
            }
        }
        received += 1;
    }
    println!("{received} messages, and not one thread that waits for them");
    Ok(())
}
