//! `peerdma connectx`: an adapter for machines that somebody else starts.

use super::adapter::{Adapter, AdapterOptions};
use super::virtual_gpu::ServedGpu;
use crate::args::guest::Connectx;
use crate::console::failure::{Context, Outcome};
use crate::console::style;
use crate::process::supervise::Supervisor;
use vfio_user::Neighbours;

/// Serves it until a signal asks for the end.
pub fn connectx(arguments: &Connectx) -> Outcome {
    // Held back from here on, a signal cannot end the server before it has taken its socket away.
    let supervisor = Supervisor::begin().what("cannot hold signals back")?;
    let neighbours = Neighbours::default();
    let _adapter = Adapter::serve(&AdapterOptions {
        socket: &arguments.socket,
        data_direct: arguments.data_direct_socket.as_deref(),
        port: arguments.port,
        allowed: &arguments.allowed,
        platform: arguments.platform.as_deref(),
        pace: arguments.pace,
        trace: arguments.trace.as_deref(),
        neighbours: &neighbours,
    })?;
    if let Some(socket) = &arguments.data_direct_socket {
        style::errln(format_args!("serving its Data Direct function at {}", socket.display()));
    }
    let gpu = arguments.gpu_socket.as_deref();
    let _gpu = gpu
        .map(|socket| ServedGpu::serve(socket, arguments.gpu_memory, &neighbours))
        .transpose()?;
    if let Some(socket) = gpu {
        style::errln(format_args!("serving a virtual GPU at {}", socket.display()));
    }
    style::errln(format_args!("serving a ConnectX at {}", arguments.socket.display()));
    supervisor.wait_for_end();
    Ok(0)
}
