//! The parts that messages are made of: integers, texts, identities, errors.
//!
//! What is longer than its bound is refused, and whoever writes cuts a text to fit it.

use super::{Identity, MAX_NAME, VERSION};
use crate::Error;

/// A message in the making.
pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn u8(&mut self, v: u8) {
        self.0.push(v);
    }
    pub(super) fn u16(&mut self, v: u16) {
        self.0.extend(v.to_le_bytes());
    }
    pub(super) fn u32(&mut self, v: u32) {
        self.0.extend(v.to_le_bytes());
    }
    pub(super) fn u64(&mut self, v: u64) {
        self.0.extend(v.to_le_bytes());
    }
    pub(super) fn text(&mut self, v: &str) {
        let mut end = v.len().min(512);
        while !v.is_char_boundary(end) {
            end -= 1;
        }
        self.u16(end as u16);
        self.0.extend(&v.as_bytes()[..end]);
    }
    pub(super) fn identity(&mut self, v: &Identity) {
        self.text(&v.device);
        self.u64(v.guid);
        self.text(&v.comm);
    }
}

/// What is left of a message.
pub(super) struct Reader<'a>(pub(super) &'a [u8]);

pub(super) type Decoded<T> = Result<T, Error>;

pub(super) fn malformed(what: &str) -> Error {
    Error::Protocol(format!("malformed {what}"))
}

impl<'a> Reader<'a> {
    pub(super) fn take(&mut self, n: usize) -> Decoded<&'a [u8]> {
        let (head, rest) = self.0.split_at_checked(n).ok_or_else(|| malformed("length"))?;
        self.0 = rest;
        Ok(head)
    }
    pub(super) fn array<const N: usize>(&mut self) -> Decoded<[u8; N]> {
        self.take(N)?.try_into().map_err(|_| malformed("length"))
    }
    pub(super) fn u8(&mut self) -> Decoded<u8> {
        Ok(u8::from_le_bytes(self.array()?))
    }
    pub(super) fn bool(&mut self) -> Decoded<bool> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(malformed("flag")),
        }
    }
    pub(super) fn u16(&mut self) -> Decoded<u16> {
        Ok(u16::from_le_bytes(self.array()?))
    }
    pub(super) fn u32(&mut self) -> Decoded<u32> {
        Ok(u32::from_le_bytes(self.array()?))
    }
    pub(super) fn u64(&mut self) -> Decoded<u64> {
        Ok(u64::from_le_bytes(self.array()?))
    }
    pub(super) fn text(&mut self, max: usize) -> Decoded<String> {
        let len = usize::from(self.u16()?);
        if len > max {
            return Err(malformed("text"));
        }
        let bytes = self.take(len)?;
        String::from_utf8(bytes.to_vec()).map_err(|_| malformed("text"))
    }
    pub(super) fn identity(&mut self) -> Decoded<Identity> {
        Ok(Identity { device: self.text(MAX_NAME)?, guid: self.u64()?, comm: self.text(MAX_NAME)? })
    }
    pub(super) fn end(self) -> Decoded<()> {
        if self.0.is_empty() { Ok(()) } else { Err(malformed("tail")) }
    }
}

pub(super) fn encode_error(w: &mut Writer, error: &Error) {
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

pub(super) fn decode_error(r: &mut Reader<'_>) -> Decoded<Error> {
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
