//! A virtual GPU on a socket, for a virtual machine.

use super::adapter::cannot_serve;
use crate::console::failure::{Context, Outcome};
use std::path::Path;
use std::sync::Arc;
use vfio_user::{Host, Neighbours, Server};
use vgpu::VirtualGpu;

/// A GPU that is served. It ends with the value.
pub struct ServedGpu {
    _server: Server,
}

impl ServedGpu {
    /// Serves a new one with so much memory at `socket`, which `neighbours` reach.
    pub fn serve(socket: &Path, memory_mib: u32, neighbours: &Neighbours) -> Outcome<ServedGpu> {
        let host = Host::beside(neighbours);
        let function = VirtualGpu::new(host.clone(), u64::from(memory_mib) << 20)
            .what("cannot make a virtual GPU")?;
        let server = vfio_user::serve(socket, host, Arc::new(function))
            .map_err(|error| cannot_serve(socket, error))?;
        Ok(ServedGpu { _server: server })
    }
}
