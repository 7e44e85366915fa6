use super::*;
use crate::function::{Bar, BarKind, PciIdentity};

fn description() -> Description {
    let bar = Bar { size: 1 << 25, kind: BarKind::Memory64 { prefetchable: true }, memory: None };
    Description {
        identity: PciIdentity {
            vendor: 0x15b3,
            device: 0x1023,
            subsystem_vendor: 0x15b3,
            subsystem: 5,
            revision: 1,
            class: 0x02_0700,
        },
        bars: [Some(bar), None, None, None, None, None],
        msix: Some(Msix { vectors: 64, bar: 0, table: 0x2000, pending: 0x3000 }),
        vpd: Some(b"\x82\x05\0hello\x78".to_vec()),
        vendor_registers: 20,
        serial: Some(0x1122_3344_5566_7788),
        ats: true,
        acs: true,
    }
}

fn word(config: &Config, at: usize) -> u32 {
    let mut bytes = [0; 4];
    config.read(at, &mut bytes);
    u32::from_le_bytes(bytes)
}

#[test]
fn the_header_names_the_function() {
    let config = Config::new(&description());
    assert_eq!(word(&config, 0), 0x1023_15b3);
    assert_eq!(word(&config, 8), 0x0207_0001);
    assert_eq!(word(&config, 0x2c), 0x0005_15b3);
}

#[test]
fn a_bar_tells_its_size_to_who_writes_ones() {
    let mut config = Config::new(&description());
    assert_eq!(word(&config, 0x10), 0xc);
    config.write(0x10, &[0xff; 8]);
    assert_eq!((word(&config, 0x10), word(&config, 0x14)), (0xfe00_000c, 0xffff_ffff));
    config.write(0x18, &[0xff; 4]);
    assert_eq!(word(&config, 0x18), 0, "no BAR, no bits");
}

/// Ids of a list of capabilities.
fn walk(config: &Config) -> Vec<u8> {
    let (mut at, mut ids) = (word(config, CAPABILITIES) as u8, Vec::new());
    while at != 0 {
        let head = word(config, at.into());
        ids.push(head as u8);
        at = (head >> 8) as u8;
    }
    ids
}

fn walk_extended(config: &Config) -> Vec<u16> {
    let (mut at, mut ids) = (EXTENDED, Vec::new());
    while at != 0 {
        let head = word(config, at);
        ids.push(head as u16);
        at = (head >> 20) as usize;
    }
    ids
}

#[test]
fn capabilities_are_those_asked_for() {
    let full = Config::new(&description());
    assert_eq!(walk(&full), [0x01, 0x11, 0x10, 0x03, 0x09]);
    assert_eq!(walk_extended(&full), [0x03, 0x0d, 0x0f]);
    assert_eq!((word(&full, 0x104), word(&full, 0x108)), (0x5566_7788, 0x1122_3344));
    let bare = Config::new(&Description { ats: true, ..Description::default() });
    assert_eq!(walk(&bare), [0x01, 0x10]);
    assert_eq!(walk_extended(&bare), [0x0f]);
    let none = Config::new(&Description::default());
    assert_eq!(word(&none, EXTENDED), 0);
}

#[test]
fn product_data_is_read_four_bytes_at_a_time() {
    let mut config = Config::new(&description());
    let mut read = |address: u16| {
        config.write(VPD + 2, &address.to_le_bytes());
        assert_eq!(word(&config, VPD) >> 16, u32::from(address) | 0x8000, "complete");
        word(&config, VPD_DATA).to_le_bytes()
    };
    assert_eq!(&read(0), b"\x82\x05\0h");
    assert_eq!(&read(4), b"ello");
    assert_eq!(&read(8), b"\x78\0\0\0");
    assert_eq!(&read(0x7ffc), &[0; 4]);
    // A write of the data is complete at once and changes nothing.
    config.write(VPD_DATA, b"evil");
    config.write(VPD + 2, &0x8000u16.to_le_bytes());
    assert_eq!(word(&config, VPD) >> 16, 0);
    config.write(VPD + 2, &0u16.to_le_bytes());
    assert_eq!(word(&config, VPD_DATA).to_le_bytes(), *b"\x82\x05\0h");
}

#[test]
fn writes_tell_of_mastery_and_reset() {
    let mut config = Config::new(&description());
    let on = Effect { master: Some(true), reset: false };
    assert_eq!(config.write(COMMAND, &[0x06, 0]), on);
    assert_eq!(config.write(COMMAND, &[0x06, 4]), Effect::default());
    assert!(config.write(EXPRESS + 8, &0xa910u16.to_le_bytes()).reset);
    assert_eq!(word(&config, EXPRESS + 8) & 0x8000, 0, "reads as zero");
    config.reset();
    assert_eq!(word(&config, COMMAND) & 0xffff, 0);
}

#[test]
fn nothing_lies_past_the_end() {
    let mut config = Config::new(&description());
    let mut bytes = [7; 8];
    config.read(LEN - 4, &mut bytes);
    assert_eq!(bytes, [0, 0, 0, 0, 7, 7, 7, 7]);
    config.write(LEN - 4, &[9; 8]);
    config.read(usize::MAX, &mut bytes);
    config.write(usize::MAX, &bytes);
}

#[test]
fn vendor_registers_remember() {
    let mut config = Config::new(&description());
    assert_eq!(word(&config, VENDOR) & 0x00ff_00ff, 24 << 16 | 9);
    config.write(VENDOR + 4, &[0xff; 32]);
    assert_eq!((word(&config, VENDOR + 20), word(&config, VENDOR + 24)), (u32::MAX, 0));
    config.reset();
    assert_eq!(word(&config, VENDOR + 20), 0);
}
