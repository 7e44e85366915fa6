//! Netlink messages and their attributes (netlink(7), `linux/netlink.h`): what is asked is read
//! with every length checked, what is answered is put together.

/// Length of a message's header.
pub const HEADER: usize = 16;
/// Length of an attribute's header.
const ATTRIBUTE: usize = 4;

/// What a request may ask for (NLM_F_…).
pub mod flags {
    /// It is part of an answer of several.
    pub const MULTI: u16 = 0x02;
    /// An acknowledgement is wanted.
    pub const ACK: u16 = 0x04;
    /// All there are.
    pub const DUMP: u16 = 0x300;
    /// An error that repeats only the header of what it is about.
    pub const CAPPED: u16 = 0x100;
    /// Attributes follow an error.
    pub const ACK_TLVS: u16 = 0x200;
    /// It is a request.
    pub const REQUEST: u16 = 0x01;
}

/// An acknowledgement or error.
pub const ERROR: u16 = 2;
/// The end of an answer of several.
pub const DONE: u16 = 3;
/// Kinds below are netlink's own.
pub const FIRST_KIND: u16 = 16;

fn aligned(len: usize) -> usize {
    len.next_multiple_of(4)
}

/// One message as it was sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Its header's bytes.
    pub header: &'a [u8],
    /// Which message it is.
    pub kind: u16,
    /// Bits of [`flags`].
    pub flags: u16,
    /// The sender's number for it.
    pub sequence: u32,
    attributes: &'a [u8],
}

impl<'a> Request<'a> {
    /// Takes the first message off `bytes`; none where a whole one is not there.
    pub fn take(bytes: &mut &'a [u8]) -> Option<Request<'a>> {
        let (header, _) = bytes.split_at_checked(HEADER)?;
        let len = u32_at(header, 0) as usize;
        let whole = bytes.get(..len).filter(|whole| whole.len() >= HEADER)?;
        *bytes = bytes.get(aligned(len)..).unwrap_or_default();
        Some(Request {
            header,
            kind: u16_at(header, 4),
            flags: u16_at(header, 6),
            sequence: u32_at(header, 8),
            attributes: &whole[HEADER..],
        })
    }

    /// The 32 bits of the first attribute of a type; none if it is not there or too short.
    pub fn u32(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        while let Some((head, _)) = rest.split_at_checked(ATTRIBUTE) {
            let len = usize::from(u16_at(head, 0));
            let value = rest.get(ATTRIBUTE..len)?;
            if u16_at(head, 2) & 0x3fff == wanted {
                return (value.len() >= 4).then(|| u32_at(value, 0));
            }
            rest = rest.get(aligned(len)..).unwrap_or_default();
        }
        None
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_ne_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_ne_bytes)
}

/// One message of an answer while it is put together.
#[derive(Debug)]
pub struct Message(Vec<u8>);

impl Message {
    /// Answers `request`, whose sender is at `port`, with a message of another kind or flags.
    pub fn answering(request: &Request<'_>, port: u32, kind: u16, flags: u16) -> Message {
        let mut bytes = vec![0; HEADER];
        bytes[4..6].copy_from_slice(&kind.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&request.sequence.to_ne_bytes());
        bytes[12..16].copy_from_slice(&port.to_ne_bytes());
        Message(bytes)
    }

    /// Attributes without a header, to be put into one of a message.
    pub fn part() -> Message {
        Message(Vec::new())
    }

    /// What was put together so far.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Appends what is no attribute.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Appends an attribute.
    pub fn put(&mut self, kind: u16, value: &[u8]) {
        let place = self.begin(kind);
        self.0.extend_from_slice(value);
        self.end(place);
    }

    pub fn u8(&mut self, kind: u16, value: u8) {
        self.put(kind, &[value]);
    }

    pub fn u32(&mut self, kind: u16, value: u32) {
        self.put(kind, &value.to_ne_bytes());
    }

    pub fn u64(&mut self, kind: u16, value: u64) {
        self.put(kind, &value.to_ne_bytes());
    }

    /// A string with its NUL.
    pub fn text(&mut self, kind: u16, value: &str) {
        let place = self.begin(kind);
        self.0.extend_from_slice(value.as_bytes());
        self.0.push(0);
        self.end(place);
    }

    /// Attributes within one.
    pub fn nest(&mut self, kind: u16, inner: impl FnOnce(&mut Message)) {
        let place = self.begin(kind);
        inner(self);
        self.end(place);
    }

    fn begin(&mut self, kind: u16) -> usize {
        let place = self.0.len();
        self.0.extend_from_slice(&[0; 2]);
        self.0.extend_from_slice(&kind.to_ne_bytes());
        place
    }

    fn end(&mut self, place: usize) {
        let len = u16::try_from(self.0.len() - place).unwrap_or(u16::MAX);
        self.0[place..place + 2].copy_from_slice(&len.to_ne_bytes());
        self.0.resize(aligned(self.0.len()), 0);
    }

    /// Its bytes, with its length filled in.
    pub fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.0.len()).unwrap_or(u32::MAX);
        self.0[..4].copy_from_slice(&len.to_ne_bytes());
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> Vec<u8> {
        let first = Request { header: &[], kind: 0, flags: 0, sequence: 7, attributes: &[] };
        let mut message = Message::answering(&first, 9, 0x1401, flags::REQUEST);
        message.text(2, "peerdma0");
        message.u8(77, 3);
        message.nest(15, |table| table.u32(16, 5));
        message.u32(1, 4);
        message.finish()
    }

    #[test]
    fn what_was_put_together_is_read() {
        let bytes = [request(), request()].concat();
        let mut rest = bytes.as_slice();
        for _ in 0..2 {
            let read = Request::take(&mut rest).unwrap();
            assert_eq!((read.kind, read.flags, read.sequence), (0x1401, 1, 7));
            assert_eq!((read.u32(1), read.u32(77), read.u32(3)), (Some(4), None, None));
        }
        assert!(Request::take(&mut rest).is_none() && rest.is_empty());
    }

    #[test]
    fn cut_messages_and_wrong_lengths_end_the_reading() {
        let whole = request();
        for len in 0..whole.len() {
            assert!(Request::take(&mut &whole[..len]).is_none());
        }
        for at in 0..whole.len() {
            for value in [0, 1, 3, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = value;
                let mut rest = bytes.as_slice();
                while let Some(read) = Request::take(&mut rest) {
                    read.u32(1);
                }
            }
        }
    }
}
