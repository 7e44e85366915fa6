//! The register that dumps objects.

use crate::driver::{Pair, pair};
use crate::support::numbers::{BAD_PARAMETER, BAD_RESOURCE};
use crate::support::{Driver, field, word};

const ACCESS_REGISTER: u16 = 0x805;
const RESOURCE_DUMP: u64 = 0xc000;
const MENU: u16 = 0xffff;
const ERROR: u16 = 0xfffc;
const TERMINATE: u16 = 0xfffb;

/// A command that reads the register with these bytes in it.
fn command(register: &[u8]) -> Vec<u8> {
    let mut input = [vec![0; 16], register.to_vec()].concat();
    field(&mut input, 0x30, 16, 1);
    field(&mut input, 0x50, 16, RESOURCE_DUMP);
    input
}

/// What asks for the first `size` bytes of a dump.
fn request(kind: u16, index: u32, key: u32, address: u64, size: u64) -> Vec<u8> {
    let mut register = vec![0; 0x100];
    field(&mut register, 0x10, 16, kind.into());
    field(&mut register, 0x40, 32, index.into());
    field(&mut register, 0x100, 32, key.into());
    field(&mut register, 0x120, 32, size);
    field(&mut register, 0x140, 64, address);
    register
}

/// A whole dump, in parts of `size` bytes, as its segments.
fn dump(driver: &mut Driver, key: u32, kind: u16, index: u32, size: u64) -> Vec<(u16, Vec<u8>)> {
    let page = driver.page();
    let mut register = request(kind, index, key, page, size);
    let (mut bytes, mut parts) = (Vec::new(), 0);
    loop {
        let answer = driver.command(ACCESS_REGISTER, command(&register), 16 + 0x100);
        register = answer[16..].to_vec();
        parts += 1;
        assert_eq!(register[1] & 15, parts % 16, "sequence number");
        bytes.extend(driver.peek(page, word(&register, 0x24) as usize));
        if register[0] >> 7 == 0 {
            break;
        }
    }
    let mut segments = Vec::new();
    while let Some(head) = bytes.get(..4) {
        let (words, kind) = (word(head, 0) >> 16, word(head, 0) as u16);
        let rest = bytes.split_off(words as usize * 4);
        segments.push((kind, std::mem::replace(&mut bytes, rest)));
    }
    segments
}

#[test]
fn objects_are_dumped_by_the_numbers_of_the_menu() {
    let Pair { mut driver, pd, key, one, cq, .. } = pair("dump");
    let menu = dump(&mut driver, key, MENU, 0, 4096);
    let kinds: Vec<u16> = menu.iter().map(|(kind, _)| *kind).collect();
    assert_eq!(kinds, [0xfffe, 0xfffa, MENU, TERMINATE]);
    let records: Vec<(&[u8], u16)> = menu[2].1[8..]
        .chunks(0x34)
        .map(|record| (&record[4..20], word(record, 0) as u16))
        .collect();
    assert_eq!(word(&menu[2].1, 4), records.len() as u32);
    let number = |name: &[u8]| records.iter().find(|known| known.0.starts_with(name)).unwrap().1;
    // In parts, too.
    let qp = dump(&mut driver, key, number(b"PRM_QUERY_QP"), one.number, 100);
    assert_eq!((qp[2].0, word(&qp[2].1, 8)), (number(b"PRM_QUERY_QP"), one.number));
    assert_eq!(word(&qp[2].1, 16 + 0x18) >> 28, 3, "its state is RTS");
    let cq = dump(&mut driver, key, number(b"PRM_QUERY_CQ"), cq.number, 4096);
    assert_eq!(cq[2].1.len(), 16 + 0x110);
    let mkey = dump(&mut driver, key, number(b"PRM_QUERY_MKEY"), key >> 8, 4096);
    assert_eq!(word(&mkey[2].1, 16 + 16 + 12) & 0xff_ffff, pd, "its domain");
    let gone = dump(&mut driver, key, number(b"PRM_QUERY_QP"), 1, 4096);
    assert_eq!((gone[2].0, word(&gone[2].1, 4)), (ERROR, BAD_RESOURCE.into()));
    assert!(gone[2].1[16..].starts_with(b"bad resource"));
}

#[test]
fn a_dump_goes_nowhere_else() {
    let Pair { mut driver, key, .. } = pair("nodump");
    let page = driver.page();
    let mut wrong = |register: &[u8]| driver.status(ACCESS_REGISTER, command(register));
    assert_eq!(wrong(&request(0x77, 0, key, page, 4096)), BAD_PARAMETER, "no such kind");
    assert_eq!(wrong(&request(MENU, 0, key + 1, page, 4096)), BAD_RESOURCE);
    assert_eq!(wrong(&request(MENU, 0, key, u64::MAX - 8, 4096)), BAD_PARAMETER);
    assert_eq!(wrong(&request(MENU, 0, key, 1 << 40, 4096)), BAD_PARAMETER);
    let mut inline = request(MENU, 0, key, page, 4096);
    field(&mut inline, 1, 1, 1);
    assert_eq!(wrong(&inline), BAD_PARAMETER);
    let mut behind = request(MENU, 0, key, page, 4096);
    field(&mut behind, 0xc0, 64, u64::MAX);
    assert_eq!(wrong(&behind), BAD_PARAMETER);
    assert_eq!(wrong(&[]), BAD_PARAMETER, "an empty register");
}
