//! The register that dumps objects (`resource_dump` of `mlx5_ifc.h`), for programs that look at
//! them from outside: `rdma resource show -r`.
//!
//! A dump is a row of segments: what runs here, what was asked, what there is, an end. A driver
//! first asks for a menu, which says by what number each kind of object is asked for, and takes
//! long dumps in parts.

use crate::handlers::query;
use crate::layout::bits::{Field, put};
use crate::layout::head::{Answer, Status};
use crate::layout::identity::FIRMWARE;
use crate::object::shared::Shared;
use hca::Access;

/// The register's number.
pub(crate) const REGISTER: u16 = 0xc000;
/// The register's length in bytes.
const LEN: usize = 0x100;

const MORE: Field = Field::new(0x0, 1);
const INLINE: Field = Field::new(0x1, 1);
const SEQUENCE: Field = Field::new(0xc, 4);
const KIND: Field = Field::new(0x10, 16);
const INDEX: Field = Field::new(0x40, 32);
/// Ours to keep between two parts: bytes that the driver has.
const TAKEN: Field = Field::new(0xc0, 64);
const KEY: Field = Field::new(0x100, 32);
const SIZE: Field = Field::new(0x120, 32);
const ADDRESS: Field = Field::new(0x140, 64);

/// Segments that every device numbers so (NVIDIA's `mstflint`, `resourcedump`).
mod segment {
    pub(super) const COMMAND: u16 = 0xfffa;
    pub(super) const TERMINATE: u16 = 0xfffb;
    pub(super) const ERROR: u16 = 0xfffc;
    pub(super) const INFO: u16 = 0xfffe;
    pub(super) const MENU: u16 = 0xffff;
}

/// A kind of object: its number and name in the menu, and what there is to say of one.
struct Kind {
    number: u16,
    name: &'static str,
    query: fn(&Shared, u32) -> Answer,
}

const KINDS: [Kind; 3] = [
    Kind { number: 0x1001, name: "PRM_QUERY_QP", query: query::qp },
    Kind { number: 0x1002, name: "PRM_QUERY_CQ", query: query::cq },
    Kind { number: 0x1003, name: "PRM_QUERY_MKEY", query: query::mkey },
];
/// In the record of a kind: an index must be given.
const TAKES_INDEX: u16 = 0b11;
/// The length of a name in the menu.
const NAME_LEN: usize = 16;
const ERROR_TEXT_LEN: usize = 32;

/// Reads the register: writes the next part of the dump to where it says.
pub(crate) fn read(shared: &Shared, data: &mut Vec<u8>) -> Result<(), Status> {
    data.resize(LEN, 0);
    if INLINE.is_set(data) {
        return Err(Status::BadParameter);
    }
    let dump = dump(shared, KIND.get(data) as u16, INDEX.get32(data))?;
    let taken = usize::try_from(TAKEN.get(data)).unwrap_or(usize::MAX);
    let rest = dump.get(taken..).ok_or(Status::BadParameter)?;
    let part = &rest[..rest.len().min(SIZE.get(data) as usize)];
    let keys = shared.hca.keys();
    let (key, address) = (KEY.get32(data), ADDRESS.get(data));
    let pd = keys.get(key).map(|mkey| mkey.pd).ok_or(Status::BadResource)?;
    keys.resolve(pd, key, address, part.len() as u64, Access::LOCAL_WRITE)
        .ok()
        .and_then(|memory| memory.write(0, part).ok())
        .ok_or(Status::BadParameter)?;
    MORE.set(data, (part.len() < rest.len()).into());
    let sequence = SEQUENCE.get(data);
    SEQUENCE.set(data, sequence + 1);
    SIZE.set(data, part.len() as u64);
    TAKEN.set(data, (taken + part.len()) as u64);
    Ok(())
}

/// The whole dump of an object, or the menu.
fn dump(shared: &Shared, kind: u16, index: u32) -> Result<Vec<u8>, Status> {
    let body = if kind == segment::MENU {
        menu()
    } else {
        let kind = KINDS.iter().find(|known| known.number == kind).ok_or(Status::BadParameter)?;
        match (kind.query)(shared, index) {
            Ok(answer) => object(kind.number, index, &answer),
            // Programs list what no command can name, such as queue pair 1.
            Err(status) => error(status),
        }
    };
    Ok([info(), command(kind, index), body, segment(segment::TERMINATE, &[])].concat())
}

/// A segment of this kind, in whole words of 4 bytes.
fn segment(kind: u16, body: &[u8]) -> Vec<u8> {
    let words = 1 + body.len().div_ceil(4);
    let mut segment = vec![0; words * 4];
    put(&mut segment, 0, &(words as u16).to_be_bytes());
    put(&mut segment, 2, &kind.to_be_bytes());
    put(&mut segment, 4, body);
    segment
}

fn info() -> Vec<u8> {
    let (major, minor, sub) = FIRMWARE;
    let firmware = u32::from(major) << 24 | u32::from(minor) << 16 | u32::from(sub);
    segment(segment::INFO, &[&[0; 8][..], &firmware.to_be_bytes()].concat())
}

fn command(kind: u16, index: u32) -> Vec<u8> {
    let asked = [&kind.to_be_bytes()[..], &[0; 2], &index.to_be_bytes(), &[0; 8]].concat();
    segment(segment::COMMAND, &asked)
}

/// What a command would answer that asks for it, status and all.
fn object(kind: u16, index: u32, answer: &[u8]) -> Vec<u8> {
    segment(kind, &[&[0; 4][..], &index.to_be_bytes(), &[0; 4], &[0; 8], answer].concat())
}

fn error(status: Status) -> Vec<u8> {
    let mut body = vec![0; 12 + ERROR_TEXT_LEN];
    put(&mut body, 2, &u16::from(status as u8).to_be_bytes());
    put(&mut body, 12, status.to_string().as_bytes());
    segment(segment::ERROR, &body)
}

fn menu() -> Vec<u8> {
    let records = KINDS.map(|kind| {
        let mut record = [0; 4 + 3 * NAME_LEN];
        put(&mut record, 0, &TAKES_INDEX.to_be_bytes());
        put(&mut record, 2, &kind.number.to_be_bytes());
        put(&mut record, 4, kind.name.as_bytes());
        put(&mut record, 4 + NAME_LEN, b"number");
        record
    });
    let count = (KINDS.len() as u32).to_be_bytes();
    segment(segment::MENU, &[&count[..], &records.concat()].concat())
}
