//! The system's own library on a machine without a device. A program of its own: where another
//! library of that name was loaded before, the loader takes that.

use peerdma::{Error, Library};
use test_support::skip;

#[test]
fn the_systems_library_without_a_device_says_so() {
    let Ok(library) = Library::system() else {
        skip!("no libibverbs is installed");
    };
    if !library.devices().unwrap().is_empty() {
        skip!("this machine has an RDMA device");
    }
    let error = library.open(None).unwrap_err();
    assert!(matches!(error, Error::NoDevice { .. }));
    assert!(error.remedy().contains("peerdma run"));
}
