//! Asks the devices of this host what no file tells: whether a driver registers dma-bufs, and, on request, whether memory can be
//! registered and bytes moved.
//!
//! The question about dma-bufs registers nothing: its descriptor is none. A transfer goes from a device to itself.

use ::doctor::Probe;
use peerdma::{Access, Context, HostBuffer, Library, Pd, Qp};
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes that a device writes to itself.
const LOOPBACK_BYTES: usize = 64 << 10;
/// How long that may take. It takes microseconds.
const PATIENCE: Duration = Duration::from_secs(5);

/// Asks every device that this host's libibverbs shows; with `transfer`, also to move bytes.
pub fn devices(transfer: bool) -> Vec<Probe> {
    // Without the library or a device there is nobody to ask: then files must do.
    let Ok(library) = Library::system() else { return Vec::new() };
    let devices = library.devices().unwrap_or_default();
    devices.into_iter().map(|device| ask(&library, device.name, transfer)).collect()
}

fn ask(library: &Library, device: String, transfer: bool) -> Probe {
    let opened = library.open(Some(&device)).and_then(|context| Ok((context.alloc_pd()?, context)));
    match opened {
        Ok((pd, context)) => Probe {
            device,
            registers_dmabuf: dmabuf(&pd),
            loopback: transfer.then(|| loopback(&context, &pd).map_err(|error| error.to_string())),
        },
        Err(error) => {
            let loopback = transfer.then(|| Err(error.to_string()));
            Probe { device, registers_dmabuf: None, loopback }
        }
    }
}

fn dmabuf(pd: &Pd) -> Option<(bool, String)> {
    let says = |word: &str| format!("`ibv_reg_dmabuf_mr` with descriptor -1 says {word}");
    match pd.registers_dmabuf() {
        Ok(true) => Some((true, says("EBADF"))),
        Ok(false) => Some((false, says("EOPNOTSUPP"))),
        Err(_) => None,
    }
}

/// Writes a buffer into another one through a connection of a device to itself, and compares.
fn loopback(context: &Context, pd: &Pd) -> peerdma::Result<u64> {
    let bytes: Vec<u8> = (0..LOOPBACK_BYTES).map(|i| ((i * 31) >> 3) as u8).collect();
    let source = pd.reg(HostBuffer::new(LOOPBACK_BYTES)?, Access::LOCAL_WRITE)?;
    let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
    let target = pd.reg(HostBuffer::new(LOOPBACK_BYTES)?, access)?;
    source.write(0, &bytes)?;
    let cq = context.create_cq(4, None)?;
    let (near, far) = (pd.qp(&cq, &cq).build()?, pd.qp(&cq, &cq).access(access).build()?);
    let (near_end, far_end) = (near.endpoint(), far.endpoint());
    let far: Qp = far.connect(&near_end)?;
    let near: Qp = near.connect(&far_end)?;
    near.post_write(1, &[source.slice(..)?], target.remote())?;
    let mut done = cq.wait(Some(PATIENCE))?;
    done.pop().ok_or(peerdma::Error::NotSupported("no completion came"))?.result?;
    let mut arrived = vec![0; LOOPBACK_BYTES];
    target.read(0, &mut arrived)?;
    drop((near, far));
    if arrived != bytes {
        return Err(peerdma::Error::NotSupported("other bytes arrived than were sent"));
    }
    Ok(LOOPBACK_BYTES as u64)
}

/// Lets the software HCA prove itself: the demo, in a small form. What it said where it failed.
pub fn software_hca() -> Result<(), String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let output = Command::new(program)
        .args(["demo", "--size", "256K", "--json"])
        .stdin(Stdio::null())
        .output()
        .map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(said.lines().next().unwrap_or("the demo failed and said nothing").to_owned())
}
