//! Targets of the crate `hca`.

use hca::directory::{Directory, Reader};
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// A directory whose tables are large; targets write over its words.
fn template() -> &'static Directory {
    static TEMPLATE: OnceLock<Directory> = OnceLock::new();
    TEMPLATE.get_or_init(|| Directory::create("fuzz", 1).expect("a memfd"))
}

/// A directory is written by another process while it is read: any words may be in it. The input is
/// written over its header and the first entries of its tables.
pub fn directory(data: &[u8]) {
    use rustix::io::pwrite;
    let fd = template().as_fd();
    for (place, part) in [0u64, 512, 4096, 4096 + (1 << 20)].iter().zip(data.chunks(512)) {
        let _ = pwrite(fd, part, *place);
    }
    let Ok(fd) = fd.try_clone_to_owned() else { return };
    if let Ok(reader) = Reader::open(fd) {
        let _ = (reader.name(), reader.pid(), reader.guid(), reader.counters().count());
        assert!(reader.first_qps(64).iter().all(|qp| qp.number < 1 << 24));
        let _ = reader.first_keys(64);
    }
}

/// A valid header.
pub fn directory_seeds() -> Vec<Vec<u8>> {
    let mut bytes = vec![0; 2048];
    let fresh = Directory::create("fuzz", 1).expect("a memfd");
    let _ = rustix::io::pread(fresh.as_fd(), &mut bytes[..512], 0);
    vec![bytes]
}
