//! A dma-buf of a DRM node, registered and written by RDMA: a software GPU's, and the kernel's own
//! in the lab's guest, whose kernel has vgem. One program asks both the same.

use std::time::Duration;
use system::{Counters, Run, lab::Guest, peerdma, skip};

#[test]
fn a_software_gpus_buffer_is_written_and_read_by_rdma() {
    let program = match system::c_program("kernel_dmabuf") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let counters = Counters::new();
    // On a machine with GPUs of its own this is the first beside them.
    let script =
        "exec $PROGRAM /dev/dri/card$(ls /dev/dri | grep -c ^card | awk '{ print $1 - 2 }')";
    Run::hca("sh -c")
        .arg(script)
        .env("PROGRAM", program)
        .env("PEERDMA_COUNTERS", counters.file())
        .finish()
        .ok();
    let to_gpu =
        counters.text().lines().any(|line| line.starts_with("route") && line.contains("BUS_ADDR"));
    assert!(to_gpu, "{}", counters.text());
}

#[test]
fn a_kernel_buffer_is_written_and_read_by_rdma() {
    let program = match system::c_program("kernel_dmabuf") {
        Ok(program) => program,
        Err(reason) => skip!("{reason}"),
    };
    let guest = match Guest::boot(&[&program, peerdma()]) {
        Ok(guest) => guest,
        Err(reason) => skip!("{reason:#}"),
    };
    let limit = Duration::from_secs(120);
    let (status, cards) = guest.script("ls /dev/dri/card0", limit).unwrap();
    if status != 0 {
        skip!("the guest's kernel has no vgem device: {cards}");
    }
    // The guest's rxe holds UDP port 4791 in the first network namespace.
    let script = "unshare -n sh -c 'ip link set lo up; HOME=/tmp peerdma run -- \
                  kernel_dmabuf /dev/dri/card0'";
    let (status, said) = guest.script(script, limit).unwrap();
    assert_eq!(status, 0, "{said}\n{}", guest.console());
    assert!(said.contains("ok"), "{said}");
}
