//! The messages between a client and the process that hosts the registry.
//!
//! One `SOCK_SEQPACKET` record is one message: a request carries a sequence number that its reply
//! repeats; file descriptors travel beside it. Integers are little endian (both ends are one
//! machine), strings are length-prefixed and bounded. Decoding any bytes yields a message or an
//! error, never a panic.

mod codec;
#[cfg(test)]
mod tests;

use crate::Error;
use codec::{Decoded, Reader, Writer, decode_error, encode_error, malformed};

/// Version of this protocol; part of the registry's name, so that versions never meet.
pub(crate) const VERSION: u16 = 2;
/// Largest record in bytes.
pub(crate) const MAX_RECORD: usize = 32 * 1024;
/// Most descriptors in one record: v4, v6, deed and vault of a join; directory, v4, v6 and vault of
/// a rejoin.
pub(crate) const MAX_FDS: usize = 4;
/// Longest published id in bytes.
pub(crate) const MAX_ID: usize = 128;
/// Longest device or command name in bytes.
pub(crate) const MAX_NAME: usize = 64;
/// Members in one page of a listing; a page stays well under [`MAX_RECORD`].
pub(crate) const PAGE: usize = 128;

const MAGIC: u32 = 0x7065_6572;

/// Who joins: one virtual device of one process.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Device name, for instance `peerdma0`; 64 bytes at most.
    pub device: String,
    /// Node GUID of the device.
    pub guid: u64,
    /// Command name of the process; 64 bytes at most.
    pub comm: String,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Request {
    /// First message of a connection.
    Hello { version: u16 },
    /// A new member; carries its directory.
    Join { who: Identity },
    /// A member known to an earlier host; carries its directory and its sockets.
    Rejoin { slot: u16, joined_at: u64, v4: bool, v6: bool, who: Identity },
    /// The member of this slot goes.
    Leave { slot: u16 },
    /// Members with a slot above `after`, one page.
    Members { after: u16 },
    /// The directory of a member.
    Directory { slot: u16 },
    /// Offers a descriptor under an id.
    Publish { id: String },
    /// Asks for the descriptor under an id.
    Lookup { id: String },
    /// Takes an own publication back.
    Withdraw { id: String },
    /// Claims a number of a kind for a member.
    Claim { kind: u32, key: u64, slot: u16 },
    /// Gives an own claim back.
    Release { kind: u32, key: u64 },
    /// Asks which member holds a claim.
    Owner { kind: u32, key: u64 },
}

/// A member as the listing shows it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Row {
    pub slot: u16,
    pub pid: i32,
    pub uid: u32,
    pub joined_at: u64,
    pub leader: bool,
    pub who: Identity,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    Done,
    Welcome {
        version: u16,
    },
    /// Carries the sockets that exist, then the deed.
    Joined {
        slot: u16,
        joined_at: u64,
        v4: bool,
        v6: bool,
    },
    /// One page; a full page means that there may be more.
    Members(Vec<Row>),
    /// Carries one descriptor.
    Found,
    Owner {
        slot: u16,
    },
    Failed(Error),
}

impl Request {
    pub(crate) fn encode(&self, seq: u32) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        w.u32(seq);
        match self {
            Request::Hello { version } => {
                w.u8(0);
                w.u32(MAGIC);
                w.u16(*version);
            }
            Request::Join { who } => {
                w.u8(1);
                w.identity(who);
            }
            Request::Rejoin { slot, joined_at, v4, v6, who } => {
                w.u8(2);
                w.u16(*slot);
                w.u64(*joined_at);
                w.u8(u8::from(*v4));
                w.u8(u8::from(*v6));
                w.identity(who);
            }
            Request::Leave { slot } => {
                w.u8(3);
                w.u16(*slot);
            }
            Request::Members { after } => {
                w.u8(4);
                w.u16(*after);
            }
            Request::Directory { slot } => {
                w.u8(5);
                w.u16(*slot);
            }
            Request::Publish { id } => {
                w.u8(6);
                w.text(id);
            }
            Request::Lookup { id } => {
                w.u8(7);
                w.text(id);
            }
            Request::Withdraw { id } => {
                w.u8(8);
                w.text(id);
            }
            Request::Claim { kind, key, slot } => {
                w.u8(9);
                w.u32(*kind);
                w.u64(*key);
                w.u16(*slot);
            }
            Request::Release { kind, key } => {
                w.u8(10);
                w.u32(*kind);
                w.u64(*key);
            }
            Request::Owner { kind, key } => {
                w.u8(11);
                w.u32(*kind);
                w.u64(*key);
            }
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<(u32, Request)> {
        let mut r = Reader(bytes);
        let seq = r.u32()?;
        let request = match r.u8()? {
            0 => {
                if r.u32()? != MAGIC {
                    return Err(malformed("hello"));
                }
                Request::Hello { version: r.u16()? }
            }
            1 => Request::Join { who: r.identity()? },
            2 => Request::Rejoin {
                slot: r.u16()?,
                joined_at: r.u64()?,
                v4: r.bool()?,
                v6: r.bool()?,
                who: r.identity()?,
            },
            3 => Request::Leave { slot: r.u16()? },
            4 => Request::Members { after: r.u16()? },
            5 => Request::Directory { slot: r.u16()? },
            6 => Request::Publish { id: r.text(MAX_ID)? },
            7 => Request::Lookup { id: r.text(MAX_ID)? },
            8 => Request::Withdraw { id: r.text(MAX_ID)? },
            9 => Request::Claim { kind: r.u32()?, key: r.u64()?, slot: r.u16()? },
            10 => Request::Release { kind: r.u32()?, key: r.u64()? },
            11 => Request::Owner { kind: r.u32()?, key: r.u64()? },
            _ => return Err(malformed("request")),
        };
        r.end()?;
        Ok((seq, request))
    }
}

impl Reply {
    pub(crate) fn encode(&self, seq: u32) -> Vec<u8> {
        let mut w = Writer(Vec::with_capacity(64));
        w.u32(seq);
        match self {
            Reply::Done => w.u8(0),
            Reply::Welcome { version } => {
                w.u8(1);
                w.u16(*version);
            }
            Reply::Joined { slot, joined_at, v4, v6 } => {
                w.u8(2);
                w.u16(*slot);
                w.u64(*joined_at);
                w.u8(u8::from(*v4));
                w.u8(u8::from(*v6));
            }
            Reply::Members(rows) => {
                w.u8(3);
                w.u16(rows.len() as u16);
                for row in rows {
                    w.u16(row.slot);
                    w.u32(row.pid as u32);
                    w.u32(row.uid);
                    w.u64(row.joined_at);
                    w.u8(u8::from(row.leader));
                    w.identity(&row.who);
                }
            }
            Reply::Found => w.u8(4),
            Reply::Owner { slot } => {
                w.u8(5);
                w.u16(*slot);
            }
            Reply::Failed(error) => {
                w.u8(6);
                encode_error(&mut w, error);
            }
        }
        w.0
    }

    pub(crate) fn decode(bytes: &[u8]) -> Decoded<(u32, Reply)> {
        let mut r = Reader(bytes);
        let seq = r.u32()?;
        let reply = match r.u8()? {
            0 => Reply::Done,
            1 => Reply::Welcome { version: r.u16()? },
            2 => {
                Reply::Joined { slot: r.u16()?, joined_at: r.u64()?, v4: r.bool()?, v6: r.bool()? }
            }
            3 => {
                let count = usize::from(r.u16()?);
                if count > PAGE {
                    return Err(malformed("page"));
                }
                let mut rows = Vec::with_capacity(count);
                for _ in 0..count {
                    rows.push(Row {
                        slot: r.u16()?,
                        pid: r.u32()? as i32,
                        uid: r.u32()?,
                        joined_at: r.u64()?,
                        leader: r.bool()?,
                        who: r.identity()?,
                    });
                }
                Reply::Members(rows)
            }
            4 => Reply::Found,
            5 => Reply::Owner { slot: r.u16()? },
            6 => Reply::Failed(decode_error(&mut r)?),
            _ => return Err(malformed("reply")),
        };
        r.end()?;
        Ok((seq, reply))
    }
}

/// Decodes `bytes` as either kind of message. What decodes must encode and decode to itself again,
/// but for an error whose two versions change sides.
pub fn decode_anything(bytes: &[u8]) {
    if let Ok((seq, request)) = Request::decode(bytes) {
        let again = Request::decode(&request.encode(seq));
        assert_eq!(again, Ok((seq, request)));
    }
    if let Ok((seq, reply)) = Reply::decode(bytes)
        && !matches!(reply, Reply::Failed(Error::Version { .. }))
    {
        let again = Reply::decode(&reply.encode(seq));
        assert_eq!(again, Ok((seq, reply)));
    }
}
