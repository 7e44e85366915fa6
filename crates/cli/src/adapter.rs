//! A software ConnectX on a socket: an HCA of its own, and the PCI function that shows it to a virtual machine.

use crate::failure::{Context, Failure, Outcome};
use hca::{Device, DeviceAttr, DeviceConfig, Network};
use mlx5::ConnectX;
use registry::{Client, Role};
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use vfio_user::{Host, Server};

/// An adapter that is served. It ends with the value.
pub struct Adapter {
    _server: Server,
}

impl Adapter {
    /// Serves a new one at `socket`.
    pub fn serve(socket: &Path, trace: Option<&Path>) -> Outcome<Adapter> {
        mm::guard::install();
        let open = |path: &Path| {
            let what = format!("cannot write a trace to {}", path.display());
            link::Trace::append(path).map(Arc::new).what(what)
        };
        let trace = trace.map(open).transpose()?;
        let registry =
            Client::connect(Role::Member).what("cannot join the adapters of this user")?;
        let device = Device::open(DeviceConfig {
            attr: DeviceAttr::new("connectx", guid(socket)),
            comm: "peerdma".to_owned(),
            registry,
            mtu_bytes: None,
            network: Network::Subnet,
            trace,
            receive_buffer_bytes: None,
        })
        .what("cannot open the software HCA")?;
        let host = Host::new();
        let function = Arc::new(ConnectX::new(device, Arc::new(host.clone())));
        let server = vfio_user::serve(socket, host, function).map_err(|error| {
            let failure = Failure::new(format_args!("cannot serve at {}", socket.display()));
            match error.kind() {
                ErrorKind::AddrInUse => failure
                    .because("somebody serves there already, or it is no socket")
                    .remedy("name another path"),
                _ => failure.because(error),
            }
        })?;
        Ok(Adapter { _server: server })
    }
}

/// A GUID that the adapter at this place has each time, and no other here: locally administered, as no vendor's is.
fn guid(socket: &Path) -> u64 {
    let mut hash = blake3::Hasher::new();
    hash.update(&std::fs::read("/etc/machine-id").unwrap_or_default());
    hash.update(&rustix::process::getuid().as_raw().to_le_bytes());
    let place = std::path::absolute(socket).unwrap_or_else(|_| socket.to_owned());
    hash.update(place.as_os_str().as_encoded_bytes());
    let [a, b, c, d, e, f, ..] = *hash.finalize().as_bytes();
    u64::from_be_bytes([a & 0xfc | 2, b, c, 0xff, 0xfe, d, e, f])
}
