use super::*;
use crate::turnstile::Use;
use mm::guard;
use rustix::fs::{MemfdFlags, SealFlags};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

const PAGE: u64 = 4096;
const SHORT: Duration = Duration::from_millis(50);

/// The exporter's side of a buffer, and as many importers' as asked for.
fn buffer(placement: Placement, importers: usize) -> (Storage, Vec<Arc<Storage>>) {
    guard::install();
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let data = rustix::fs::memfd_create("relocate", flags).unwrap();
    rustix::fs::ftruncate(&data, PAGE).unwrap();
    rustix::fs::fcntl_add_seals(&data, SealFlags::SHRINK).unwrap();
    let again = |fd: &OwnedFd| fd.try_clone().unwrap();
    let gpu = "1a:00.0".parse().unwrap();
    let exporter = Storage::create(again(&data), PAGE, 7, gpu, placement).unwrap();
    let control = || exporter.control().as_fd().try_clone_to_owned().unwrap();
    let open = |_| Arc::new(Storage::open(again(&data), PAGE, 7, control()).unwrap());
    let importers = (0..importers).map(open).collect();
    (exporter, importers)
}

fn byte(storage: &Storage, placement: Placement) -> u8 {
    let mut byte = [0];
    storage.memory(placement).unwrap().part(100, 1).unwrap().source().read(&mut byte).unwrap();
    byte[0]
}

fn set(storage: &Storage, placement: Placement, value: u8) {
    storage.memory(placement).unwrap().part(100, 1).unwrap().write(&[value]).unwrap();
}

#[test]
fn the_bytes_move_and_leave_poison() {
    let (exporter, importers) = buffer(Placement::Vram, 1);
    set(&exporter, Placement::Vram, 42);
    // from another process as well as the exporter, as long as there is a place to come back to
    assert_eq!(importers[0].move_to(Placement::Host, None, SHORT), Ok(true));
    assert_eq!(importers[0].move_to(Placement::Host, None, SHORT), Ok(false));
    assert_eq!(byte(&importers[0], Placement::Host), 42);
    assert_eq!(byte(&exporter, Placement::Vram), POISON);
    let state = importers[0].enter(Use::Access).unwrap();
    assert_eq!((state.placement(), state.generation()), (Placement::Host, 1));
    importers[0].leave(Use::Access);
    set(&importers[0], Placement::Host, 43);
    assert_eq!(exporter.move_to(Placement::Vram, None, SHORT), Ok(true));
    assert_eq!(byte(&importers[0], Placement::Vram), 43);
    assert_eq!(byte(&importers[0], Placement::Host), POISON);
}

#[test]
fn what_was_made_in_host_memory_is_seen_through_its_descriptor() {
    let (exporter, importers) = buffer(Placement::Host, 1);
    set(&exporter, Placement::Host, 42);
    let mut byte = [0];
    rustix::io::pread(exporter.data(), &mut byte, 100).unwrap();
    assert_eq!(byte, [42]);
    assert_eq!(importers[0].move_to(Placement::Vram, None, SHORT), Err(Error::NoHome));
    assert_eq!(exporter.move_to(Placement::Vram, Some(true), SHORT), Ok(true));
    rustix::io::pread(exporter.data(), &mut byte, 100).unwrap();
    assert_eq!(byte, [POISON]);
}

#[test]
fn without_a_place_in_its_memory_only_the_exporter_brings_it_back() {
    let (exporter, importers) = buffer(Placement::Vram, 1);
    assert_eq!(exporter.move_to(Placement::Host, Some(false), SHORT), Ok(true));
    assert_eq!(importers[0].move_to(Placement::Vram, None, SHORT), Err(Error::NoHome));
    assert_eq!(exporter.move_to(Placement::Vram, Some(true), SHORT), Ok(true));
    assert_eq!(importers[0].move_to(Placement::Host, None, SHORT), Ok(true));
}

#[test]
fn pins_forbid_moves_and_firm_ones_a_revoke() {
    let (exporter, importers) = buffer(Placement::Vram, 1);
    let pinned = Err(Error::Pinned(u64::from(std::process::id())));
    for how in [Use::Pin, Use::RevocablePin] {
        importers[0].enter(how).unwrap();
        assert_eq!(exporter.move_to(Placement::Host, None, SHORT), pinned);
        importers[0].leave(how);
    }
    importers[0].enter(Use::Pin).unwrap();
    assert_eq!(exporter.revoke(SHORT), pinned.map(drop));
    assert!(!exporter.control().state().is_revoked());
    importers[0].leave(Use::Pin);
    importers[0].enter(Use::RevocablePin).unwrap();
    exporter.revoke(SHORT).unwrap();
    assert_eq!(importers[0].enter(Use::Access), Err(Error::Revoked));
    assert_eq!(exporter.move_to(Placement::Host, None, SHORT), Err(Error::Revoked));
    importers[0].leave(Use::RevocablePin);
}

#[test]
fn a_move_waits_for_an_access_and_gives_up_in_time() {
    let (exporter, importers) = buffer(Placement::Vram, 2);
    importers[0].enter(Use::Access).unwrap();
    let held = Err(Error::InUse(u64::from(std::process::id())));
    assert_eq!(exporter.move_to(Placement::Host, None, SHORT), held);
    // and is as it was
    importers[1].enter(Use::Access).unwrap();
    importers[1].leave(Use::Access);
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| exporter.move_to(Placement::Host, None, LONG));
        while !exporter.control().state().is_closed() {
            std::thread::yield_now();
        }
        assert!(matches!(importers[1].enter(Use::Access), Err(Error::Moving(_))));
        importers[0].leave(Use::Access);
        assert_eq!(moves.join().unwrap(), Ok(true));
    });
    importers[1].wait(SHORT).unwrap();
}

/// Never waited for to the end.
const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_revoke_waits_in_two_steps() {
    let (exporter, importers) = buffer(Placement::Vram, 1);
    importers[0].enter(Use::Access).unwrap();
    let held = Err(Error::InUse(u64::from(std::process::id())));
    assert_eq!(exporter.revoke(SHORT), held, "somebody is inside");
    assert_eq!(importers[0].enter(Use::Access), Err(Error::Revoked), "nobody else comes in");
    importers[0].leave(Use::Access);
    assert_eq!(exporter.revoke(SHORT), Ok(()));
    assert_eq!(importers[0].wait(LONG), Err(Error::Revoked));
}

#[test]
fn who_is_gone_is_not_waited_for() {
    let (exporter, mut importers) = buffer(Placement::Vram, 2);
    set(&exporter, Placement::Vram, 42);
    // inside and pinning when it ends: the kernel lets go of its lock as when a process is killed
    importers[0].enter(Use::Access).unwrap();
    importers[0].enter(Use::Pin).unwrap();
    importers.remove(0);
    assert_eq!(exporter.move_to(Placement::Host, None, SHORT), Ok(true));
    // its slot is another's now
    let control = exporter.control().as_fd().try_clone_to_owned().unwrap();
    let next =
        Storage::open(exporter.data().as_fd().try_clone_to_owned().unwrap(), PAGE, 7, control)
            .unwrap();
    next.enter(Use::Access).unwrap();
    next.leave(Use::Access);
    assert_eq!(exporter.move_to(Placement::Vram, None, SHORT), Ok(true));
}

#[test]
fn a_move_whose_mover_is_gone_is_undone_or_done() {
    let (exporter, importers) = buffer(Placement::Vram, 1);
    set(&exporter, Placement::Vram, 42);
    // killed while it copied
    exporter.control().set_state(exporter.control().state().closed());
    set(&exporter, Placement::Host, 1);
    importers[0].wait(LONG).unwrap();
    let state = importers[0].enter_within(Use::Access, LONG).unwrap();
    assert_eq!(byte(&importers[0], state.placement()), 42);
    importers[0].leave(Use::Access);
    // killed while it poisoned
    set(&exporter, Placement::Host, 43);
    let state = exporter.control().state().closed().moved(Placement::Host);
    exporter.control().set_state(state);
    assert_eq!(exporter.move_to(Placement::Vram, None, LONG), Ok(true));
    assert_eq!(byte(&importers[0], Placement::Vram), 43);
}

#[test]
fn slots_run_out_and_come_back() {
    let (exporter, mut importers) = buffer(Placement::Vram, SLOTS - 1);
    let open = || {
        let control = exporter.control().as_fd().try_clone_to_owned().unwrap();
        Storage::open(exporter.data().as_fd().try_clone_to_owned().unwrap(), PAGE, 7, control)
    };
    assert_eq!(open().unwrap_err(), Error::TooManyUsers(SLOTS));
    importers.pop();
    open().unwrap();
}
