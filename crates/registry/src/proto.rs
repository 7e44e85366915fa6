//! The messages between a client and the process that hosts the registry.
//!
//! One `SOCK_SEQPACKET` record is one message: a request carries a sequence number that its reply
//! repeats; file descriptors travel beside it. Integers are little endian (both ends are one
//! machine), strings are length-prefixed and bounded. Decoding any bytes yields a message or an
//! error, never a panic.

use crate::Error;

/// Version of this protocol; part of the registry's name, so that versions never meet.
pub(crate) const VERSION: u16 = 2;
/// Largest record in bytes.
pub(crate) const MAX_RECORD: usize = 32 * 1024;
/// Most descriptors in one record: v4, v6, deed and vault of a join; directory, v4, v6 and vault of a rejoin.
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

struct Writer(Vec<u8>);

impl Writer {
    fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    fn u16(&mut self, v: u16) {
        self.0.extend(v.to_le_bytes());
    }
    fn u32(&mut self, v: u32) {
        self.0.extend(v.to_le_bytes());
    }
    fn u64(&mut self, v: u64) {
        self.0.extend(v.to_le_bytes());
    }
    fn text(&mut self, v: &str) {
        let mut end = v.len().min(512);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend(&v.as_bytes()[..end]);
    }
    fn identity(&mut self, v: &Identity) {
        self.text(&v.device);
        self.u64(v.guid);
        self.text(&v.comm);
    }
}

struct Reader<'a>(&'a [u8]);

type Decoded<T> = Result<T, Error>;

fn malformed(what: &str) -> Error {
    Error::Protocol(format!("malformed {what}"))
}

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| malformed("length"))?;
        self.0 = rest;
        Ok(head)
    }
    fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed("length"))
    }
    fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("flag")),
        }
    }
    fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    fn text(&mut self, max: usize) -> Decoded<String> {
        let len = usize::from(self.u16()?);
        if len > max {
            return Err(malformed("text"));
        }
        let bytes = self.take(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| malformed("text"))
    }
    fn identity(&mut self) -> Decoded<Identity> {
        Ok(Identity { device: self.text(MAX_NAME)?, guid: self.u64()?, comm: self.text(MAX_NAME)? })
    }
    fn end(self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("tail")) }
    }
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

fn encode_error(w: &mut Writer, error: &Error) {
    let (code, number, text) = match error {
        Error::Unknown => (0, 0, ""),
        Error::Taken => (1, 0, ""),
        Error::Full(what) => (2, 0, what.as_str()),
        Error::PortTaken { port, holder } => (3, u32::from(*port), holder.as_str()),
        Error::System { what, errno } => (4, *errno as u32, what.as_str()),
        Error::Version { ours, .. } => (5, u32::from(*ours), ""),
        Error::Protocol(what) => (6, 0, what.as_str()),
        other => return encode_error(w, &Error::Protocol(other.to_string())),
    };
    w.u8(code);
    w.u32(number);
    w.text(text);
}

fn decode_error(r: &mut Reader<'_>) -> Decoded<Error> {
    let (code, number, text) = (r.u8()?, r.u32()?, r.text(512)?);
    let short = || u16::try_from(number).map_err(|_| malformed("error"));
    Ok(match code {
        0 => Error::Unknown,
        1 => Error::Taken,
        2 => Error::Full(text),
        3 => Error::PortTaken { port: short()?, holder: text },
        4 => Error::System { what: text, errno: number as i32 },
        5 => Error::Version { ours: VERSION, theirs: short()? },
        6 => Error::Protocol(text),
        _ => return Err(malformed("error")),
    })
}

/// Decodes `bytes` as either kind of message. What decodes must encode and decode to itself again, but for an error whose two
/// versions change sides.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn who() -> Identity {
        Identity { device: "peerdma0".into(), guid: 0x1122_3344_5566_7788, comm: "ib_write".into() }
    }

    fn requests() -> Vec<Request> {
        let id = String::from("vram/3");
        vec![
            Request::Hello { version: VERSION },
            Request::Join { who: who() },
            Request::Rejoin { slot: 7, joined_at: 1 << 60, v4: true, v6: false, who: who() },
            Request::Leave { slot: 7 },
            Request::Members { after: 3 },
            Request::Directory { slot: 1023 },
            Request::Publish { id: id.clone() },
            Request::Lookup { id: id.clone() },
            Request::Withdraw { id },
            Request::Claim { kind: 1, key: u64::MAX, slot: 9 },
            Request::Release { kind: 1, key: 0 },
            Request::Owner { kind: 2, key: 5 },
        ]
    }

    fn replies() -> Vec<Reply> {
        let row = Row { slot: 5, pid: 77, uid: 0, joined_at: 3, leader: true, who: who() };
        vec![
            Reply::Done,
            Reply::Welcome { version: 1 },
            Reply::Joined { slot: 5, joined_at: 9, v4: true, v6: true },
            Reply::Members(vec![row; PAGE]),
            Reply::Found,
            Reply::Owner { slot: 3 },
            Reply::Failed(Error::PortTaken { port: 4791, holder: "uid 5".into() }),
            Reply::Failed(Error::System { what: "bind".into(), errno: 13 }),
            Reply::Failed(Error::Full("slots".into())),
        ]
    }

    #[test]
    fn what_is_encoded_decodes_to_the_same() {
        for request in requests() {
            assert_eq!(Request::decode(&request.encode(42)), Ok((42, request)));
        }
        for reply in replies() {
            let bytes = reply.encode(7);
            assert!(bytes.len() <= MAX_RECORD);
            assert_eq!(Reply::decode(&bytes), Ok((7, reply)));
        }
    }

    #[test]
    fn every_truncation_and_every_tail_is_refused() {
        for bytes in requests().iter().map(|r| r.encode(1)) {
            for cut in 0..bytes.len() {
                assert!(Request::decode(&bytes[..cut]).is_err());
            }
            let mut long = bytes.clone();
            long.push(0);
            assert!(Request::decode(&long).is_err());
        }
    }

    #[test]
    fn any_bytes_decode_without_panic() {
        let mut x = 0x9e37_79b9_7f4a_7c15_u64;
        for round in 0..20_000_usize {
            let mut bytes = requests()[round % 12].encode(round as u32);
            for _ in 0..3 {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                let at = x as usize % bytes.len();
                bytes[at] = (x >> 32) as u8;
            }
            let _ = Request::decode(&bytes);
            let _ = Reply::decode(&bytes);
        }
    }

    #[test]
    fn a_version_changes_sides_and_has_16_bits() {
        let refused = Reply::Failed(Error::Version { ours: 7, theirs: VERSION }).encode(1);
        let understood = Reply::Failed(Error::Version { ours: VERSION, theirs: 7 });
        assert_eq!(Reply::decode(&refused), Ok((1, understood)));
        let longer = [10, 0xea, 0, 0x3a, 6, 5, 0, 0x3a, 6, 0xca, 1, 0, 0];
        decode_anything(&longer);
        assert!(Reply::decode(&longer).is_err());
    }

    #[test]
    fn texts_longer_than_their_limit_are_refused() {
        let request = Request::Publish { id: "x".repeat(MAX_ID + 1) };
        assert!(Request::decode(&request.encode(1)).is_err());
    }
}
