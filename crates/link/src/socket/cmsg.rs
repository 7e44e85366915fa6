//! Control messages of `sendmsg` and `recvmsg` (cmsg(3)), written and read as plain bytes, without
//! unsafe code.

/// Length of a control message's header: length, level and type.
const HEADER: usize = size_of::<libc::cmsghdr>();
/// Length of the header's first field.
const LEN_FIELD: usize = size_of::<usize>();
/// Room for everything that a socket of ours is asked to send or report.
const CAPACITY: usize = 256;

const fn align(len: usize) -> usize {
    len.next_multiple_of(size_of::<usize>())
}

/// A buffer of control messages, aligned as the kernel wants it.
#[derive(Clone, Copy)]
#[repr(C, align(8))]
pub(crate) struct Control {
    bytes: [u8; CAPACITY],
    len: usize,
}

impl Control {
    pub(crate) const fn new() -> Control {
        Control { bytes: [0; CAPACITY], len: 0 }
    }

    /// Appends a message.
    ///
    /// # Panics
    /// When the buffer has no room; what we send is of fixed size and fits.
    pub(crate) fn push(&mut self, level: i32, kind: i32, data: &[u8]) {
        let len = HEADER + data.len();
        let out = &mut self.bytes[self.len..self.len + align(len)];
        out.fill(0);
        out[..LEN_FIELD].copy_from_slice(&len.to_ne_bytes());
        out[LEN_FIELD..LEN_FIELD + 4].copy_from_slice(&level.to_ne_bytes());
        out[LEN_FIELD + 4..LEN_FIELD + 8].copy_from_slice(&kind.to_ne_bytes());
        out[HEADER..len].copy_from_slice(data);
        self.len += align(len);
    }

    /// The messages so far.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    /// The whole buffer, for the kernel to fill; follow with [`Control::set_len`].
    pub(crate) fn space(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    /// States how many bytes the kernel filled.
    pub(crate) fn set_len(&mut self, len: usize) {
        self.len = len.min(CAPACITY);
    }

    /// Level, type and data of each message; ends at the first that does not fit the buffer.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (i32, i32, &[u8])> {
        let mut rest = self.as_bytes();
        std::iter::from_fn(move || {
            let len = usize::from_ne_bytes(rest.get(..LEN_FIELD)?.try_into().ok()?);
            let level = int(rest.get(LEN_FIELD..)?)?;
            let kind = int(rest.get(LEN_FIELD + 4..)?)?;
            let data = rest.get(HEADER..len)?;
            rest = rest.get(align(len)..).unwrap_or_default();
            Some((level, kind, data))
        })
    }
}

/// The C `int` at the front of `data`.
pub(crate) fn int(data: &[u8]) -> Option<i32> {
    Some(i32::from_ne_bytes(data.get(..4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_pushed_is_read_back() {
        let mut control = Control::new();
        control.push(1, 2, &[3]);
        control.push(-4, 5, &[6, 7, 8, 9, 10, 11, 12, 13, 14]);
        let read: Vec<_> = control.iter().collect();
        assert_eq!(read, [(1, 2, &[3u8][..]), (-4, 5, &[6, 7, 8, 9, 10, 11, 12, 13, 14])]);
    }

    #[test]
    fn lengths_that_lie_end_the_walk() {
        for len in [0usize, 1, 15, 200, usize::MAX] {
            let mut control = Control::new();
            control.push(1, 2, &[3]);
            control.bytes[..LEN_FIELD].copy_from_slice(&len.to_ne_bytes());
            assert_eq!(control.iter().count(), 0, "length {len}");
        }
        let mut control = Control::new();
        control.push(1, 2, &[0; 4]);
        control.set_len(control.len - 5);
        assert_eq!(control.iter().count(), 0);
    }
}
