//! A window of the virtual GPU's memory that VFIO exports as a dma-buf: stock mlx5_ib registers it
//! and loses it again, by each of the ways in which VFIO takes it away.
//!
//! VFIO wants the GPU in an IOMMU group of its own, so the two functions sit below root ports, on a
//! processor whose host bridges pass peer traffic on. The adapter's own addresses are not
//! translated.

use system::gpu_guest::{GPU_NODE, GpuGuest, Placed, ZEN};
use system::skip;

#[test]
fn a_window_exported_by_vfio_is_reached_until_it_is_revoked() {
    let mut stage = match GpuGuest::with_data_direct("vfio-vram", &["vfio_vram", "data_direct"]) {
        Ok(stage) => stage,
        Err(reason) => skip!("{reason}"),
    };
    stage.plug(Placed::Ports, Some("iommu=pt"));
    ZEN.clone_into(&mut stage.machine.processor);
    let guest = stage.lab.boot(&stage.machine);
    assert_eq!(stage.verdict(&guest), "THRU_HOST_BRIDGE");
    guest.prepare_next_rdma(&["vfio_vram", "data_direct"]);
    // What its own driver exports Data Direct takes.
    guest.passes(&guest.by_next_rdma(&format!("data_direct {GPU_NODE} works")));
    let gpu = stage.gpu;
    let device = format!("/sys/bus/pci/devices/{gpu}");
    guest.output(&format!(
        "echo vfio-pci > {device}/driver_override && echo {gpu} > {device}/driver/unbind && \
         echo {gpu} > /sys/bus/pci/drivers_probe"
    ));
    let group = format!("$(basename $(readlink {device}/iommu_group))");
    guest.passes(&format!("vfio_vram {group} {gpu} plain"));
    guest.passes(&guest.by_next_rdma(&format!("vfio_vram {group} {gpu} direct")));
    // Its own driver finds it as ever.
    guest.output(&format!(
        "echo {gpu} > {device}/driver/unbind && echo > {device}/driver_override && \
         echo {gpu} > /sys/bus/pci/drivers_probe && test -e {device}/drm"
    ));
    guest.assert_quiet();
    drop(guest);
    assert!(stage.serving.alive(), "{}", stage.serving.said());
}
