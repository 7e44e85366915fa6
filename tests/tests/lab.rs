//! The kernel's own RoCE driver as the judge of the wire.

use std::time::Duration;
use system::{lab::Guest, skip};

#[test]
fn the_guest_boots_and_has_a_device() {
    let guest = match Guest::boot() {
        Ok(guest) => guest,
        Err(reason) => skip!("{reason:#}"),
    };
    let (status, said) = guest.script("ibv_devices", Duration::from_secs(30)).unwrap();
    assert_eq!(status, 0, "{said}");
    assert!(said.contains("rxe0"), "{said}");
}
