//! Two programs, one of which writes into the other's memory. In two shells, here or on two
//! machines:
//!
//! ```console
//! $ peerdma run -- cargo run --package peerdma --example write
//! $ peerdma run -- cargo run --package peerdma --example write -- 127.0.0.1
//! ```
//!
//! They meet over TCP to tell each other where they are; the text itself goes by RDMA.

use peerdma::{Access, Endpoint, HostBuffer, Library, RemoteSlice};
use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

const PORT: u16 = 18515;
const TEXT: &str = "hello from the other side";

fn main() -> Result<(), Box<dyn Error>> {
    let context = Library::system()?.open(None)?;
    let pd = context.alloc_pd()?;
    let cq = context.create_cq(16, None)?;
    let mr = pd.reg(HostBuffer::new(4096)?, Access::LOCAL_WRITE | Access::REMOTE_WRITE)?;
    let idle = pd.qp(&cq, &cq).build()?;

    let peer = std::env::args().nth(1);
    let stream = match &peer {
        Some(host) => TcpStream::connect((host.as_str(), PORT))?,
        None => TcpListener::bind(("0.0.0.0", PORT))?.accept()?.0,
    };
    let mut peer_says = BufReader::new(stream.try_clone()?).lines();
    let mut hear = || peer_says.next().ok_or("the peer has gone")?.map_err(Box::<dyn Error>::from);
    let tell = |line: String| writeln!(&stream, "{line}");

    let RemoteSlice { addr, len, rkey } = mr.remote();
    tell(format!("{} {addr} {len} {rkey}", idle.endpoint()))?;
    let line = hear()?;
    let words: Vec<&str> = line.split(' ').collect();
    let [endpoint, addr, len, rkey] = words[..] else { return Err(line.into()) };
    let target = RemoteSlice { addr: addr.parse()?, len: len.parse()?, rkey: rkey.parse()? };
    let qp = idle.connect(&endpoint.parse::<Endpoint>()?)?;
    // Nobody sends before both are connected.
    tell("connected".into())?;
    hear()?;

    if peer.is_some() {
        let len = TEXT.len() as u64;
        mr.write(0, TEXT.as_bytes())?;
        qp.post_write(1, &[mr.slice(..len)?], target.slice(..len)?)?;
        for completion in cq.wait(None)? {
            completion.result?;
        }
        println!("{len} bytes written");
        // The peer's processor took no part in it: it needs a message.
        tell("written".into())?;
        hear()?;
    } else {
        hear()?;
        let mut text = [0; TEXT.len()];
        mr.read(0, &mut text)?;
        println!("{}", String::from_utf8_lossy(&text));
        tell("read".into())?;
    }
    Ok(())
}
