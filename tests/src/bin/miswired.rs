//! A software ConnectX whose keys of the Data Direct function reach memory as the adapter itself:
//! what must go wrong where the two functions have different maps. Arguments: the sockets of the
//! function and of the Data Direct function.

use anyhow::{Context as _, Result};
use hca::{Device, DeviceAttr, DeviceConfig, Network};
use mlx5::{ConnectX, DataDirect, Slots};
use pcie::Route;
use registry::{Client, Role};
use std::path::Path;
use std::sync::Arc;
use vfio_user::{Host, serve};

fn main() -> Result<()> {
    mm::guard::install();
    let mut sockets = std::env::args().skip(1);
    let mut socket = || sockets.next().context("two sockets");
    let (own, side) = (socket()?, socket()?);
    let vuid = "MISWIRED";
    let device = Device::open(DeviceConfig {
        attr: DeviceAttr {
            data_direct: true,
            vuid: vuid.into(),
            ..DeviceAttr::new("miswired", 0x0200_0000_0000_0001)
        },
        comm: "miswired".into(),
        registry: Client::connect(Role::Member)?,
        mtu_bytes: None,
        network: Network::Subnet,
        trace: None,
        neighbours: false,
        receive_buffer_bytes: None,
    })?;
    let host = Host::new();
    let slot = (host.clone(), Arc::new(Route::local()));
    let slots = Slots { own: slot.clone(), data_direct: Some(slot) };
    let _side = serve(Path::new(&side), Host::new(), Arc::new(DataDirect::new(vuid)))?;
    let function = ConnectX::new(device, Arc::new(slots), 1 << 30);
    let _own = serve(Path::new(&own), host, Arc::new(function))?;
    println!("serving");
    loop {
        std::thread::park();
    }
}
