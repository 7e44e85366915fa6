//! Targets of the crate `dmabuf`.

use crate::memfd::memfd;

/// What the buffer of the fuzzed block is said to have.
const BUFFER_BYTES: u64 = 4096;

/// The control block of a buffer comes from another process: any words may be in it.
pub fn control_block(data: &[u8]) {
    let Some(fd) = memfd(data) else { return };
    if let Ok(control) = dmabuf::Control::open(fd, 7, BUFFER_BYTES) {
        assert_eq!(control.id(), 7, "a control block of another buffer was taken");
        let _ = (control.gpu(), control.born(), control.has_home(), control.exporter_pid());
        let state = control.state();
        let _ = (state.placement(), state.generation(), state.is_revoked(), state.is_closed());
    }
}

/// A valid block.
pub fn control_seeds() -> Vec<Vec<u8>> {
    use std::io::Read;
    use std::os::fd::AsFd;
    let gpu = pcie::Platform::default();
    let gpu = gpu.with_role(pcie::Role::Gpu).next().expect("a GPU").address;
    let placement = dmabuf::Placement::Vram;
    let control = dmabuf::Control::create(7, gpu, placement, BUFFER_BYTES).expect("a memfd");
    let fd = control.as_fd().try_clone_to_owned().expect("a descriptor");
    let mut bytes = Vec::new();
    std::fs::File::from(fd).read_to_end(&mut bytes).expect("readable");
    vec![bytes]
}
